"""The state of a stream in a file: write it, and check it before it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .errors import OptionError, StateError
from .evaluation import EvaluationSettings
from .json_fields import read_fields
from .limits import Limits
from .memory import MemoryPlan
from .state_file import LIMITS, read_state, write_state

__all__ = ["LARGEST_COUNT", "SavedStream", "array_problems", "read_stream", "write_stream"]

KIND = "xlexport stream"
VERSION = 2  # 1: evaluation settings in a fixed set of fields
LARGEST_COUNT = 2**62  # tokens: far from overflowing
REPAIR = "Save the stream again with Stream.save."


@dataclass(frozen=True)
class SavedStream:
    """The fields of a state, without the tensors of its memory.

    Attributes:
        fingerprint: the bundle's fingerprint.
        evaluation: the settings of the walk, as `EvaluationRules.choose` takes them.
        capacity: slots of the largest ring; offset: rows written to the rings.
        memory_length: visible rows; history: number of tokens read since the last restart of the document.
        pending: id of the held token; position: number of tokens taken of the document, the held one included.
    """

    fingerprint: str
    evaluation: Mapping[str, int | bool]
    capacity: int
    offset: int
    memory_length: int
    history: int
    pending: int | None
    position: int

    def problems(self, evaluation: EvaluationSettings, vocab_size: int) -> list[str]:
        """Return the reasons why no walk under these settings can have this state."""
        most = {
            "offset": LARGEST_COUNT,
            "memory_length": evaluation.most_rows,
            "position": LARGEST_COUNT,
            "history": self.position,
            "pending": vocab_size - 1,
        }
        found = {name: number for name in most if (number := getattr(self, name)) is not None}
        problems = [
            f"{name} is {str(number)[:20]}, expected 0 to {most[name]}"
            for name, number in found.items()
            if not 0 <= number <= most[name]
        ]
        if evaluation.max_segment(self.capacity) < 1:
            problems.append(f"capacity is {self.capacity}, but {evaluation.most_rows} rows are kept")
        if (self.pending is None) != (self.position == 0):
            problems.append(f"{self.position} tokens were read, and {self.pending} is held")
        return problems


def write_stream(file: Path, saved: SavedStream, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a state; the file appears whole or not at all.

    Raises:
        OSError: the file cannot be written; an older one stays as it was.
    """
    write_state(file, KIND, VERSION, dataclasses.asdict(saved), arrays)


def read_stream(
    engine: Engine, file: Path, limits: Limits = LIMITS
) -> tuple[SavedStream, EvaluationSettings, dict[str, npt.NDArray[Any]]]:
    """Read a state of this bundle, and check it: fields, settings, and tensors.

    Args:
        limits: as in `read_state`.

    Raises:
        StateError: the file is not a stream's state, is damaged, or belongs to another bundle.
        FileNotFoundError: the file does not exist.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected a stream's state that Stream.save wrote.")
    state, arrays = read_state(file, KIND, VERSION, REPAIR, limits)
    if state.get("fingerprint") != engine.bundle.fingerprint:
        raise StateError(
            f"{file}: saved from another bundle than {engine.folder}.", repair="Open the one it was saved from."
        )
    try:
        saved = read_fields(SavedStream, state)
        evaluation = engine.bundle.evaluation.choose(**saved.evaluation)
        if problems := saved.problems(evaluation, engine.bundle.vocab_size):
            raise OptionError("; ".join(problems))
        if evaluation.to_dict() != saved.evaluation:
            raise OptionError(f"evaluation is {saved.evaluation}, expected {list(evaluation.to_dict())}")
    except (TypeError, ValueError) as error:  # includes OptionError
        raise StateError(f"{file}: not a stream's state ({error}).", repair=REPAIR) from error
    # Check the file's sizes before any memory is allocated.
    plan = MemoryPlan(engine.bundle.memory, {}, {}, evaluation, saved.capacity, engine.device)
    if problems := array_problems(arrays, plan, 1):
        raise StateError(f"{file}: {'; '.join(problems)}.", repair=REPAIR)
    return saved, evaluation, arrays


def array_problems(arrays: Mapping[str, npt.NDArray[Any]], plan: MemoryPlan, batch_size: int) -> list[str]:
    """Return the problems of a memory's tensors under this plan."""
    problems = []
    for entry in plan.entries:
        expected, found = tuple(plan.sizes(entry, batch_size)), arrays.get(entry.input)
        if found is None:
            problems.append(f"{entry.input} is missing")
        elif found.shape != expected or found.dtype != entry.dtype:
            problems.append(f"{entry.input} is {found.dtype} {found.shape}, expected {entry.dtype} {expected}")
        elif not np.isfinite(found).all():
            problems.append(f"{entry.input} has numbers that are not finite")
    return problems
