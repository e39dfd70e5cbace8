"""Answer `/v1/completions`: scores of prompts and continuations, at once or as a stream of events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from xlexport.serve.bodies import CompletionBody, encode_texts, read_json, share_of, unless_gone
from xlexport.serve.errors import ApiError
from xlexport.serve.jobs import AnswerChoice, Delta, RequestJob
from xlexport.serve.limits import CHOICE_BYTES, check_tokens
from xlexport.serve.logprobs import TokenLog, draw_log, read_log
from xlexport.serve.metrics import Metrics
from xlexport.serve.models import Models, ServedModel
from xlexport.serve.options import ServeLimits
from xlexport.serve.runs import EventStream, Run, json_answer
from xlexport.serve.token_places import ends_in_text, text_of_run
from xlruntime import GrowingText
from xlruntime.documents import Tokenizer

__all__ = ["Completions"]


@dataclass(frozen=True)
class _Prompt:
    """A prompt.

    Attributes:
        ids: (n,) its tokens; text: its text, or theirs if it was given as tokens; given: whether it was given as text.
        ends: (n,) where each token ends in the text, if they are to be shown.
    """

    ids: npt.NDArray[np.int64]
    text: str
    ends: npt.NDArray[np.int64] | None = None
    given: bool = False

    @classmethod
    def of(cls, source: str | list[int], ids: npt.NDArray[np.int64], tokenizer: Tokenizer, shown: bool) -> _Prompt:
        """Return a prompt; `shown`: whether its tokens are to be shown."""
        if not isinstance(source, str):
            return cls(ids, *text_of_run(tokenizer, ids)) if shown else cls(ids, tokenizer.decode(ids))
        ends = ends_in_text(tokenizer, source, ids) if shown else None
        if shown and ends is None:
            ends = np.minimum(text_of_run(tokenizer, ids)[1], len(source))
        return cls(ids, source, ends, given=True)


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
        n = body.n or 1
        prompts = await self._prompts(request, body, model)
        n_prompt = sum(len(prompt.ids) for prompt in prompts)
        check_tokens(self.limits, n_prompt, body.n_new, n, len(prompts))
        share_of(request).take_scores(n_prompt + body.n_new * n * len(prompts), body.logprobs)
        share_of(request).take(CHOICE_BYTES * (n * len(prompts) - 1))
        with ExitStack() as stack:
            scope = request.state.owner, body.cache_salt
            run = Run(model.scheduler, self.limits.request_seconds, request.state.client, scope)
            stack.enter_context(closing(run))
            answer = _Answer(body, model, prompts)
            await answer.submit(run)  # an error in the request has its own status, not an event
            if body.stream:
                return EventStream(self._events(answer, run, began), stack.pop_all().close)
            await unless_gone(request, run.wait())
            return answer.response()

    async def _prompts(self, request: Request, body: CompletionBody, model: ServedModel) -> list[_Prompt]:
        entries: Sequence[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if entries and isinstance(entries[0], int):
            entries = [entries]
        if not entries:
            raise ApiError(400, "prompt: an empty list.", "invalid_value", "prompt")
        if len(entries) > self.limits.prompts:
            message = f"prompt: {len(entries):,} prompts, at most {self.limits.prompts:,} are possible."
            raise ApiError(400, message, "invalid_value", "prompt")
        ids = await encode_texts(
            request, self.limits, model, entries, partial(model.ids, whole=bool(body.echo) and not body.n_new)
        )
        shown = bool(body.echo) and body.logprobs is not None
        texts = sum(len(entry) for entry in entries if isinstance(entry, str)) if shown else 0

        def prompts() -> list[_Prompt]:
            for own in ids:
                model.check(own)
            return [_Prompt.of(entry, own, model.tokenizer, shown) for entry, own in zip(entries, ids, strict=True)]

        with share_of(request).lent(texts * model.encoding_bytes):
            return await asyncio.to_thread(prompts)

    async def _events(self, answer: _Answer, run: Run, began: float) -> AsyncIterator[dict[str, Any]]:
        """Yield the objects of a stream."""
        first = True
        async for index, delta in run.news():
            if first:
                self.metrics.first_token.observe(time.perf_counter() - began)
                first = False
            yield answer.chunk(index, delta)
        if answer.body.stream_options is not None and answer.body.stream_options.include_usage:
            yield {**answer.head, "choices": [], "usage": answer.usage}


class _Answer:
    """The answer to one request, while its jobs run and after."""

    def __init__(self, body: CompletionBody, model: ServedModel, prompts: list[_Prompt]) -> None:
        self.body = body
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._model, self._prompts = model, prompts
        self._top = model.top(body.logprobs)
        self._n_prompt = sum(len(prompt.ids) for prompt in prompts)
        self._choices: list[tuple[_Prompt, RequestJob, AnswerChoice]] = []
        self._n_logged = 0  # tokens in the logs of all choices
        self._begun: set[int] = set()  # choices whose prompt has been shown

    async def submit(self, run: Run) -> None:
        """Submit a job for each prompt; there may be thousands of choices, so other requests go on meanwhile.

        Raises:
            XlruntimeError: as `Run.add`.
        """
        body, model = self.body, self._model
        samplings = [body.sampling(number) for number in range(body.n or 1)]
        on_news = run.on_news if body.stream else None
        for prompt in self._prompts:
            ids, before = prompt.ids, prompt.text if prompt.given else ""
            texts = [GrowingText(model.tokenizer, ids, body.stops, before, body.special) for _ in samplings]
            job = RequestJob(
                ids,
                top=self._top,
                scores=bool(body.echo) and body.logprobs is not None,
                max_tokens=body.n_new,
                choices=[AnswerChoice(*parts, on_news) for parts in zip(samplings, texts, strict=True)],
            )
            run.add(job)
            self._choices += [(prompt, job, choice) for choice in job.choices]
            await asyncio.sleep(0)

    def response(self) -> Response:
        """Return the answer that holds everything."""
        choices = [self._choice(index, choice.take()) for index, (_, _, choice) in enumerate(self._choices)]
        return json_answer({**self.head, "choices": choices, "usage": self.usage}, self._n_logged)

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return an event's object; the first of a choice also shows the prompt, if it should."""
        return {**self.head, "choices": [self._choice(index, delta)]}

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens of prompts, how many of them the cache saved, and the tokens drawn."""
        n_new = sum(choice.drawn for _, _, choice in self._choices)
        cached = sum(job.cached for job in {job for _, job, _ in self._choices})
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_new,
            "total_tokens": self._n_prompt + n_new,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return the next delta of a choice. With `echo`, the first delta begins with the prompt."""
        prompt, job, choice = self._choices[index]
        text, log = delta.text, None
        if self._top is not None:
            log = draw_log(delta.draws, self._top, delta.logged, delta.start, len(prompt.text))
        if self.body.echo and index not in self._begun:
            self._begun.add(index)
            text = prompt.text + text
            if log is not None and self._top is not None:
                first, ids = int(job.ids[0]), job.ids[1:]
                log = TokenLog.joined([read_log(first, ids, job.parts, self._top, prompt.text, prompt.ends), log])
        self._n_logged += 0 if log is None else len(log.tokens)
        return {
            "index": index,
            "text": text,
            "finish_reason": choice.reason if delta.last else None,
            "logprobs": None if log is None else log.pieces(self._model.texts),
        }


def _check_defaults(body: CompletionBody) -> None:
    """Refuse fields of OpenAI's interface that would change the answer there, but have no effect here."""
    for name, value, usual in (
        ("suffix", body.suffix, ("", None)),
        ("best_of", body.best_of, (None, body.n or 1)),
        ("stream_options", None if body.stream else body.stream_options, (None,)),
        ("frequency_penalty", body.frequency_penalty, (0, None)),
        ("presence_penalty", body.presence_penalty, (0, None)),
        ("logit_bias", body.logit_bias, ({}, None)),
    ):
        if value not in usual:
            instead = "; use repetition_penalty" if name.endswith("penalty") else ""
            raise ApiError(400, f"{name}: not supported here{instead}.", "unsupported_parameter", name)
