"""Answer `/v1/sessions`: documents that grow, with the memory of the model kept between requests."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xlexport.serve.answers import ApiError, answer_of, error_body
from xlexport.serve.bodies import encoded, read_body, read_json, share_of, unless_gone
from xlexport.serve.completions import samplings_of, stops_of
from xlexport.serve.events import EventStream, event
from xlexport.serve.jobs import Place, Work
from xlexport.serve.limits import ServeLimits
from xlexport.serve.models import Models, Served
from xlexport.serve.results import draw_log, read_log
from xlexport.serve.runs import Choice, Outcome, Run
from xlexport.serve.schemas import ContinueBody, CreateBody, FeedBody, ScoreBody
from xlexport.serve.store import Session, SessionStore
from xlexport.serve.texts import Growing
from xlruntime import Stream
from xlruntime.scores import LN2

__all__ = ["STATE", "SessionRoutes"]

STATE = "application/octet-stream"
HEADERS = 1 << 20  # bytes of a saved state besides its tensors


@dataclass(frozen=True)
class SessionRoutes:
    """The routes of sessions."""

    models: Models
    limits: ServeLimits
    store: SessionStore

    async def create(self, request: Request) -> Response:
        """Begin a session."""
        body = await read_json(CreateBody, request, self.limits)
        return JSONResponse(self.store.create(self.models.find(body.model), body.ttl_seconds).describe(), 201)

    async def all(self, request: Request) -> Response:
        """List the sessions."""
        return JSONResponse({"object": "list", "data": [session.describe() for session in self.store.all()]})

    async def show(self, request: Request) -> Response:
        """Describe a session."""
        return JSONResponse(self.store.get(_name(request)).describe())

    async def delete(self, request: Request) -> Response:
        """End a session."""
        self.store.delete(_name(request))
        return JSONResponse({"id": _name(request), "object": "session", "deleted": True})

    async def fork(self, request: Request) -> Response:
        """Begin another session at the same place of the same document."""
        session = self.store.get(_name(request))
        return JSONResponse(self.store.create(session.model, session.ttl, session.place).describe(), 201)

    async def feed(self, request: Request) -> Response:
        """Add a piece to the document, and answer with its scores. After an error, the session is unchanged."""
        body = await read_json(FeedBody, request, self.limits)
        with self.store.changing(_name(request)) as session:
            before = session.place
            (ids,) = await self._tokens(request, session, [body.input])
            if not len(ids):
                return JSONResponse({**self._scores(session, before, ids, None, body.logprobs), **_of(session)})
            self.limits.check_tokens(len(ids), 0)
            share_of(request).take_scores(len(ids), body.logprobs)
            with self._run(session) as run:
                outcome = run.add(Work(ids, before, _top(session, body.logprobs), keep=True))
                await unless_gone(request, run.wait())
            (session.place,) = outcome.places
            return await _json({**self._scores(session, before, ids, outcome, body.logprobs), **_of(session)})

    async def score(self, request: Request) -> Response:
        """Score one continuation or several, without changing the session."""
        body = await read_json(ScoreBody, request, self.limits)
        session = self.store.get(_name(request))
        place = session.place
        several = isinstance(body.input, list) and bool(body.input) and not isinstance(body.input[0], int)
        inputs: Sequence[Any] = body.input if several else [body.input]
        if len(inputs) > self.limits.prompts:
            message = f"input: {len(inputs):,} continuations, at most {self.limits.prompts:,} are possible."
            raise ApiError(400, message, "invalid_value", "input")
        pieces = await self._tokens(request, session, inputs)
        self.limits.check_tokens(sum(map(len, pieces)), 0)
        share_of(request).take_scores(sum(map(len, pieces)), body.logprobs)
        with self._run(session) as run:
            outcomes = [run.add(Work(ids, place, _top(session, body.logprobs))) if len(ids) else None for ids in pieces]
            await unless_gone(request, run.wait())
        scores = [
            self._scores(session, place, ids, outcome, body.logprobs)
            for ids, outcome in zip(pieces, outcomes, strict=True)
        ]
        return await _json(
            {**_of(session), "object": "list", "data": scores} if several else {**scores[0], **_of(session)}
        )

    async def generate(self, request: Request) -> Response:
        """Continue the document; what is drawn belongs to it."""
        body = await read_json(ContinueBody, request, self.limits)
        n_new = 16 if body.max_tokens is None else body.max_tokens
        with ExitStack() as stack:
            session = stack.enter_context(self.store.changing(_name(request)))
            (ids,) = await self._tokens(request, session, [body.prompt or []])
            self.limits.check_tokens(len(ids), n_new)
            share_of(request).take_scores(len(ids) + n_new, body.logprobs)
            before = [] if session.place is None else [session.place.pending]
            growing = Growing(session.model.tokenizer, [*before, *ids[-64:].tolist()][-64:], stops_of(body))
            work = Work(
                ids, session.place, _top(session, body.logprobs), False, n_new, samplings_of(body, 1), keep=True
            )
            run = stack.enter_context(self._run(session, stream=bool(body.stream)))
            outcome = run.add(work, [Choice(growing)])
            if body.stream:
                events = self._events(session, run, outcome, body.logprobs)
                return EventStream(events, stack.pop_all().close)
            await unless_gone(request, run.wait())
            (session.place,) = outcome.places
            return await _json(self._generated(session, outcome, body.logprobs))

    async def save(self, request: Request) -> Response:
        """Answer with the session's state, as `Stream.save` writes it."""
        session = self.store.get(_name(request))
        raw = await asyncio.to_thread(_saved, session.model, session.place)
        return Response(raw, media_type=STATE)

    async def restore(self, request: Request) -> Response:
        """Begin a session from a saved state."""
        model = self.models.find(request.query_params.get("model"))
        if model.scheduler.evaluation.full_document:
            self.store.create(model)  # raises, with the reason
        raw = await read_body(request, self.limits, STATE, self.store.size(model) + HEADERS)
        place = await asyncio.to_thread(_restored, model, raw)
        return JSONResponse(self.store.create(model, None, place).describe(), 201)

    async def _tokens(
        self, request: Request, session: Session, sources: Sequence[str | list[int]]
    ) -> list[npt.NDArray[np.int64]]:
        """Return the token ids (n,) of pieces that may come next."""
        previous = None if session.place is None else session.place.pending
        return await encoded(request, self.limits, session.model, sources, previous=previous)

    def _run(self, session: Session, stream: bool = False) -> Run:
        return Run(session.model.scheduler, self.limits.request_seconds, stream)

    async def _events(self, session: Session, run: Run, outcome: Outcome, logprobs: int | None) -> AsyncIterator[bytes]:
        """Yield the events of a continuation; the last one describes the session."""
        try:
            async for delta in run.news():
                if delta.text:
                    yield event({"object": "session.delta", "text": delta.text})
            await run.wait()
            (session.place,) = outcome.places
            yield event(self._generated(session, outcome, logprobs))
        except Exception as error:
            yield event(error_body(answer_of(error)))
        yield b"data: [DONE]\n\n"

    def _generated(self, session: Session, outcome: Outcome, logprobs: int | None) -> dict[str, Any]:
        (choice,) = outcome.choices
        log = None
        if logprobs is not None:
            draws = draw_log(choice.draws, _top(session, logprobs) or 0)
            log = json.loads("".join(draws.pieces(session.model.texts)))
        return {
            "object": "session.continuation",
            "text": choice.text,
            "token_ids": choice.draws.tokens.tolist(),
            "logprobs": log,
            "finish_reason": choice.reason,
            **_of(session),
        }

    def _scores(
        self,
        session: Session,
        before: Place | None,
        ids: npt.NDArray[np.int64],
        outcome: Outcome | None,
        logprobs: int | None,
    ) -> dict[str, Any]:
        """Return the scores of a piece; the first token of a document has none."""
        position = 0 if before is None else before.position
        first = int(ids[0]) if before is None and len(ids) else None
        top = _top(session, logprobs) or 0
        log = read_log(first, ids if first is None else ids[1:], [] if outcome is None else outcome.parts, top)
        log_probs = log.log_probs[0 if first is None else 1 :]
        context = [part.context for part in outcome.parts] if outcome is not None else []
        answer = {
            "object": "session.scores",
            "index": position,
            "token_ids": log.tokens.tolist(),
            "token_logprobs": [*([] if first is None else [None]), *log_probs.tolist()],
            "context": [*([] if first is None else [0]), *np.concatenate([np.zeros(0, np.int64), *context]).tolist()],
            "scored_tokens": len(log_probs),
            "bits": float(0.0 - log_probs.sum() / LN2),
        }
        if logprobs is not None:
            answer["logprobs"] = json.loads("".join(log.pieces(session.model.texts)))
        return answer


