"""Save a scorer between two steps, and resume it bit-equal to a run that did not stop.

The state has the memory of the batch with its counters, and the progress of each row's document. Text is not saved: the
documents are read again up to these positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy.typing as npt

from .documents import Document
from .errors import StateDamagedError, StateMismatchError, XlruntimeError
from .held_text import HeldText
from .json_fields import read_fields
from .memory import MemoryPlan
from .messages import listed
from .scorer import ActiveDocument, Progress, Scorer
from .state import LARGEST_COUNT, array_problems

__all__ = ["SavedScorer", "read_scorer", "resume_scorer", "scorer_state"]

SKIPPED = 1 << 14  # tokens read again at a time
HINT = "Begin again."
PROGRESS = [entry.name for entry in fields(Progress)]


@dataclass(frozen=True)
class _Counters:
    """The counters of the batch's memory, with the fields of `Memory`."""

    capacity: int
    offset: int
    memory_length: tuple[int, ...]
    position: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.capacity, self.offset, *self.memory_length, *self.position)
        if not 0 <= min(numbers) <= max(numbers) <= LARGEST_COUNT or len(self.memory_length) != len(self.position):
            raise ValueError("its counters are impossible for a memory")


@dataclass(frozen=True)
class SavedScorer:
    """The saved state of a scorer, without the tensors of its memory, with the fields of `Scorer`."""

    taken: int
    last: int | None
    spaced: bool
    held: str
    begun: bool
    rows: tuple[Progress | None, ...]
    memory: _Counters | None

    @property
    def active(self) -> dict[int, Progress]:
        """The progress of unfinished documents, by their numbers."""
        return {row.number: row for row in self.rows if row is not None}


def scorer_state(scorer: Scorer) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return fields for JSON, and tensors. Call it only between two steps of `Scorer.steps`."""
    memory = scorer.memory
    rows = tuple(row and Progress(**{name: getattr(row, name) for name in PROGRESS}) for row in scorer.rows)
    held = scorer.held
    saved = SavedScorer(scorer.taken, scorer.last, scorer.spaced, held.raw.hex(), held.begun, rows, None)
    if memory is None:
        return asdict(saved), {}
    position = memory.position.tolist()  # of idle rows, too: their room bounds the next step
    for idle in (row for row, document in enumerate(rows) if document is None and not scorer.continuous):
        memory.restart(idle, refill=True)
    memory.position[:] = position
    counters = _Counters(memory.capacity, memory.offset, tuple(memory.memory_length.tolist()), tuple(position))
    return asdict(replace(saved, memory=counters)), memory.arrays()


def read_scorer(scorer: Scorer, fields: object, arrays: Mapping[str, npt.NDArray[Any]]) -> SavedScorer:
    """Read a state from `scorer_state`, whose fields were stored as JSON under a digest.

    Args:
        scorer: a scorer with the same model and settings as the saved one.

    Raises:
        StateDamagedError: the fields are not a scorer's, or the tensors have other shapes than its memory.
    """
    try:
        saved = read_fields(SavedScorer, fields)
    except ValueError as error:
        raise StateDamagedError(f"not the state of a scorer ({error}).", hint=HINT) from error
    if saved.memory is not None:
        engine, memory = scorer.engine, saved.memory
        settings = scorer.fitting.of_capacity(memory.capacity) or scorer.evaluation
        plan = MemoryPlan(engine.bundle.memory, {}, {}, settings, memory.capacity, engine.device)
        if problems := array_problems(arrays, plan, len(memory.position)):
            raise StateDamagedError(f"not the state of such a scorer ({listed(problems)}).", hint=HINT)
    return saved


def resume_scorer(
    scorer: Scorer, saved: SavedScorer, arrays: Mapping[str, npt.NDArray[Any]], documents: Iterable[Document]
) -> Iterator[Document]:
    """Resume a saved scorer with a new one.

    Args:
        scorer: a new scorer with the same model and settings.
        saved, arrays: the state that `read_scorer` returned.
        documents: the same documents, from the first.

    Returns:
        The documents that have not been taken yet, for `Scorer.steps`.

    Raises:
        StateMismatchError: a document has changed: it cannot be read, or has other tokens at the saved position.
    """
    waiting: Iterator[Document] = iter(documents)
    active = saved.active
    opened: dict[int, Document] = {}
    for number in range(saved.taken):
        document = next(waiting, None)
        if document is None:
            raise StateMismatchError(
                f"{number:,} documents, expected the {saved.taken:,} that the saved run had read.",
                hint="Give the same documents again.",
            )
        if number in active:
            opened[number] = document
    scorer.taken, scorer.last, scorer.spaced = saved.taken, saved.last, saved.spaced
    scorer.held = HeldText(bytes.fromhex(saved.held), saved.begun)
    if scorer.joins:
        waiting = scorer.coming(waiting)
    scorer.rows = [None if row is None else _reopened(scorer, row, opened[row.number]) for row in saved.rows]
    memory = saved.memory
    if memory is not None:
        fitting = scorer.fitting
        fitting.settings = fitting.of_capacity(memory.capacity) or scorer.evaluation
        scorer.memory = scorer.engine.new_memory(fitting.settings, len(memory.position), memory.capacity)
        scorer.memory.load_rows(arrays, memory.offset, memory.capacity, memory.memory_length, memory.position)
    return waiting


def _reopened(scorer: Scorer, row: Progress, document: Document) -> ActiveDocument:
    """Return a document after reading it again up to the saved position."""
    opened = scorer.open(row.number, document)
    reader = opened.reader
    left, context, last = row.context + row.position, 0, None
    try:
        if opened.error is not None:
            raise opened.error
        while left and len(piece := reader.take(min(left, SKIPPED))):
            left, context, last = left - len(piece), context + piece.context, piece
    except (XlruntimeError, OSError) as error:
        raise StateMismatchError(
            f"{document.name}: cannot be read again ({error}).", hint="Give the same documents again."
        ) from error
    same = (
        document.name == row.name
        and not left
        and context == row.context
        and (last is None or int(last.ids[-1]) == row.held)
    )
    if not same:
        raise StateMismatchError(
            f"{document.name}: not the text that was left there.", hint="Give the same documents again."
        )
    return ActiveDocument(
        **{**{name: getattr(row, name) for name in PROGRESS}, "log_probs": replace(row.log_probs)},
        reader=reader,
        tokens=opened.tokens,
        first=last if row.position == row.unscored == 1 else None,  # no part has reported it before the first step
        begun_at=row.position,
    )
