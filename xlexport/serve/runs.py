"""Run jobs for one request: results cross from the scheduler's thread to the server's loop, and an end cancels them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from xlexport.serve.answers import ApiError
from xlexport.serve.jobs import Draw, Draws, Job, Part, Place, Work
from xlexport.serve.scheduler import Scheduler
from xlexport.serve.texts import Growing

__all__ = ["Choice", "Delta", "News", "Outcome", "Run"]

Reason = Literal["stop", "length"]
UNREAD = 4096  # tokens of a continuation that may wait for a client that reads slowly


@dataclass
class Choice:
    """One continuation: its text so far, its tokens, and why it ended.

    Attributes:
        keep: whether text and tokens are needed at the end; a stream of events need not have them.
        drawn: number of tokens.
    """

    growing: Growing
    keep: bool = True
    texts: list[str] = field(default_factory=list)
    draws: Draws = field(default_factory=Draws)
    drawn: int = 0
    reason: Reason = "length"

    def add(self, draw: Draw) -> str:
        """Add a token, and return the text that is certain now."""
        self.drawn += 1
        if self.keep:
            self.draws.add(draw)
        return self.said(self.growing.add(draw.token))

    def said(self, text: str) -> str:
        """Note the next text, and return it."""
        if self.growing.stopped:
            self.reason = "stop"
        if self.keep:
            self.texts.append(text)
        return text

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


@dataclass(eq=False)
class Delta:
    """News of a continuation.

    Attributes:
        text: text that is certain now; draws: the tokens since the last news; last: whether it ends here.
        waiting: tokens since there was news.
    """

    outcome: Outcome
    choice: int
    text: str = ""
    draws: Draws = field(default_factory=Draws)
    last: bool = False
    waiting: int = 0


class News:
    """What a stream of events has not shown yet: the scheduler's thread adds to it, the server's loop takes it.

    The news of a continuation are one object, however many tokens wait. So a client that reads nothing costs little.
    """

    def __init__(self) -> None:
        """Start without news."""
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._unsaid: dict[tuple[int, int], Delta] = {}
        self._error: Exception | None = None

    def add(self, outcome: Outcome, choice: int, text: str, draw: Draw | None = None) -> bool:
        """Add a token, or without one the end; return whether too many tokens wait."""
        place = outcome.number, choice
        with self._lock:
            if self._error is not None:
                return False
            delta = self._unsaid.get(place) or self._unsaid.setdefault(place, Delta(outcome, choice))
            delta.text += text
            if draw is None:
                delta.last = True
            else:
                delta.draws.add(draw)
            news = bool(delta.text or delta.last)
            delta.waiting += news
        if news and delta.waiting == 1:
            _call(self._loop, self._some.set)
        return delta.waiting > UNREAD

    def fail(self, error: Exception) -> None:
        """End the news with an error."""
        with self._lock:
            self._error = self._error or error
        _call(self._loop, self._some.set)

    async def take(self) -> list[Delta]:
        """Wait for news, and return them: of each continuation at most one.

        Raises:
            Exception: the error that ended them.
        """
        await self._some.wait()
        with self._lock:
            deltas = {place: delta for place, delta in self._unsaid.items() if delta.waiting}
            for place in deltas:
                del self._unsaid[place]
            if self._error is None:
                self._some.clear()
            elif not deltas:
                raise self._error
        return list(deltas.values())


class Outcome:
    """The results of one job; its methods are called by the scheduler's thread (see `Listener`).

    Attributes:
        parts: scores of the tokens read; choices: the continuations; places: where they ended.
        number: the place of the job among those of the request.
        ended: resolved when the job has ended, with its error if there was one.
    """

    def __init__(self, number: int, choices: list[Choice], news: News | None) -> None:
        """Start without results; `news` takes what a stream of events shows."""
        self.number = number
        self.parts: list[Part] = []
        self.choices = choices
        self.places: Sequence[Place] = ()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._news = news

    def scored(self, part: Part) -> None:
        """Keep the scores of tokens."""
        self.parts.append(part)

    def drew(self, choice: int, draw: Draw) -> bool:
        """Keep a drawn token; return whether a stop was found, or the client does not read."""
        record = self.choices[choice]
        text = record.add(draw)
        if self._news is not None and self._news.add(self, choice, text, draw):
            self.failed(ApiError(408, f"the client has not read {UNREAD:,} tokens.", "slow_reader"))
            return True
        return record.growing.stopped

    def finished(self, places: Sequence[Place]) -> None:
        """Keep the places, and complete all texts."""
        self.places = places
        for number, record in enumerate(self.choices):
            text = record.said(record.growing.end())
            if self._news is not None:
                self._news.add(self, number, text)
        _call(self._loop, self._end, None)

    def failed(self, error: Exception) -> None:
        """Keep the error."""
        if self._news is not None:
            self._news.fail(error)
        _call(self._loop, self._end, error)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # it was seen, even if the request has been given up


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function in the thread of a loop, soon; not if the loop was closed, because nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


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
        self._news = News() if stream else None

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
        n_open = sum(len(outcome.choices) for outcome in self.outcomes)
        while n_open:
            try:
                deltas = await asyncio.wait_for(self._news.take(), self._left())
            except TimeoutError:
                raise self._too_long() from None
            for delta in deltas:
                n_open -= delta.last
                yield delta

    def _left(self) -> float:
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def _too_long(self) -> ApiError:
        return ApiError(408, f"the request took longer than {self._seconds:g} seconds.", "timeout")
