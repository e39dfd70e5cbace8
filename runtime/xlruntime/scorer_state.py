"""Save a scorer between two steps, and go on from there, bit-equal to not having stopped.

What is saved: the memory of the batch with its counters, and for each row which document it walks and how far. Text is
not: the documents are read again up to there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import Document, TokenReader
from .errors import StateError, XlruntimeError
from .scorer import Scorer, Walk

__all__ = ["active_documents", "resume_scorer", "scorer_state"]

SKIPPED = 1 << 14  # tokens read again at a time


def scorer_state(scorer: Scorer) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Fields for JSON, and tensors. Only between two steps of `Scorer.steps`."""
    memory = scorer.memory
    fields: dict[str, Any] = {
        "taken": scorer.taken,
        "last": scorer.last,
        "rows": [None if walk is None else _fields(walk) for walk in scorer.rows],
        "memory": None,
    }
    if memory is None:
        return fields, {}
    fields["memory"] = {
        "batch_size": memory.batch_size,
        "capacity": memory.capacity,
        "offset": memory.offset,
        "memory_length": memory.memory_length.tolist(),
        "position": memory.position.tolist(),
    }
    return fields, {entry.input: memory.array(entry) for entry in memory.entries}


def active_documents(fields: Mapping[str, Any]) -> set[int]:
    """Numbers of the documents that had begun and were not done."""
    return {row["number"] for row in fields["rows"] if row is not None}


def resume_scorer(
    scorer: Scorer,
    fields: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    documents: Iterable[Document],
) -> Iterator[Document]:
    """Let a new scorer go on where a saved one was.

    Args:
        scorer: made with the same model and settings.
        fields, arrays: what `scorer_state` gave.
        documents: the same ones, from the first.

    Returns:
        Those that have not been taken yet, for `Scorer.steps`.

    Raises:
        StateError: a document is not what it was; it cannot be read, or other tokens stand where it was left.
    """
    waiting = iter(documents)
    active = active_documents(fields)
    opened: dict[int, Document] = {}
    for number in range(fields["taken"]):
        document = next(waiting, None)
        if document is None:
            raise StateError(
                f"{number:,} documents, but {fields['taken']:,} had been taken.", repair="Give the same ones again."
            )
        if number in active:
            opened[number] = document
    scorer.taken, scorer.last = fields["taken"], fields["last"]
    scorer.rows = [None if row is None else _reopened(scorer, row, opened[row["number"]]) for row in fields["rows"]]
    saved = fields["memory"]
    if saved is not None:
        scorer.memory = scorer.engine.new_memory(scorer.evaluation, saved["batch_size"], saved["capacity"])
        scorer.memory.load_rows(arrays, saved["offset"], saved["capacity"])
        scorer.memory.memory_length = np.array(saved["memory_length"], np.int64)
        scorer.memory.position = np.array(saved["position"], np.int64)
    return waiting


def _fields(walk: Walk) -> dict[str, Any]:
    return {
        "number": walk.number,
        "name": walk.name,
        "held": walk.held,
        "position": walk.position,
        "unscored": walk.unscored,
        "log_prob_sum": walk.log_prob_sum,
    }


def _reopened(scorer: Scorer, row: Mapping[str, Any], document: Document) -> Walk:
    """The walk of a document, read again as far as it was."""
    reader = TokenReader(document, scorer.engine.tokenizer, scorer.engine.bundle.vocab_size)
    position, unscored = row["position"], row["unscored"]
    left, last = position, None
    try:
        while left and len(piece := reader.take(min(left, SKIPPED))):
            left, last = left - len(piece), piece
    except (XlruntimeError, OSError) as error:
        raise StateError(
            f"{document.name}: cannot be read again ({error}).", repair="Give the same documents again."
        ) from error
    same = document.name == row["name"] and not left and (last is None or int(last.ids[-1]) == row["held"])
    if not same:
        raise StateError(f"{document.name}: not the text that was left there.", repair="Give the same documents again.")
    return Walk(
        row["number"],
        reader,
        row["held"],
        position,
        first=last if position == unscored == 1 else None,  # not told of before the first step
        unscored=unscored,
        log_prob_sum=row["log_prob_sum"],
        begun_at=position,
    )
