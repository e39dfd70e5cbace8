"""Save a scorer between two steps, and resume it bit-equal to a run that did not stop.

The state has the memory of the batch with its counters, and for each row its document and the position in it. Text is
not saved: the documents are read again up to these positions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import Document
from .errors import StateError, XlruntimeError
from .fitting import AUTO
from .json_fields import read_fields
from .memory import BatchMemory, MemoryPlan
from .scorer import Scorer
from .stream_state import LARGEST_COUNT, array_problems
from .walk import Walk

__all__ = ["SavedScorer", "read_scorer", "resume_scorer", "scorer_state"]

SKIPPED = 1 << 14  # tokens read again at a time
LARGEST_LOG_PROB = 1e-3  # of a token: rounding may add this much to 0
REPAIR = "Begin again."


@dataclass(frozen=True)
class _Row:
    """A row of the batch that walks a document, with the fields of `Walk`."""

    number: int
    name: str
    held: int
    context: int
    position: int
    unscored: int
    log_prob_sum: float


@dataclass(frozen=True)
class _Counters:
    """The counters of the batch's memory, with the fields of `BatchMemory`."""

    batch_size: int
    capacity: int
    offset: int
    memory_length: tuple[int, ...]
    position: tuple[int, ...]


@dataclass(frozen=True)
class SavedScorer:
    """The saved state of a scorer, without the tensors of its memory, with the fields of `Scorer`."""

    taken: int
    last: int | None
    spaced: bool
    rows: tuple[_Row | None, ...]
    memory: _Counters | None

    @property
    def active(self) -> dict[int, _Row]:
        """The rows of unfinished documents, by the numbers of the documents."""
        return {row.number: row for row in self.rows if row is not None}

    def problems(self, scorer: Scorer) -> list[str]:
        """Return the reasons why this scorer cannot have this state between two steps."""
        walking = [row for row in self.rows if row is not None]
        found = _outside("taken", self.taken, LARGEST_COUNT)
        if scorer.batch_size != AUTO and len(self.rows) > scorer.batch_size:
            found.append(f"there are {len(self.rows)} rows, expected at most {scorer.batch_size}")
        if len(self.active) < len(walking):
            found.append("two rows walk one document")
        most = scorer.engine.bundle.vocab_size - 1
        if self.last is not None:
            found += _outside("last", self.last, most) if scorer.continuous else ["last is a token, expected null"]
        elif self.spaced:
            found.append("spaced is true, but last is null")
        for row in walking:
            found += _outside("number", row.number, self.taken - 1) + _outside("held", row.held, most)
            found += _outside("position", row.position, LARGEST_COUNT)
            found += _outside("context", row.context, LARGEST_COUNT)
            found += self._of_row(row)
        if not found:
            found += self._without_memory(walking) if self.memory is None else self._of_memory(self.memory, scorer)
        return found

    @property
    def _unpredicted(self) -> int:
        """Number of tokens at the beginning of a row's document, or of its context, that nothing predicts."""
        return 1 if self.last is None else 0

    def _of_row(self, row: _Row) -> list[str]:
        found = []
        if row.unscored != (0 if row.context else self._unpredicted):
            found.append(f"unscored is {row.unscored}, but last is {self.last} and context is {row.context}")
        if row.position < row.unscored:
            found.append(f"position is {row.position}, but {row.unscored} token had no context")
        if row.position == row.context == 0 and row.held != self.last:
            found.append(f"held is {row.held}, but last is {self.last}")
        if row.log_prob_sum > LARGEST_LOG_PROB * row.position:
            found.append(f"log_prob_sum is {row.log_prob_sum}, expected at most 0")
        return found

    def _without_memory(self, walking: list[_Row]) -> list[str]:
        """Return the reasons why this is not a state from before the first step."""
        begun = [row for row in walking if row.context + row.position > self._unpredicted or row.log_prob_sum]
        if begun or len(walking) < len(self.rows):
            return ["memory is null, but documents were scored"]
        return []

    def _of_memory(self, memory: _Counters, scorer: Scorer) -> list[str]:
        evaluation, rows = scorer.evaluation, len(self.rows)
        found = _outside("offset", memory.offset, LARGEST_COUNT)
        if not memory.batch_size == len(memory.memory_length) == len(memory.position) == rows > 0:
            return [*found, f"memory has {memory.batch_size} rows, expected {rows}"]
        fitted = scorer.fitting.of_capacity(memory.capacity)
        if fitted is None:
            return [*found, f"capacity is {str(memory.capacity)[:20]}, expected {evaluation.capacity()} or less"]
        first = evaluation.most_rows if evaluation.first_memory == "zeros" else 0
        for row, length, position in zip(self.rows, memory.memory_length, memory.position, strict=True):
            most = memory.offset if evaluation.longest_part is None else min(memory.offset, evaluation.longest_part)
            found += _outside("memory.position", position, most)
            expected = min(first + position, fitted.most_rows)
            if length != expected:
                found.append(f"memory_length is {str(length)[:20]}, expected {expected}")
            if row is not None and not self._is_at(row, position, scorer):
                found.append(f"memory.position is {str(position)[:20]}, but {row.position} tokens were read")
        return found

    def _is_at(self, row: _Row, position: int, scorer: Scorer) -> bool:
        """Return whether a row may have read `position` tokens since its last beginning or restart."""
        read, evaluation = row.context + row.position - self._unpredicted, scorer.evaluation
        if not math.isfinite(row.log_prob_sum):  # the row restarted at an unknown place
            return scorer.continuous or position <= read
        if evaluation.whole:
            return position <= read
        if scorer.continuous and self.last is not None:  # the previous documents count too
            return position >= read or evaluation.longest_part is not None
        return position == read if evaluation.longest_part is None else (read - position) % evaluation.longest_part == 0


