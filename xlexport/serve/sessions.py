"""Answer `/v1/sessions`: documents that grow, with the memory of the model kept between requests until they expire."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import mmap
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from xlexport.serve.bodies import (
    ContinueBody,
    CreateBody,
    FeedBody,
    Gone,
    PreviewBody,
    ScoreBody,
    encode_texts,
    parsed_bytes,
    read_body,
    read_json,
    share_of,
    unless_gone,
)
from xlexport.serve.errors import ApiError, answer_of, busy
from xlexport.serve.jobs import AnswerChoice, Draws, RequestJob, ScoredPiece, StreamPosition
from xlexport.serve.limits import check_tokens
from xlexport.serve.logprobs import draw_log, json_pieces, read_log
from xlexport.serve.models import Models, ServedModel
from xlexport.serve.options import ServeLimits
from xlexport.serve.runs import EventStream, Pieces, Run, json_answer
from xlexport.serve.token_places import text_of_run
from xlruntime import GrowingText, StateDamagedError, StateError, Stream
from xlruntime.documents import Tokenizer
from xlruntime.held_text import HeldText
from xlruntime.scores import LN2

__all__ = ["ClientSession", "SessionRoutes", "SessionStore"]

STATE = "application/octet-stream"
HEADERS = 1 << 20  # bytes of a saved state in addition to its tensors
T = TypeVar("T")
Continued = tuple[npt.NDArray[np.int64], int]  # token ids, and how many come before a continuation
VALUES = 20  # of each kind, in a state's header, for each memory of the bundle
PIECE = 1 << 16  # bytes of a state that are sent at a time


@dataclass(eq=False)
class ClientSession:
    """One document that grows.

    Attributes:
        id: its name, which nobody can guess; model: its bundle.
        owner: digest of the key that began it; None without keys. salt: only requests with the same one share prefixes.
        place: where it is; None: nothing was read. held: its last text, which has no tokens yet.
        created: in seconds since 1970; ttl: seconds after which an idle session is deleted; used: when it was used.
        busy: whether a request is changing it.
    """

    id: str
    model: ServedModel
    owner: str | None
    ttl: float
    created: int
    used: float
    place: StreamPosition | None = None
    held: HeldText = field(default_factory=HeldText)
    salt: str | None = None
    busy: bool = False

    @property
    def pending(self) -> int | None:
        """The last token; None before the first."""
        return None if self.place is None else self.place.pending

    def describe(self) -> dict[str, Any]:
        """Return the session as the API describes it."""
        return {
            "id": self.id,
            "object": "session",
            "model": self.model.name,
            "created": self.created,
            "tokens": 0 if self.place is None else self.place.position,
            "held": len(self.held.raw),
            "bytes": self.model.session_bytes,
            "ttl_seconds": self.ttl,
        }


class SessionStore:
    """All sessions, each of which only its owner can use. Only the thread of the server's loop uses it."""

    def __init__(self, limits: ServeLimits, keys: int = 0) -> None:
        """Start without sessions. Each of so many keys has an equal share of both limits, and at least one session."""
        self._limits = limits
        self._parts = max(keys, 1)
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def nbytes(self) -> int:
        """Memory of all sessions in bytes. Each counts in full, though forks share theirs until they go on."""
        return sum(session.model.session_bytes for session in self._sessions.values())

    def all(self, owner: str | None = None) -> list[ClientSession]:
        """Return an owner's sessions that have not expired, the oldest first."""
        self.expire()
        return [session for session in self._sessions.values() if session.owner == owner]

    def create(
        self,
        model: ServedModel,
        ttl: float | None = None,
        place: StreamPosition | None = None,
        owner: str | None = None,
    ) -> ClientSession:
        """Begin a session.

        Raises:
            ApiError: one more does not fit, or the bundle cannot carry memory.
        """
        if model.scheduler.evaluation.full_document:
            message = f"{model.name} reads each document in one step and carries no memory, so it has no sessions."
            raise ApiError(400, message, "no_sessions", "model")
        own, size = self.all(owner), model.session_bytes
        for sessions, parts in ((list(self._sessions.values()), 1), (own, self._parts if own else 1)):
            used, most = sum(session.model.session_bytes for session in sessions), self._limits.session_bytes // parts
            whose = "" if parts == 1 else " of this key"
            if len(sessions) >= self._limits.sessions // parts:
                raise busy(f"{len(sessions):,} sessions{whose} are open, as many as are possible.", _wait(own))
            if used + size > most:
                usage = f"{len(sessions):,} sessions{whose} hold {used:,} of {most:,} bytes"
                raise busy(f"{usage}, and one more takes {size:,}.", _wait(own))
        lasts = self._limits.session_seconds if ttl is None else min(ttl, self._limits.session_seconds)
        name, now = f"sess-{secrets.token_hex(16)}", time.monotonic()
        session = ClientSession(name, model, owner, lasts, int(time.time()), now, place)
        self._sessions[session.id] = session
        return session

    def get(self, name: str, owner: str | None = None) -> ClientSession:
        """Return a session.

        Raises:
            ApiError: the owner has none of this name, or it has expired.
        """
        self.expire()
        session = self._sessions.get(name)
        if session is None or session.owner != owner:
            raise ApiError(404, "no such session: it was deleted, or it expired.", "session_not_found")
        session.used = time.monotonic()
        return session

    @contextlib.contextmanager
    def changing(self, name: str, owner: str | None = None) -> Iterator[ClientSession]:
        """Lend a session to one request that changes it; it cannot expire during this time.

        Raises:
            ApiError: as `get`, or another request is changing it.
        """
        session = self.get(name, owner)
        if session.busy:
            raise ApiError(409, "another request is changing this session.", "session_busy", retry_after=1)
        session.busy = True
        try:
            yield session
        finally:
            session.busy = False
            session.used = time.monotonic()

    def delete(self, name: str, owner: str | None = None) -> None:
        """End a session. The result of a request that is changing it is discarded.

        Raises:
            ApiError: as `get`.
        """
        del self._sessions[self.get(name, owner).id]

    def expire(self) -> None:
        """Delete the sessions that have been idle for too long."""
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if not session.busy and now - session.used > session.ttl:
                del self._sessions[session.id]


