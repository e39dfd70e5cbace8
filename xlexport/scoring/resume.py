"""The state from which an interrupted run continues.

FILE.partial.state identifies the run. It says how much of FILE.partial belongs to the state, and holds everything that
is needed to write the rest byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy.typing as npt

from xlexport.atomic_output import naming
from xlexport.errors import ResumeError
from xlexport.scoring.partial_file import HINT, PartialFile
from xlexport.scoring.totals import Totals
from xlruntime import StateError
from xlruntime.messages import named, shown
from xlruntime.state import read_state, write_state

__all__ = ["SavedChunks", "SavedFields", "SavedRun", "changes", "of_a_state", "read_run"]

KIND = "xlexport score run"
VERSION = 3
BUSY = 20  # the run works at least this many times as long as writing a state takes


Fields = TypeVar("Fields", "SavedChunks", "SavedFields")


class SavedRun:
    """Writes the state of a run from time to time.

    Args:
        run: fields that are equal only for the same run (`changes`).
        every: seconds between two states; more if a state takes long to write.
    """

    def __init__(self, output: PartialFile, run: Mapping[str, Any], every: float) -> None:
        self._output = output
        self._run = run
        self._every = every
        self._due = time.monotonic() + every

    @property
    def due(self) -> bool:
        """Whether it is time to write the next state."""
        return time.monotonic() >= self._due

    def save(self, fields: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the output so far, and the state that is needed to continue from there."""
        began = time.monotonic()
        self._output.sync()
        state = {"run": self._run, "position": self._output.position, **fields}
        metadata = {"kind": KIND, "version": str(VERSION), "state": json.dumps(state)}
        with naming(self._output.path):
            write_state(self._output.state_path, metadata, arrays)
        ended = time.monotonic()
        self._due = ended + max(self._every, BUSY * (ended - began))


@dataclass(frozen=True)
class SavedChunks:
    """The fields of a state of a run by chunks (`chunks`), as read from JSON.

    Attributes:
        run, position, totals: as `SavedFields` has them; chunks: number of chunks that are done.
    """

    run: Mapping[str, Any]
    position: int
    chunks: int
    totals: Totals


@dataclass(frozen=True)
class SavedFields:
    """The fields of a state, as read from JSON.

    Attributes:
        run: fields that identify the run; position: bytes of FILE.partial that belong to the state.
        scorer: for `read_scorer`; records: for `Records.restore`; totals: sums over the finished documents.
    """

    run: Mapping[str, Any]
    position: int
    scorer: Mapping[str, Any]
    records: Any
    totals: Totals

    @property
    def done(self) -> int:
        """Number of finished documents, with or without a score."""
        return self.totals.documents + self.totals.failed


def read_run(
    output: PartialFile, run: Mapping[str, Any], kind: type[Fields]
) -> tuple[Fields, dict[str, npt.NDArray[Any]]] | None:
    """Read the last saved state of the same run; None if there is none yet.

    Args:
        kind: the class of its fields.

    Raises:
        ResumeError: the state belongs to another run; the message says what changed.
        StateError: the state is damaged.
    """
    if not os.path.lexists(output.state_path) or not output.partial.exists():
        return None
    metadata, arrays = read_state(output.state_path, KIND, VERSION, HINT)
    state = json.loads(metadata["state"])
    if found := changes(state["run"], run):
        raise ResumeError(
            f"{output.partial}: of another run: {'; '.join(found)}.",
            hint="Give what it began with, or begin again with --force.",
        )
    return kind(**{**state, "totals": Totals(**state["totals"])}), arrays


@contextlib.contextmanager
def of_a_state(output: PartialFile) -> Iterator[None]:
    """Turn an error about a state into one that names its file.

    Raises:
        ResumeError: names the file.
    """
    try:
        yield
    except StateError as error:
        raise ResumeError(f"{output.state_path}: {error.message}", hint=HINT) from error
    except ValueError as error:
        raise ResumeError(f"{output.state_path}: not the state of a run ({error}).", hint=HINT) from error


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences for people about what has changed, also in nested mappings."""
    found = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "inputs":
            found.append(_inputs(old, new))
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new)
        else:
            found.append(f"{named(name)} was {_stated(old)}, now {_stated(new)}")
    return found


def _inputs(old: Any, new: Any) -> str:
    """Say how the inputs of two runs differ, as `digest_inputs` describes them."""
    if old["count"] != new["count"]:
        return f"there were {old['count']:,} inputs, now {new['count']:,}"
    for entry, new_entry in zip(old["files"] or (), new["files"] or (), strict=False):
        if entry[0] != new_entry[0]:
            return f"input {named(entry[0])} is {named(new_entry[0])} now"
        if entry != new_entry:
            return f"input {named(entry[0])} has changed"
    return "an input has changed"


def _stated(value: Any) -> str:
    if value is None:
        return "not given"
    text = str(value) if isinstance(value, bool | float | str) else shown(value)
    return named(text if len(text) <= 40 else f"{text[:16]}…")