def scorer_state(scorer: Scorer) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return fields for JSON, and tensors. Call it only between two steps of `Scorer.steps`."""
    memory = scorer.memory
    rows = tuple(None if walk is None else _row(walk) for walk in scorer.rows)
    saved = SavedScorer(scorer.taken, scorer.last, scorer.spaced, rows, None if memory is None else _counters(memory))
    arrays = {} if memory is None else {entry.input: memory.array(entry) for entry in memory.entries}
    return dataclasses.asdict(saved), arrays


def _row(walk: Walk) -> _Row:
    return _Row(walk.number, walk.name, walk.held, walk.context, walk.position, walk.unscored, walk.log_prob_sum)


def _counters(memory: BatchMemory) -> _Counters:
    length, position = memory.memory_length.tolist(), memory.position.tolist()
    return _Counters(memory.batch_size, memory.capacity, memory.offset, tuple(length), tuple(position))


def _outside(name: str, number: int, most: int) -> list[str]:
    return [] if 0 <= number <= most else [f"{name} is {str(number)[:20]}, expected 0 to {most}"]


def read_scorer(scorer: Scorer, fields: object, arrays: Mapping[str, npt.NDArray[Any]]) -> SavedScorer:
    """Read and check a state from `scorer_state`, whose fields were stored as JSON.

    Args:
        scorer: a scorer with the same model and settings as the saved one.

    Raises:
        StateError: such a scorer cannot have these fields or tensors; the message lists the problems.
    """
    try:
        saved = read_fields(SavedScorer, fields)
    except ValueError as error:
        raise StateError(f"not the state of a scorer ({error}).", repair=REPAIR) from error
    problems = saved.problems(scorer)
    if not problems and saved.memory is not None:
        engine, memory = scorer.engine, saved.memory
        fitted = scorer.fitting.of_capacity(memory.capacity) or scorer.evaluation
        plan = MemoryPlan(engine.bundle.memory, {}, {}, fitted, memory.capacity, engine.device)
        problems = array_problems(arrays, plan, memory.batch_size)
    if problems:
        raise StateError(f"not the state of such a scorer ({'; '.join(problems[:5])}).", repair=REPAIR)
    return saved


def resume_scorer(
    scorer: Scorer, saved: SavedScorer, arrays: Mapping[str, npt.NDArray[Any]], documents: Iterable[Document]
) -> Iterator[Document]:
    """Resume a saved scorer with a new one.

    Args:
        scorer: a new scorer with the same model and settings.
        saved, arrays: the state that `read_scorer` has checked.
        documents: the same documents, from the first.

    Returns:
        The documents that have not been taken yet, for `Scorer.steps`.

    Raises:
        StateError: a document has changed: it cannot be read, or has other tokens at the saved position.
    """
    waiting = iter(documents)
    active = saved.active
    opened: dict[int, Document] = {}
    for number in range(saved.taken):
        document = next(waiting, None)
        if document is None:
            raise StateError(
                f"{number:,} documents, but {saved.taken:,} had been taken.", repair="Give the same ones again."
            )
        if number in active:
            opened[number] = document
    scorer.taken, scorer.last, scorer.spaced = saved.taken, saved.last, saved.spaced
    scorer.rows = [None if row is None else _reopened(scorer, row, opened[row.number]) for row in saved.rows]
    memory = saved.memory
    if memory is not None:
        fitting = scorer.fitting
        fitting.settings = fitting.of_capacity(memory.capacity) or scorer.evaluation
        if not all(walk is None or fitting.holds(walk.tokens) for walk in scorer.rows):
            raise StateError("a document has more tokens than the rings of the state hold.", repair=REPAIR)
        scorer.memory = scorer.engine.new_memory(fitting.settings, memory.batch_size, memory.capacity)
        scorer.memory.load_rows(arrays, memory.offset, memory.capacity)
        scorer.memory.memory_length = np.array(memory.memory_length, np.int64)
        scorer.memory.position = np.array(memory.position, np.int64)
    return waiting


def _reopened(scorer: Scorer, row: _Row, document: Document) -> Walk:
    """Return the walk of a document after reading it again up to the saved position."""
    opened = scorer.open(row.number, document)
    reader = opened.reader
    position, unscored = row.position, row.unscored
    left, context, last = row.context + position, 0, None
    try:
        if opened.error is not None:
            raise opened.error
        while left and len(piece := reader.take(min(left, SKIPPED))):
            left, context, last = left - len(piece), context + piece.context, piece
    except (XlruntimeError, OSError) as error:
        raise StateError(
            f"{document.name}: cannot be read again ({error}).", repair="Give the same documents again."
        ) from error
    same = (
        document.name == row.name
        and not left
        and context == row.context
        and (last is None or int(last.ids[-1]) == row.held)
    )
    if not same:
        raise StateError(f"{document.name}: not the text that was left there.", repair="Give the same documents again.")
    return Walk(
        row.number,
        reader,
        row.held,
        position,
        context,
        tokens=opened.tokens,
        first=last if position == unscored == 1 else None,  # no part has reported it before the first step
        unscored=unscored,
        log_prob_sum=row.log_prob_sum,
        begun_at=position,
    )