@dataclass(frozen=True)
class SessionRoutes:
    """The routes of sessions."""

    models: Models
    limits: ServeLimits
    store: SessionStore

    async def create(self, request: Request) -> Response:
        """Begin a session."""
        body = await read_json(CreateBody, request, self.limits)
        session = self.store.create(self.models.find(body.model), body.ttl_seconds, owner=request.state.owner)
        session.salt = body.cache_salt
        return JSONResponse(session.describe(), 201)

    async def all(self, request: Request) -> Response:
        """List the sessions."""
        own = self.store.all(request.state.owner)
        return JSONResponse({"object": "list", "data": [session.describe() for session in own]})

    async def show(self, request: Request) -> Response:
        """Describe a session."""
        return JSONResponse(self.store.get(*_named(request)).describe())

    async def delete(self, request: Request) -> Response:
        """End a session."""
        self.store.delete(*_named(request))
        return JSONResponse({"id": request.path_params["session"], "object": "session", "deleted": True})

    async def fork(self, request: Request) -> Response:
        """Begin another session at the same place of the same document."""
        session = self.store.get(*_named(request))
        twin = self.store.create(session.model, session.ttl, session.place, session.owner)
        twin.held, twin.salt = session.held, session.salt
        return JSONResponse(twin.describe(), 201)

    async def feed(self, request: Request) -> Response:
        """Add a piece to the document, and answer with its scores. After an error, the session is unchanged."""
        body = await read_json(FeedBody, request, self.limits)
        with self.store.changing(*_named(request)) as session:
            before = session.place
            ((ids, held),) = await self._tokens(request, session, [body.input], session.held.fed)
            if body.end:
                rest, held = held.fed([], session.model.tokenizer, int(ids[-1]) if len(ids) else session.pending)
                ids = np.concatenate([ids, rest])
            session.model.check(ids)
            parts: Sequence[ScoredPiece] = ()
            if len(ids):
                check_tokens(self.limits, len(ids), 0)
                share_of(request).take_scores(len(ids), body.logprobs)
                with self._run(request, session) as run:
                    job = run.add(RequestJob(ids, before, top=session.model.top(body.logprobs), keep=True))
                    await unless_gone(request, run.wait())
                (session.place,), parts = job.result(), job.parts
            session.held = held
            scores = _scores(session.model, before, ids, parts, body.logprobs)
            return json_answer({**scores, **_of(session)}, len(ids))

    async def score(self, request: Request) -> Response:
        """Score one continuation or several, without changing the session."""
        body = await read_json(ScoreBody, request, self.limits)
        session = self.store.get(*_named(request))
        several = isinstance(body.input, list) and bool(body.input) and not isinstance(body.input[0], int)
        inputs: Sequence[Any] = body.input if several else [body.input]
        if len(inputs) > self.limits.prompts:
            message = f"input: {len(inputs):,} continuations, at most {self.limits.prompts:,} are possible."
            raise ApiError(400, message, "invalid_value", "input")
        pieces = await self._tokens(request, session, inputs, session.held.continued)
        return await self._compare(request, session, pieces, body.logprobs, several)

    async def preview(self, request: Request) -> Response:
        """Score the text that is held, as if the document ended here, without changing the session."""
        body = await read_json(PreviewBody, request, self.limits)
        session = self.store.get(*_named(request))
        ((ids, _),) = await self._tokens(request, session, [[]], session.held.fed)
        return await self._compare(request, session, [(ids, 0)], body.logprobs, False)

    async def _compare(
        self, request: Request, session: ClientSession, pieces: Sequence[Continued], logprobs: int | None, several: bool
    ) -> Response:
        """Answer with the scores of continuations, each without the tokens that are wholly of the held text."""
        model, place = session.model, session.place
        for ids, _ in pieces:
            model.check(ids)
        n_tokens = sum(len(ids) for ids, _ in pieces)
        check_tokens(self.limits, n_tokens, 0)
        share_of(request).take_scores(n_tokens, logprobs)
        jobs = [RequestJob(ids, place, top=model.top(logprobs)) for ids, _ in pieces]
        with self._run(request, session) as run:
            for job in jobs:
                if len(job.ids):
                    run.add(job)
            await unless_gone(request, run.wait())
        parts = zip(jobs, pieces, strict=True)
        scores = [_scores(model, place, job.ids, job.parts, logprobs, skipped) for job, (_, skipped) in parts]
        answer = {**_of(session), "object": "list", "data": scores} if several else {**scores[0], **_of(session)}
        return json_answer(answer, n_tokens)

    async def generate(self, request: Request) -> Response:
        """Continue the document; what is drawn belongs to it."""
        body = await read_json(ContinueBody, request, self.limits)
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(self.store.changing(*_named(request)))
            ((ids, _),) = await self._tokens(request, session, [body.prompt or []], session.held.continued)
            session.model.check(ids)
            check_tokens(self.limits, len(ids), body.n_new)
            share_of(request).take_scores(len(ids) + body.n_new, body.logprobs)
            before = ids if session.place is None else np.append(session.place.pending, ids)
            text = GrowingText(session.model.tokenizer, before, body.stops, special=body.special)
            run = stack.enter_context(self._run(request, session))
            job = RequestJob(
                ids,
                session.place,
                top=session.model.top(body.logprobs),
                scores=False,
                max_tokens=body.n_new,
                choices=[AnswerChoice(body.sampling(), text, run.on_news if body.stream else None)],
                keep=True,
            )
            run.add(job)
            if body.stream:
                return EventStream(_events(session, run, job), stack.pop_all().close)
            await unless_gone(request, run.wait())
            (session.place,), session.held = job.result(), HeldText(begun=True)
            (choice,) = job.choices
            delta = choice.take()
            return json_answer(_continuation(session, job, delta.text, delta.draws), len(delta.draws))

    async def save(self, request: Request) -> Response:
        """Answer with the session's state, as `Stream.save` writes it. It counts until the client has read it."""
        session = self.store.get(*_named(request))
        model, size, share = session.model, session.model.session_bytes + HEADERS, share_of(request)
        share.take(size)
        with share.lent(size):
            raw = await asyncio.to_thread(_save, model, session.place, session.held)
        until = time.monotonic() + self.limits.transfer_seconds

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(raw), PIECE):
                if time.monotonic() > until:  # the client reads too slowly
                    raise Gone
                yield bytes(raw[at : at + PIECE])  # tracebacks may hold it

        return Pieces(pieces(), raw.release, media_type=STATE, headers={"content-length": str(len(raw))})

    async def restore(self, request: Request) -> Response:
        """Begin a session from a saved state."""
        model = self.models.find(request.query_params.get("model"))
        if model.scheduler.evaluation.full_document:
            self.store.create(model)  # raises, with the reason
        raw = await read_body(request, self.limits, STATE, model.session_bytes + HEADERS)
        with share_of(request).lent(_header_bytes(model, raw, self.limits) + 2 * model.session_bytes):
            place, held = await asyncio.to_thread(_restore, model, raw)
        session = self.store.create(model, None, place, request.state.owner)
        session.held = held
        return JSONResponse(session.describe(), 201)

    async def _tokens(
        self,
        request: Request,
        session: ClientSession,
        sources: Sequence[str | list[int]],
        method: Callable[[str | list[int], Tokenizer, int | None], T],
    ) -> list[T]:
        """Return what a method of the held text gives for each piece that may come next."""
        tokenizer, previous = session.model.tokenizer, session.pending
        return await encode_texts(
            request, self.limits, session.model, sources, lambda source: method(source, tokenizer, previous)
        )

    def _run(self, request: Request, session: ClientSession) -> contextlib.closing[Run]:
        seconds, client, scope = self.limits.request_seconds, request.state.client, (session.owner, session.salt)
        return contextlib.closing(Run(session.model.scheduler, seconds, client, scope))


