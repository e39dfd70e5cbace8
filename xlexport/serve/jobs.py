"""The work that a scheduler does for one request, and what it reports while it does it."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlruntime import Memory, Sampling, XlruntimeError

__all__ = ["ClosedError", "Collected", "Draw", "Draws", "Job", "Listener", "Part", "Place", "Work", "likeliest"]


class ClosedError(XlruntimeError):
    """The server takes no jobs any more."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the server is shutting down.", hint="Try again later.")


@dataclass(frozen=True)
class Place:
    """A place in a document, from which any number of jobs may go on. It never changes.

    Attributes:
        memory: the carried memory, of one row; shared by all jobs that go on from here, which copy it.
        pending: the last token, which the model has not read yet.
        position: number of tokens of the document, `pending` included.
    """

    memory: Memory
    pending: int
    position: int


@dataclass(frozen=True)
class Work:
    """What a request asks of the model: read tokens, then draw continuations.

    Attributes:
        ids: (n,) tokens to read.
        start: the place to go on from; None: the tokens begin a document.
        top: number of likeliest tokens to report for each token read or drawn; None: no score of drawn tokens either.
        scores: whether the scores of the tokens read are wanted.
        max_tokens: number of tokens to draw for each continuation.
        samplings: the rule of drawing, one for each continuation.
        keep: whether to report the places where reading or drawing ended.
    """

    ids: npt.NDArray[np.int64]
    start: Place | None = None
    top: int | None = None
    scores: bool = True
    max_tokens: int = 0
    samplings: tuple[Sampling, ...] = ()
    keep: bool = False

    @property
    def continues(self) -> bool:
        """Whether the memory is needed after the last token has been read."""
        return self.keep or self.max_tokens > 0


@dataclass(frozen=True)
class Part:
    """Scores of consecutive tokens that were read.

    Attributes:
        log_probs: (n,) natural logarithms of the tokens' probabilities; context: (n,) tokens that each prediction saw.
        rank: (n,) rank of each token, 1 for the likeliest; top_ids, top_log_probs: (n, k) the likeliest tokens. These
            three are None unless the work asks for at least one of them.
    """

    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64] | None = None
    top_ids: npt.NDArray[np.int64] | None = None
    top_log_probs: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Draw:
    """One drawn token, with the natural logarithm of its probability at temperature 1, and the k likeliest tokens."""

    token: int
    log_prob: float | None = None
    top_ids: tuple[int, ...] = ()
    top_log_probs: tuple[float, ...] = ()


class Draws:
    """Drawn tokens in arrays, which take a tenth of the memory of one `Draw` for each.

    Attributes:
        tokens: their ids; log_probs: as in `Draw`, NaN for None.
        top_ids, top_log_probs: the likeliest tokens of all draws, one draw after the other.
    """

    def __init__(self) -> None:
        """Start without tokens."""
        self.tokens = array("q")
        self.log_probs = array("d")
        self.top_ids = array("q")
        self.top_log_probs = array("d")

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, draw: Draw) -> None:
        """Add a token."""
        self.tokens.append(draw.token)
        self.log_probs.append(math.nan if draw.log_prob is None else draw.log_prob)
        self.top_ids.extend(draw.top_ids)
        self.top_log_probs.extend(draw.top_log_probs)


class Listener(Protocol):
    """The receiver of a job's results. The scheduler's thread calls it, so no method may wait."""

    def scored(self, part: Part) -> None:
        """Take the scores of the next tokens."""

    def drew(self, choice: int, draw: Draw) -> bool:
        """Take the next token of a continuation; return whether this continuation ends here."""

    def finished(self, places: Sequence[Place]) -> None:
        """Take the end of the job, with the places that the work asked to keep: one for each continuation."""

    def failed(self, error: Exception) -> None:
        """Take the error that ended the job."""


@dataclass(eq=False)
class Job:
    """Some work with its listener.

    Attributes:
        cancelled: set by the caller, from any thread, to end the job before its next step.
        over: whether the listener has heard of the end; failed: whether that was an error.
    """

    work: Work
    listener: Listener
    cancelled: bool = False
    over: bool = False
    failed: bool = False

    def finish(self, places: Sequence[Place] = ()) -> None:
        """Report the end, once."""
        if not self.over:
            self.over = True
            self.listener.finished(places)

    def fail(self, error: Exception) -> None:
        """Report an error as the end, once."""
        if not self.over:
            self.over = self.failed = True
            self.listener.failed(error)


class Collected:
    """A listener that keeps everything, for callers in threads that wait for the end."""

    def __init__(self, choices: int = 1, stop_at: Any = None) -> None:
        """Start with nothing. `stop_at` takes the tokens of a continuation and returns whether it ends there."""
        self.parts: list[Part] = []
        self.draws: list[list[Draw]] = [[] for _ in range(choices)]
        self.places: Sequence[Place] = ()
        self._stop_at = stop_at
        self._error: Exception | None = None
        self._done = threading.Event()

    def scored(self, part: Part) -> None:
        """Keep the scores."""
        self.parts.append(part)

    def drew(self, choice: int, draw: Draw) -> bool:
        """Keep the token."""
        self.draws[choice].append(draw)
        return self._stop_at is not None and self._stop_at([draw.token for draw in self.draws[choice]])

    def finished(self, places: Sequence[Place]) -> None:
        """Keep the places, and wake the caller."""
        self.places = places
        self._done.set()

    def failed(self, error: Exception) -> None:
        """Keep the error, and wake the caller."""
        self._error = error
        self._done.set()

    def wait(self) -> Collected:
        """Wait for the end of the job.

        Raises:
            Exception: the error that ended the job.
        """
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self

    @property
    def log_probs(self) -> npt.NDArray[np.float32]:
        """The scores of all tokens read (n,)."""
        return np.concatenate([np.zeros(0, np.float32), *(part.log_probs for part in self.parts)])


def likeliest(logits: npt.NDArray[np.float32], token: int, top: int | None) -> Draw:
    """Return a drawn token with the logarithms of probabilities of logits (n_token,); `top` None: only the token."""
    if top is None:
        return Draw(token)
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    k = min(top, len(scores))
    ids = np.argpartition(scores, len(scores) - k)[len(scores) - k :] if k else np.zeros(0, np.int64)
    ids = ids[np.argsort(-scores[ids], kind="stable")]
    return Draw(token, float(scores[token]), tuple(ids.tolist()), tuple(scores[ids].tolist()))
