"""How far a scoring run is: a line on a terminal while it goes on, and a summary at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from xlexport.scoring.inputs import Input, Reading
from xlexport.terminal import StatusLine, bar, counted, duration
from xlruntime import DocumentScore, TokenScores

__all__ = ["Progress", "Totals"]


@dataclass
class Totals:
    """Sums over the documents that were scored, and mean and spread of each one's own figure.

    Figures are bits per byte where all documents have bytes, else bits per token.
    """

    documents: int = 0
    failed: int = 0
    tokens: int = 0
    scored_tokens: int = 0
    bytes: int = 0
    scored_bytes: int = 0
    bits: float = 0.0
    without_bytes: int = 0
    byte_mean: float = 0.0  # mean and sum of squared deviations, one document after another (Welford, 1962)
    byte_squares: float = 0.0
    token_mean: float = 0.0
    token_squares: float = 0.0

    def add(self, score: DocumentScore) -> None:
        """Count a document that was scored to its end."""
        self.documents += 1
        self.tokens += score.tokens
        self.scored_tokens += score.scored_tokens
        self.bytes += score.bytes
        self.scored_bytes += score.scored_bytes
        self.bits += score.bits
        if score.bits_per_token is not None:
            self.token_mean, self.token_squares = _more(
                self.token_mean, self.token_squares, score.bits_per_token, self.documents
            )
        if score.bits_per_byte is None:
            self.without_bytes += 1
        else:
            self.byte_mean, self.byte_squares = _more(
                self.byte_mean, self.byte_squares, score.bits_per_byte, self.documents - self.without_bytes
            )

    def state(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Totals:
        """What `state` was taken of."""
        return cls(**state)

    def summary(self) -> str:
        """One line: how many documents, all of them as one, and mean and standard error over them."""
        per_byte = not self.without_bytes and self.scored_bytes > 0
        unit, amount = ("byte", self.scored_bytes) if per_byte else ("token", self.scored_tokens)
        mean, squares = (self.byte_mean, self.byte_squares) if per_byte else (self.token_mean, self.token_squares)
        line = f"{counted(self.documents, 'document')}, {counted(self.tokens, 'token')}"
        line += f": {self.bits / max(amount, 1):.4f} bits per {unit}"
        if self.documents > 1:
            error = math.sqrt(squares / (self.documents - 1) / self.documents)
            line += f" together, {mean:.4f} ± {error:.4f} a document (mean and standard error)"
        return line


def _more(mean: float, squares: float, value: float, n: int) -> tuple[float, float]:
    """Mean and sum of squared deviations with the n-th value."""
    before, mean = mean, mean + (value - mean) / n
    return mean, squares + (value - before) * (value - mean)


class Progress:
    """A line on standard error, only where that is a terminal: documents, tokens a second, time left.

    Args:
        documents: how many there are; None where only reading tells.
        size: bytes of all of them; None where it is not known.
    """

    def __init__(self, documents: int | None, size: int | None, stream: TextIO | None = None) -> None:
        self._line = StatusLine(stream)
        self._documents = documents
        self._size = size
        self._done = 0
        self._tokens = 0
        self._skipped: float | None = None  # bytes that were scored before this process began
        self._finished = 0.0  # bytes of documents that are done
        self._reached: dict[int, int] = {}  # and how far the others are
        self._started = time.monotonic()

    @classmethod
    def over(cls, inputs: Sequence[Input], reading: Reading) -> Progress:
        """Of the documents in these files."""
        sizes = [given.size for given in inputs]
        known = [size for size in sizes if size is not None]
        of_text = len(known) == len(sizes) and not reading.ids  # how far one is in ids says nothing of bytes
        return cls(len(inputs) if reading.field is None else None, sum(known) if of_text else None)

    @property
    def tokens_per_second(self) -> float:
        """Of this process."""
        return self._tokens / max(time.monotonic() - self._started, 1e-9)

    def resumed(self, before: Totals) -> None:
        """Begin with documents that were done before."""
        self._done, self._finished = before.documents + before.failed, float(before.bytes)

    def take(self, part: TokenScores) -> None:
        """Count a part."""
        self._tokens += len(part)
        if self._skipped is None:
            self._skipped = self._finished + (int(part.starts[0]) if len(part) else 0)
        if part.summary is not None or part.error is not None:
            self._done += 1
            self._finished += part.summary.bytes if part.summary is not None else self._reached.get(part.number, 0)
            self._reached.pop(part.number, None)
        elif len(part):
            self._reached[part.number] = int(part.ends[-1])  # in characters where tokens are not bytes: a bit less
        self._line.draw(lambda: self.line(time.monotonic()))

    def clear(self) -> None:
        """Make room for other lines."""
        self._line.clear()

    def _bytes(self) -> float:
        return self._finished + sum(self._reached.values())

    def line(self, now: float) -> str:
        """What is shown."""
        if self._documents is None:
            done = counted(self._done, "document")
        else:
            done = f"{self._done:,} of {counted(self._documents, 'document')}"
        line = f"{done}  {self.tokens_per_second:,.0f} tokens/s"
        if not self._size:
            return line
        scored = self._bytes() - (self._skipped or 0.0)
        left = (self._size - self._bytes()) * (now - self._started) / scored if scored > 0 else math.inf
        tail = f"  {duration(max(left, 0.0))} left" if math.isfinite(left) else ""
        return f"{bar(min(self._bytes() / self._size, 1.0))}  {line}{tail}"
