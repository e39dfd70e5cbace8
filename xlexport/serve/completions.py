"""Answer `/v1/completions`: scores of prompts and continuations, at once or as a stream of events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from xlexport.serve.answers import JSON, ApiError, answer_of, error_body
from xlexport.serve.bodies import encoded, read_json, share_of, unless_gone
from xlexport.serve.events import EventStream, event
from xlexport.serve.jobs import Work
from xlexport.serve.limits import ServeLimits
from xlexport.serve.metrics import Metrics
from xlexport.serve.models import Models, Served
from xlexport.serve.results import Log, answer_pieces, draw_log, read_log
from xlexport.serve.runs import Choice, Delta, Outcome, Run
from xlexport.serve.schemas import CompletionBody, SamplingBody
from xlexport.serve.texts import Growing
from xlruntime import Sampling

__all__ = ["Completions", "Prompted", "samplings_of", "stops_of"]

LARGE = 20_000  # tokens of an answer that is sent piece by piece


@dataclass(frozen=True)
class Prompted:
    """One prompt: its text if it was given as text, and its tokens."""

    text: str | None
    ids: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Completions:
    """The route for completions."""

    models: Models
    limits: ServeLimits
    metrics: Metrics

    async def create(self, request: Request) -> Response:
        """Answer one request."""
        began = time.perf_counter()
        body = await read_json(CompletionBody, request, self.limits)
        model = self.models.find(body.model)
        _check_defaults(body)
        n_new = 16 if body.max_tokens is None else body.max_tokens
        choices = body.n or 1
        prompts = await self._prompts(request, body, model, whole=bool(body.echo) and not n_new)
        n_prompt = sum(len(prompt.ids) for prompt in prompts)
        self.limits.check_tokens(n_prompt, n_new, choices)
        share_of(request).take_scores(n_prompt + n_new * choices * len(prompts), body.logprobs)
        answer = _Answer(body, model, prompts, choices, n_new)
        if not body.stream:
            with Run(model.scheduler, self.limits.request_seconds) as run:
                answer.submit(run)
                await unless_gone(request, run.wait())
            return answer.response()
        with ExitStack() as stack:
            run = stack.enter_context(Run(model.scheduler, self.limits.request_seconds, stream=True))
            answer.submit(run)  # a mistake in the request is answered with its own status, not as an event
            return EventStream(self._events(answer, run, began), stack.pop_all().close)

    async def _prompts(self, request: Request, body: CompletionBody, model: Served, whole: bool) -> list[Prompted]:
        """Return the prompts."""
        entries: Sequence[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if entries and isinstance(entries[0], int):
            entries = [entries]
        if not entries:
            raise ApiError(400, "prompt: an empty list.", "invalid_value", "prompt")
        if len(entries) > self.limits.prompts:
            message = f"prompt: {len(entries):,} prompts, at most {self.limits.prompts:,} are possible."
            raise ApiError(400, message, "invalid_value", "prompt")
        ids = await encoded(request, self.limits, model, entries, whole)
        return [Prompted(entry if isinstance(entry, str) else None, n) for entry, n in zip(entries, ids, strict=True)]

    async def _events(self, answer: _Answer, run: Run, began: float) -> AsyncIterator[bytes]:
        """Yield the events of a stream; an error is one of them, because the status has been sent."""
        first = True
        try:
            async for delta in run.news():
                if first:
                    self.metrics.first_token.observe(time.perf_counter() - began)
                    first = False
                yield event(answer.chunk(delta))
            if answer.body.stream_options is not None and answer.body.stream_options.include_usage:
                yield event({**answer.head, "choices": [], "usage": answer.usage})
        except Exception as error:
            yield event(error_body(answer_of(error)))
        yield b"data: [DONE]\n\n"


class _Answer:
    """The answer to one request, while its jobs run and after."""

    def __init__(self, body: CompletionBody, model: Served, prompts: list[Prompted], choices: int, n_new: int) -> None:
        self.body = body
        self.model = model
        self.prompts = prompts
        self.choices = choices
        self.drawn = n_new
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self.outcomes: list[Outcome] = []
        self._begun: set[int] = set()  # choices whose prompt has been shown
        self._top = min(body.logprobs or 0, model.scheduler.engine.bundle.vocab_size)

    def submit(self, run: Run) -> None:
        """Submit a job for each prompt."""
        samplings, stops = samplings_of(self.body, self.choices), stops_of(self.body)
        for prompt in self.prompts:
            work = Work(
                prompt.ids,
                top=None if self.body.logprobs is None else self._top,
                scores=bool(self.body.echo) and self.body.logprobs is not None,
                max_tokens=self.drawn,
                samplings=samplings,
            )
            choices = [
                Choice(
                    Growing(self.model.tokenizer, prompt.ids[-64:].tolist(), stops, prompt.text or ""),
                    keep=not self.body.stream,
                )
                for _ in samplings
            ]
            self.outcomes.append(run.add(work, choices))

    def response(self) -> Response:
        """Return the answer that holds everything."""
        choices = []
        for outcome in self.outcomes:
            for number, choice in enumerate(outcome.choices):
                fields = self._choice(outcome, number, self._echoed(outcome) + choice.text, choice.reason)
                log = self._prompt_log(outcome, draw_log(choice.draws, self._top))
                choices.append((fields, log))
        pieces = answer_pieces(self.head, choices, self.model.texts, self.usage)
        if sum(0 if log is None else len(log.tokens) for _, log in choices) < LARGE:
            return Response("".join(pieces), media_type=JSON)
        return StreamingResponse(pieces, media_type=JSON)

    def chunk(self, delta: Delta) -> dict[str, Any]:
        """Return an event's object; the first of a choice also shows the prompt, if it should."""
        outcome, number = delta.outcome, delta.choice
        log, text = draw_log(delta.draws, self._top), delta.text
        index = outcome.number * self.choices + number
        if index not in self._begun:
            self._begun.add(index)
            text = self._echoed(outcome) + text
            visible_log = self._prompt_log(outcome, log)
        else:
            visible_log = None if self.body.logprobs is None else log
        reason = outcome.choices[number].reason if delta.last else None
        fields = self._choice(outcome, number, text, reason)
        fields["logprobs"] = None if visible_log is None else json.loads("".join(visible_log.pieces(self.model.texts)))
        return {**self.head, "choices": [fields]}

    @property
    def usage(self) -> dict[str, int]:
        """The tokens read and drawn."""
        n_prompt = sum(len(prompt.ids) for prompt in self.prompts)
        n_new = sum(choice.drawn for outcome in self.outcomes for choice in outcome.choices)
        return {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}

    def _choice(self, outcome: Outcome, number: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": outcome.number * self.choices + number, "text": text, "finish_reason": reason}

    def _echoed(self, outcome: Outcome) -> str:
        if not self.body.echo:
            return ""
        prompt = self.prompts[outcome.number]
        return self.model.tokenizer.decode(prompt.ids) if prompt.text is None else prompt.text

    def _prompt_log(self, outcome: Outcome, log: Log) -> Log | None:
        """Return the log of a choice, with the prompt before it if it should be shown."""
        if self.body.logprobs is None:
            return None
        if not self.body.echo:
            return log
        ids = self.prompts[outcome.number].ids
        return read_log(int(ids[0]), ids[1:], outcome.parts, self._top).then(log)


def samplings_of(body: SamplingBody, choices: int) -> tuple[Sampling, ...]:
    """Return the rule of drawing for each continuation; each has a seed of its own."""
    temperature = 1.0 if body.temperature is None else body.temperature
    top_k = body.top_k if body.top_k is not None and body.top_k > 0 else None
    top_p = body.top_p if body.top_p is not None and body.top_p < 1 else None
    return tuple(
        Sampling(temperature, top_k, top_p, None if body.seed is None else body.seed + number)
        for number in range(choices)
    )


def stops_of(body: SamplingBody) -> list[str]:
    """Return the texts that end a continuation."""
    return [body.stop] if isinstance(body.stop, str) else body.stop or []


def _check_defaults(body: CompletionBody) -> None:
    """Refuse fields of OpenAI's interface that would change the answer there, but have no effect here."""
    for name, value, usual in (
        ("suffix", body.suffix, ("", None)),
        ("best_of", body.best_of, (None, body.n or 1)),
        ("stream_options", None if body.stream else body.stream_options, (None,)),
    ):
        if value not in usual:
            raise ApiError(400, f"{name}: not supported here.", "unsupported_parameter", name)
