"""Run jobs for one request: results cross from the scheduler's thread to the server's loop, and an end cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from xlexport.serve.answers import ApiError
from xlexport.serve.jobs import Draw, Job, Part, Place, Work
from xlexport.serve.scheduler import Scheduler
from xlexport.serve.texts import Growing

__all__ = ["Choice", "Delta", "Outcome", "Run"]

Reason = Literal["stop", "length"]
UNREAD = 4096  # news that may wait for a client that reads slowly


@dataclass
class Choice:
    """One continuation: its text so far, its tokens, and why it ended."""

    growing: Growing
    texts: list[str] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    reason: Reason = "length"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


@dataclass(frozen=True)
class Delta:
    """News of a continuation: text that is certain now, and the tokens since the last news; `last` ends it."""

    outcome: Outcome
    choice: int
    text: str
    draws: list[Draw]
    last: bool = False


class Outcome:
    """The results of one job; its methods are called by the scheduler's thread (see `Listener`).

    Attributes:
        parts: scores of the tokens read; choices: the continuations; places: where they ended.
        number: the place of the job among those of the request.
        ended: resolved when the job has ended, with its error if there was one.
    """

    def __init__(self, number: int, choices: list[Choice], news: asyncio.Queue[Delta | Exception] | None) -> None:
        """Start without results; `news` takes what a stream of events shows."""
        self.number = number
        self.parts: list[Part] = []
        self.choices = choices
        self.places: Sequence[Place] = ()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._news = news
        self._unsaid: list[list[Draw]] = [[] for _ in choices]

    def scored(self, part: Part) -> None:
        """Keep the scores of tokens."""
        self.parts.append(part)

    def drew(self, choice: int, draw: Draw) -> bool:
        """Keep a drawn token; return whether a stop was found, or the client does not read."""
        if self._news is not None and self._news.qsize() > UNREAD:
            self.failed(ApiError(408, f"the client has not read {UNREAD:,} events.", "slow_reader"))
            return True
        found = self.choices[choice]
        found.draws.append(draw)
        text = found.growing.add(draw.token)
        self._say(choice, text, draw)
        if found.growing.stopped:
            found.reason = "stop"
        return found.growing.stopped

    def finished(self, places: Sequence[Place]) -> None:
        """Keep the places, and complete all texts."""
        self.places = places
        for number, found in enumerate(self.choices):
            text = found.growing.end()
            if found.growing.stopped:
                found.reason = "stop"
            found.texts.append(text)
            if self._news is not None:
                self._call(self._news.put_nowait, Delta(self, number, text, self._unsaid[number], last=True))
        self._call(self._end, None)

    def failed(self, error: Exception) -> None:
        """Keep the error."""
        if self._news is not None:
            self._call(self._news.put_nowait, error)
        self._call(self._end, error)

    def _say(self, choice: int, text: str, draw: Draw) -> None:
        self.choices[choice].texts.append(text)
        if self._news is None:
            return
        self._unsaid[choice].append(draw)
        if text:
            self._call(self._news.put_nowait, Delta(self, choice, text, self._unsaid[choice]))
            self._unsaid[choice] = []

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # it was seen, even if the request has been given up

    def _call(self, function: object, argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)  # type: ignore[arg-type]
        except RuntimeError:  # the loop was closed: nobody waits any more
            return


class Run:
    """The jobs of one request. At the end of a `with` block, the unfinished ones are cancelled."""

    def __init__(self, scheduler: Scheduler, seconds: float, stream: bool = False) -> None:
        """Start without jobs.

        Args:
            seconds: how long all of them may take; stream: whether `news` is wanted.
        """
        self.outcomes: list[Outcome] = []
        self._scheduler = scheduler
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._jobs: list[Job] = []
        self._news: asyncio.Queue[Delta | Exception] | None = asyncio.Queue() if stream else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for job in self._jobs:
            if not job.over:
                self._scheduler.cancel(job)

    def add(self, work: Work, choices: list[Choice] | None = None) -> Outcome:
        """Submit a job.

        Raises:
            XlruntimeError: as `Scheduler.submit`.
        """
        outcome = Outcome(len(self.outcomes), choices or [], self._news)
        self._jobs.append(self._scheduler.submit(work, outcome))
        self.outcomes.append(outcome)
        return outcome

    async def wait(self) -> list[Outcome]:
        """Wait for the end of all jobs.

        Raises:
            ApiError: they take too long.
            Exception: the first error of a job.
        """
        futures = [outcome.ended for outcome in self.outcomes]
        if not futures:
            return []
        done, waiting = await asyncio.wait(futures, timeout=self._left(), return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        if waiting:
            raise self._too_long()
        return self.outcomes

    async def news(self) -> AsyncIterator[Delta]:
        """Yield the news of all continuations as they come.

        Raises:
            ApiError: they take too long.
            Exception: the first error of a job.
        """
        assert self._news is not None
        left = sum(len(outcome.choices) for outcome in self.outcomes)
        while left:
            try:
                found = await asyncio.wait_for(self._news.get(), self._left())
            except TimeoutError:
                raise self._too_long() from None
            if isinstance(found, Exception):
                raise found
            left -= found.last
            yield found

    def _left(self) -> float:
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def _too_long(self) -> ApiError:
        return ApiError(408, f"the request took longer than {self._seconds:g} seconds.", "timeout")