def _name(request: Request) -> str:
    return str(request.path_params["session"])


def _of(session: Session) -> dict[str, Any]:
    return {"session": session.describe()}


def _top(session: Session, logprobs: int | None) -> int | None:
    return None if logprobs is None else min(logprobs, session.model.scheduler.engine.bundle.vocab_size)


async def _json(value: dict[str, Any]) -> Response:
    """Return an answer that may be large."""
    return Response(await asyncio.to_thread(json.dumps, value), media_type="application/json")


def _saved(model: Served, place: Place | None) -> bytes:
    """Return the state of a place in the format of streams."""
    stream = Stream(model.scheduler.engine, model.scheduler.evaluation)
    if place is not None:
        stream.memory, stream.pending, stream.position = place.memory, place.pending, place.position
    with tempfile.TemporaryDirectory(prefix="xlexport_serve_") as folder:
        file = Path(folder) / "session.xls"
        stream.save(file)
        return file.read_bytes()


def _restored(model: Served, raw: bytes | bytearray) -> Place | None:
    """Return the place of a saved state.

    Raises:
        StateError: it is damaged, or of another bundle.
        ApiError: it was saved under other settings.
    """
    scheduler = model.scheduler
    with tempfile.TemporaryDirectory(prefix="xlexport_serve_") as folder:
        file = Path(folder) / "the state"
        file.write_bytes(raw)
        stream = scheduler.engine.restore(file, capacity=scheduler.evaluation.capacity())
    if stream.evaluation != scheduler.evaluation:
        settings, expected = stream.evaluation.to_dict(), scheduler.evaluation.to_dict()
        raise ApiError(400, f"the state was saved with {settings}, expected {expected}.", "state_mismatch")
    return None if stream.pending is None else Place(stream.memory, stream.pending, stream.position)
