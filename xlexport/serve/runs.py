"""Run the jobs of a request: results cross from the scheduler's thread to the server's loop; an end cancels them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from xlexport.serve.errors import JSON, ApiError, answer_of, error_body
from xlexport.serve.jobs import AnswerChoice, Delta, Owner, RequestJob
from xlexport.serve.logprobs import json_pieces
from xlexport.serve.scheduler import Scheduler

__all__ = ["UNREAD", "EventStream", "Pieces", "Run", "json_answer"]

UNREAD = 4096  # tokens of a continuation that may wait for a client that reads slowly
LARGE = 20_000  # tokens of an answer that is sent piece by piece


class Run:
    """The jobs of one request, which may take so many seconds together; `client` sent it, `scope` is that of jobs."""

    def __init__(
        self, scheduler: Scheduler, seconds: float, client: str = "", scope: tuple[str | None, ...] | None = None
    ) -> None:
        self.jobs: list[RequestJob] = []
        self._scheduler = scheduler
        self._owner, self._scope = Owner(client), scope
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        # Choices with text to take, and jobs that ended.
        self._news: asyncio.Queue[AnswerChoice | RequestJob] = asyncio.Queue()

    def add(self, job: RequestJob) -> RequestJob:
        """Submit a job, and return it.

        Raises:
            XlruntimeError: as `Scheduler.submit`.
        """
        job.owner, job.scope = self._owner, self._scope
        self._scheduler.submit(job)
        self.jobs.append(job)
        job.add_done_callback(lambda _: self._post(job))
        return job

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        for job in self.jobs:
            job.cancel()

    def on_news(self, choice: AnswerChoice, waiting: int) -> None:
        """Note that so many tokens of a continuation wait to be taken; the scheduler's thread calls it.

        Raises:
            ApiError: the client does not read them.
        """
        if waiting == 1:
            self._post(choice)
        if waiting > UNREAD:
            raise ApiError(408, f"the client has not read {UNREAD:,} tokens.", "slow_reader")

    async def wait(self) -> None:
        """Wait for the end of all jobs.

        Raises:
            ApiError: they take too long.
            Exception: the first error of a job.
        """
        async with self._deadline():
            await asyncio.gather(*map(asyncio.wrap_future, self.jobs))

    async def news(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield what continuations have to show as it comes, each with its place among all of them.

        Raises:
            ApiError: they take too long.
            Exception: the first error of a job.
        """
        unfinished = {
            choice: place for place, choice in enumerate(choice for job in self.jobs for choice in job.choices)
        }
        while unfinished:
            async with self._deadline():
                source = await self._news.get()
            for choice in source.choices if isinstance(source, RequestJob) else [source]:
                if choice in unfinished and choice.has_news:
                    delta, place = choice.take(), unfinished[choice]
                    if delta.last:
                        del unfinished[choice]
                    yield place, delta
            if isinstance(source, RequestJob):
                source.result()

    def _post(self, source: AnswerChoice | RequestJob) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nobody waits
            self._loop.call_soon_threadsafe(self._news.put_nowait, source)

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self._until) as timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            raise ApiError(408, f"the request took longer than {self._seconds:g} seconds.", "timeout") from None


def json_answer(value: dict[str, Any], n_tokens: int) -> Response:
    """Return the answer with a value as `json_pieces` takes it; one of many tokens is made while it is read."""
    pieces = json_pieces(value)
    if n_tokens < LARGE:
        return Response("".join(pieces), media_type=JSON)
    return StreamingResponse(pieces, media_type=JSON)


class Pieces(StreamingResponse):
    """An answer in pieces, which calls `close` however it ends: its generator may never start."""

    def __init__(self, pieces: Any, close: Callable[[], object], **options: Any) -> None:
        super().__init__(pieces, **options)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


class EventStream(Pieces):
    """An answer of server-sent events. An error is an event, because the status has been sent."""

    def __init__(self, events: AsyncIterator[dict[str, Any] | str], close: Callable[[], object]) -> None:
        super().__init__(_lines(events), close, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _lines(events: AsyncIterator[dict[str, Any] | str]) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield f"data: {event if isinstance(event, str) else ''.join(json_pieces(event))}\n\n"
    except Exception as error:
        yield f"data: {json.dumps(error_body(answer_of(error)))}\n\n"
    yield "data: [DONE]\n\n"
