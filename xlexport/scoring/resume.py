"""The state from which an interrupted run goes on.

FILE.partial.state holds what the run is of, how much of FILE.partial belongs to the state, and all that is needed to
write the rest of it byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from xlexport.atomic_output import naming
from xlexport.errors import ResumeError
from xlexport.scoring.partial_file import REPAIR, PartialFile
from xlruntime.state_file import read_state, write_state

__all__ = ["SavedRun", "changes", "read_run"]

KIND = "xlexport score run"
VERSION = 1
BUSY = 20  # a state is written when the run has worked so many times as long as writing one takes


class SavedRun:
    """Writes the state of a run now and then.

    Args:
        run: what tells whether another run is the same one (`changes`).
        every: seconds between two states; more where a state takes long to write.
    """

    def __init__(self, output: PartialFile, run: Mapping[str, Any], every: float) -> None:
        self._output = output
        self._run = run
        self._every = every
        self._due = time.monotonic() + every

    @property
    def due(self) -> bool:
        """Whether it is time for the next."""
        return time.monotonic() >= self._due

    def save(self, fields: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the output as far as it is, and what it takes to go on from there."""
        began = time.monotonic()
        self._output.sync()
        state = {"run": self._run, "position": self._output.position, **fields}
        with naming(self._output.path):
            write_state(self._output.state_path, KIND, VERSION, state, arrays)
        ended = time.monotonic()
        self._due = ended + max(self._every, BUSY * (ended - began))


def read_run(output: PartialFile, run: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
    """The state of the same run, as it was saved last; None where there is none yet.

    Raises:
        ResumeError: it is of another run; says what changed. StateError: it is damaged.
    """
    if not output.state_path.exists() or not output.partial.exists():
        return None
    state, arrays = read_state(output.state_path, KIND, VERSION, REPAIR)
    if found := changes(state["run"], run):
        raise ResumeError(
            f"{output.partial}: of another run: {'; '.join(found)}.",
            repair="Give what it began with, or begin again with --force.",
        )
    return state, arrays


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was, for people; nested mappings are gone through."""
    found = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "inputs":
            found.append(_inputs(before[name], now[name]))
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new)
        else:
            found.append(f"{name} was {_stated(old)}, now {_stated(new)}")
    return found


def _inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if before["count"] != now["count"]:
        return f"there were {before['count']:,} inputs, now {now['count']:,}"
    for (name, digest), (new_name, new_digest) in zip(before["files"] or [], now["files"] or [], strict=False):
        if name != new_name:
            return f"input {name} is {new_name} now"
        if digest != new_digest:
            return f"input {name} has changed"
    return "an input has changed"


def _stated(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"
