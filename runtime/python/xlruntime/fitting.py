"""Choose the sizes of rings and batches by the lengths of documents: short ones need less of both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .documents import Document
from .engine import Engine
from .evaluation import EvaluationSettings
from .token_reader import TokenReader

__all__ = ["AUTO", "BatchSize", "Fitting", "Opened", "formed", "most_rows", "rows_of_long"]

AUTO: Literal["auto"] = "auto"
BatchSize = int | Literal["auto"]

SMALLEST = 64  # tokens that the smallest rings hold
STEP_TOKENS = 1024  # of a step on one thread: with more, its tensors leave the processor's caches
FEWEST_ROWS = 8  # of a batch that is not limited further


@dataclass(frozen=True)
class Opened:
    """A document of which the beginning is read.

    Attributes:
        tokens: number of tokens in it, with those read before it; None: more than a full ring keeps, or unknown.
        error: why it cannot be read.
    """

    number: int
    document: Document
    reader: TokenReader
    tokens: int | None = None
    error: Exception | None = None


def most_rows(engine: Engine, step: int) -> int | None:
    """Return the most batch rows that make steps of `step` tokens faster; None: any number may."""
    if not engine.device.on_host:
        return None
    return max(FEWEST_ROWS, STEP_TOKENS * (engine.threads or os.cpu_count() or 1) // step)


def rows_of_long(engine: Engine) -> int:
    """Return the batch rows for documents that are longer than a full ring: one of them fills a thread of a CPU."""
    return 1 if engine.device.on_host and engine.threads == 1 else FEWEST_ROWS


def formed(documents: Sequence[Opened], longest_step: int, threads: int) -> Iterator[list[Opened]]:
    """Yield batches of documents of similar lengths, which are known; the shortest documents come first."""
    ordered = sorted(documents, key=lambda opened: opened.tokens or 0)
    begun = 0
    while begun < len(ordered):
        rows = 1
        while begun + rows < len(ordered):
            step = min(longest_step, ordered[begun + rows].tokens or 1)
            if (rows + 1) * step > STEP_TOKENS * threads:
                break
            rows += 1
        yield ordered[begun : begun + rows]
        begun += rows


class Fitting:
    """The sizes of a scorer's rings.

    With batches of one document, each document has rings of its own size, so its scores depend on nothing else. Rings
    of larger batches grow with the documents, and never shrink.

    Args:
        evaluation: the settings of the run.
        each: whether each batch has rings of its own size.
        sized: whether rings may be smaller than `evaluation` says.

    Attributes:
        settings: the settings of the memory: those of the run, or with rings for shorter documents.
    """

    def __init__(self, evaluation: EvaluationSettings, each: bool, sized: bool) -> None:
        self._each = each
        self._choices = [evaluation]  # the largest first
        size = SMALLEST * 2
        while sized and size // 2 < evaluation.most_rows:
            smaller = [evaluation.for_documents(length) for length in (size // 2, size * 3 // 4)]
            self._choices[1:1] = [choice for choice in reversed(smaller) if choice is not evaluation]
            size *= 2
        self.settings = self._choices[-1]

    @property
    def read_ahead(self) -> int:
        """Number of tokens of a document that may have to be read to choose its rings, or its batch."""
        most = self._choices[0].most_rows
        if len(self._choices) > 1:
            return most
        return STEP_TOKENS if self._each and most <= SMALLEST else 0

    def takes(self, tokens: int | None) -> bool:
        """Return whether a document of so many tokens may join; None: its length is unknown."""
        return self._for(tokens) is self.settings if self._each else self.holds(tokens)

    def holds(self, tokens: int | None) -> bool:
        """Return whether a document of so many tokens fits."""
        whole = self.settings is self._choices[0]
        return whole or (tokens is not None and tokens <= self.settings.most_rows)

    def choose(self, tokens: int | None) -> EvaluationSettings:
        """Choose the rings for a new batch, whose longest document has so many tokens."""
        if self._each or not self.holds(tokens):
            self.settings = self._for(tokens)
        return self.settings

    def of_capacity(self, capacity: int) -> EvaluationSettings | None:
        """Return the settings whose largest ring has so many slots; None if there are none."""
        return next((choice for choice in self._choices if choice.capacity() == capacity), None)

    def _for(self, tokens: int | None) -> EvaluationSettings:
        if tokens is None:
            return self._choices[0]
        return next((choice for choice in reversed(self._choices) if choice.most_rows >= tokens), self._choices[0])