async def _events(session: ClientSession, run: Run, job: RequestJob) -> AsyncIterator[dict[str, Any] | str]:
    """Yield the events of a continuation; the last one describes the session."""
    texts, draws = [], Draws()
    async for _, delta in run.news():
        texts.append(delta.text)
        draws.extend(delta.draws)
        if delta.text:
            yield {"object": "session.delta", "text": delta.text}
    await run.wait()
    (session.place,), session.held = job.result(), HeldText(begun=True)
    last = _continuation(session, job, "".join(texts), draws)
    yield await asyncio.to_thread(lambda: "".join(json_pieces(last)))


def _continuation(session: ClientSession, job: RequestJob, text: str, draws: Draws) -> dict[str, Any]:
    """Return what an answer shows of a continuation that has ended."""
    log = None if job.top is None else draw_log(draws, job.top, text).pieces(session.model.texts)
    return {
        "object": "session.continuation",
        "text": text,
        "token_ids": np.array(draws.tokens, np.int64),
        "logprobs": log,
        "finish_reason": job.choices[0].reason,
        **_of(session),
    }


def _scores(
    model: ServedModel,
    before: StreamPosition | None,
    ids: npt.NDArray[np.int64],
    parts: Sequence[ScoredPiece],
    logprobs: int | None,
    skipped: int = 0,
) -> dict[str, Any]:
    """Return the scores of a piece after its first `skipped` tokens; the first token of a document has none."""
    first = int(ids[0]) if before is None and len(ids) else None
    text, ends = "", None
    if logprobs is not None:
        text, ends = text_of_run(model.tokenizer, ids, [] if before is None else [before.pending])
    log = read_log(first, ids if first is None else ids[1:], parts, model.top(logprobs) or 0, text, ends).after(skipped)
    log_probs = log.log_probs[0 if first is None or skipped else 1 :]
    context = np.concatenate([np.zeros(0 if first is None else 1, np.int64), *(part.context for part in parts)])
    scores: dict[str, Any] = {
        "object": "session.scores",
        "index": skipped if before is None else before.position + skipped,
        "token_ids": log.tokens,
        "token_logprobs": log.log_probs,
        "context": context[skipped:],
        "scored_tokens": len(log_probs),
        "bits": float(0.0 - log_probs.sum() / LN2),
    }
    if logprobs is not None:
        scores["logprobs"] = log.pieces(model.texts)
    return scores


