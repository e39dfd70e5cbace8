"""The work that a scheduler does for one request, with its results."""

from __future__ import annotations

import bisect
import contextlib
import io
import math
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from xlruntime import GrowingText, Memory, Sampling, XlruntimeError
from xlruntime.prefix_cache import Trail

__all__ = ["AnswerChoice", "ClosedError", "Delta", "Draws", "Owner", "RequestJob", "ScoredPiece", "StreamPosition"]


class ClosedError(XlruntimeError):
    """The server accepts no more jobs."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down.", hint="Try again later.")


@dataclass(frozen=True)
class StreamPosition:
    """A place in a document, from which any number of jobs may go on. It never changes.

    Attributes:
        memory: the carried memory, of one row; shared by all jobs that go on from here, which copy it.
        pending: the last token, which the model has not read yet.
        position: number of tokens of the document, `pending` included.
        trail: the tokens that `memory` has read, as the cache of prefixes knows them; None: it does not.
    """

    memory: Memory
    pending: int
    position: int
    trail: Trail | None = None


@dataclass(frozen=True)
class ScoredPiece:
    """Scores of consecutive tokens that were read.

    Attributes:
        log_probs: (n,) natural logarithms of the tokens' probabilities; context: (n,) tokens that each prediction saw.
        rank: (n,) rank of each token, 1 for the likeliest; top_ids, top_log_probs: (n, k) the likeliest tokens. These
            three are None unless the job asks for at least one of them.
    """

    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64] | None = None
    top_ids: npt.NDArray[np.int64] | None = None
    top_log_probs: npt.NDArray[np.float64] | None = None


class Draws:
    """Drawn tokens in arrays, which take a tenth of the memory of Python objects.

    Attributes:
        tokens: their ids; log_probs: natural logarithms of their probabilities at temperature 1, NaN if not asked for.
        top_ids, top_log_probs: the likeliest tokens of all draws, one draw after the other.
        ends: where each ends in the text of the continuation, in characters.
    """

    def __init__(self) -> None:
        self.tokens = array("q")
        self.log_probs = array("d")
        self.top_ids = array("q")
        self.top_log_probs = array("d")
        self.ends = array("q")

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, other: Draws) -> None:
        """Add the tokens of others."""
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    def split(self, n: int) -> tuple[Draws, Draws]:
        """Return the first `n` tokens, and the others."""
        parts, k = (Draws(), Draws()), len(self.top_ids) // max(len(self), 1)
        for part, rows in zip(parts, (slice(n), slice(n, None)), strict=True):
            tops = slice(rows.start and rows.start * k, rows.stop and rows.stop * k) if n else rows
            part.tokens, part.log_probs, part.ends = self.tokens[rows], self.log_probs[rows], self.ends[rows]
            part.top_ids, part.top_log_probs = self.top_ids[tops], self.top_log_probs[tops]
        return parts

    def add(self, token: int, logits: npt.NDArray[np.float32], top: int | None, end: int = 0) -> None:
        """Add a token drawn from logits (n_token,), with the `top` likeliest ones; None: without probabilities."""
        self.tokens.append(token)
        self.ends.append(end)
        if top is None:
            self.log_probs.append(math.nan)
            return
        scores = logits.astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        k = min(top, len(scores))
        ids = np.argpartition(scores, len(scores) - k)[len(scores) - k :] if k else np.zeros(0, np.int64)
        ids = ids[np.argsort(-scores[ids], kind="stable")]
        self.log_probs.append(float(scores[token]))
        self.top_ids.extend(ids.tolist())
        self.top_log_probs.extend(scores[ids].tolist())


class Delta(NamedTuple):
    """An update of a continuation: certain text, tokens whose text is certain now, and whether it ended.

    `logged` is the text of these tokens, which begins at character `start` of the continuation.
    """

    text: str
    draws: Draws
    last: bool
    logged: str = ""
    start: int = 0


class AnswerChoice:
    """One continuation. The scheduler's thread adds tokens; another thread takes them, in the end or as they come.

    What waits to be taken is in a few buffers, however many tokens it is. So a client that reads nothing costs little.

    Attributes:
        drawn: number of tokens; reason: why it ended.
        place: where it ended, if the job keeps places.
    """

    def __init__(
        self, sampling: Sampling, text: GrowingText, on_news: Callable[[AnswerChoice, int], object] | None = None
    ) -> None:
        """Start without tokens.

        Args:
            on_news: called with this object after each token while text waits to be taken, and with the number of
                these tokens. An error that it raises ends the job.
        """
        self.sampling = sampling
        self.drawn = 0
        self.reason: Literal["stop", "length"] = "length"
        self.place: StreamPosition | None = None
        self._growing = text
        self._on_news = on_news
        self._lock = threading.Lock()
        self._text, self._draws = io.StringIO(), Draws()
        self._start, self._rest = 0, ""  # where tokens end that were taken, and the text behind it that was taken
        self._waiting = 0
        self._ended = self._stopped = False

    def add(self, token: int, logits: npt.NDArray[np.float32], top: int | None = None) -> bool:
        """Add a token, as `Draws.add` does; return whether a stop was found."""
        text = self._growing.add(token)
        with self._lock:
            self.drawn += 1
            self._draws.add(token, logits, top, self._growing.length)
            self._text.write(text)
            self._waiting += self._text.tell() > 0
            waiting = self._waiting
        if waiting and self._on_news is not None:
            self._on_news(self, waiting)
        return self._growing.stopped

    def stop(self) -> None:
        """Note that a token was drawn that ends the text, and belongs to none."""
        self._stopped = True

    def end(self) -> None:
        """Complete the text."""
        with self._lock:
            self._text.write(self._growing.end())
            self.reason = "stop" if self._stopped or self._growing.stopped else "length"
            self._ended = True

    @property
    def has_news(self) -> bool:
        """Whether there is text to take, or the continuation has ended."""
        with self._lock:
            return self._ended or self._text.tell() > 0

    def take(self) -> Delta:
        """Return what was added since the last call; tokens wait until their text is certain."""
        with self._lock:
            text, draws, start = self._text.getvalue(), self._draws, self._start
            known = self._rest + text
            until = start + len(known)
            if self._ended:  # tokens of a stop have no text, and the last one has what is left
                certain, later = draws, Draws()
                certain.ends = array("q", [min(end, until) for end in draws.ends])
                if certain.ends:
                    certain.ends[-1] = until
            else:
                certain, later = draws.split(bisect.bisect_right(draws.ends, until))
            end = certain.ends[-1] if certain.ends else start
            self._start, self._rest = end, known[end - start :]
            self._text, self._draws, self._waiting = io.StringIO(), later, 0
            return Delta(text, certain, self._ended, known[: end - start], start)


@dataclass(eq=False)
class Owner:
    """The request that jobs belong to.

    Attributes:
        client: the client that sent it: the digest of its key or, without keys, its connection.
    """

    client: str = ""

    @property
    def keys(self) -> tuple[str, Owner]:
        """The two that take turns: the client, and of its requests this one."""
        return self.client, self


class RequestJob(Future[tuple[StreamPosition, ...]]):
    """The work of a request: read tokens, then draw continuations. `cancel` ends it before its next step.

    As a future, it resolves to the places that it was asked to keep: one for each continuation, or where reading ended.

    Attributes:
        owner: its request.
        scope: with equal ones, jobs may share memories of their prefixes; None: with none.
        cached: number of tokens that were not read, because the cache had the memory after them.
        parts: scores of the tokens read so far.
    """

    def __init__(
        self,
        ids: npt.NDArray[np.int64],
        start: StreamPosition | None = None,
        *,
        top: int | None = None,
        scores: bool = True,
        max_tokens: int = 0,
        choices: Sequence[AnswerChoice] = (),
        keep: bool = False,
    ) -> None:
        """Describe the work.

        Args:
            ids: (n,) tokens to read.
            start: the place to go on from; None: the tokens begin a document.
            top: number of likeliest tokens to report for each token read or drawn; None: no score of drawn tokens.
            scores: whether the scores of the tokens read are wanted.
            max_tokens: number of tokens to draw for each of the `choices`.
            keep: whether to keep the places where reading or drawing ended.
        """
        super().__init__()
        self.owner = Owner()
        self.scope: tuple[str | None, ...] | None = None
        self.cached = 0
        self.ids = ids
        self.start = start
        self.top = top
        self.scores = scores
        self.max_tokens = max_tokens
        self.choices = choices
        self.keep = keep
        self.parts: list[ScoredPiece] = []
        self._drawing = len(choices)

    @property
    def continues(self) -> bool:
        """Whether the memory is needed after the last token has been read."""
        return self.keep or self.max_tokens > 0

    @property
    def before(self) -> npt.NDArray[np.int64]:
        """The tokens before the continuations, as far as this job knows them."""
        return self.ids if self.start is None else np.append(self.start.pending, self.ids)

    @property
    def log_probs(self) -> npt.NDArray[np.float32]:
        """The scores of all tokens read (n,)."""
        return np.concatenate([np.zeros(0, np.float32), *(part.log_probs for part in self.parts)])

    def end_choice(self, choice: AnswerChoice, place: StreamPosition | None) -> None:
        """Note that a continuation has ended; with the last one, the job ends."""
        choice.place = place
        self._drawing -= 1
        if not self._drawing:
            self.finish([choice.place for choice in self.choices if choice.place is not None])

    def finish(self, places: Sequence[StreamPosition] = ()) -> None:
        """End the job, unless it has ended."""
        if not self.done():
            for choice in self.choices:
                choice.end()
            with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
                self.set_result(tuple(places))

    def fail(self, error: Exception) -> None:
        """End the job with an error, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)