def _named(request: Request) -> tuple[str, str | None]:
    """Return the id of the session that a request names, and the owner of the client's sessions."""
    return request.path_params["session"], request.state.owner


def _of(session: ClientSession) -> dict[str, Any]:
    return {"session": session.describe()}


def _wait(sessions: Sequence[ClientSession]) -> int:
    """Return the seconds until the next of these sessions may expire, at least 1."""
    now = time.monotonic()
    return max(1, round(min((session.used + session.ttl - now for session in sessions), default=1)))


def _save(model: ServedModel, place: StreamPosition | None, held: HeldText) -> memoryview:
    """Return the state of a place in the format of streams, in memory that goes back to the system when it is freed."""
    stream = Stream(model.scheduler.engine, model.scheduler.evaluation)
    if place is not None:
        stream.memory, stream.pending, stream.position = place.memory, place.pending, place.position
    stream.held = held
    with tempfile.TemporaryDirectory(prefix="xlexport_serve_") as folder:
        file = Path(folder) / "session.xls"
        stream.save(file)
        raw = mmap.mmap(-1, file.stat().st_size)
        with file.open("rb") as saved:
            saved.readinto(raw)
        return memoryview(raw)


def _header_bytes(model: ServedModel, raw: bytearray, limits: ServeLimits) -> int:
    """Return the memory that the header of a saved state takes, which names the bundle's memories.

    Raises:
        ApiError: it is larger, or has more values, than that of any state of the bundle.
    """
    size, values = int.from_bytes(raw[:8], "little"), VALUES * len(model.scheduler.engine.bundle.memory)
    with contextlib.suppress(ApiError):
        if size <= HEADERS:
            return parsed_bytes(raw[8 : 8 + size], dataclasses.replace(limits, prompts=values, numbers=values))
    message = f"the state: its header has more bytes or values than one of {model.name} needs."
    raise ApiError(400, message, StateDamagedError.code)


def _restore(model: ServedModel, raw: bytes | bytearray) -> tuple[StreamPosition | None, HeldText]:
    """Return the place of a saved state, and the text that it holds.

    Raises:
        ApiError: it is damaged, of another bundle, or was saved under other settings.
    """
    scheduler = model.scheduler
    with tempfile.TemporaryDirectory(prefix="xlexport_serve_") as folder:
        file = Path(folder) / "the state"
        file.write_bytes(raw)
        try:
            stream = scheduler.engine.restore(file, capacity=scheduler.evaluation.capacity())
        except StateError as error:
            answer = answer_of(error)
            raise ApiError(400, answer.message.replace(str(file), file.name), answer.code) from None
    if stream.evaluation != scheduler.evaluation:
        settings, expected = stream.evaluation.to_dict(), scheduler.evaluation.to_dict()
        raise ApiError(400, f"the state was saved with {settings}, expected {expected}.", "state_mismatch")
    place = None if stream.pending is None else StreamPosition(stream.memory, stream.pending, stream.position)
    return place, stream.held
