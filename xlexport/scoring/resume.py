"""An output file that appears when it is complete, and the state from which an interrupted run goes on.

While a run goes on there are FILE.partial and beside it FILE.partial.state: what the run is of, how much of the output
belongs to the state, and all that is needed to write the rest of it byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from xlexport.errors import OutputExistsError, ResumeError
from xlruntime.state_file import read_state, temporary_of, write_state

__all__ = ["PartialFile", "SavedRun", "changes", "naming", "read_run"]

KIND = "xlexport score run"
VERSION = 1
BUSY = 20  # a state is written when the run has worked so many times as long as writing one takes
REPAIR = "Begin again with --force."


class PartialFile:
    """Bytes that become FILE when all are there; until then they are in FILE.partial.

    Attributes:
        path: FILE; partial: where it grows; state_path: the state beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.state_path = path.with_name(self.partial.name + ".state")
        self._file: Any = None

    @property
    def position(self) -> int:
        """Bytes written."""
        return int(self._file.tell())

    def check(self, force: bool, resume: bool) -> None:
        """Refuse to replace what is there.

        Raises:
            FileNotFoundError: there is no folder for it.
            OutputExistsError: FILE or FILE.partial is there, and neither `force` nor for the latter `resume`.
        """
        folder = self.path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder to write {self.path.name} into. Create it first.")
        if self.path.exists() and not self.path.is_file():
            raise OutputExistsError(
                f"{self.path}: not a regular file.", repair="Give another, or leave out -o for stdout."
            )
        if self.partial.exists() and not (force or resume):
            raise OutputExistsError(
                f"{self.partial}: of a run that was interrupted.",
                repair="Go on with --resume, or begin again with --force.",
            )
        if self.path.exists() and not (force or resume):
            raise OutputExistsError(
                f"{self.path}: a file is there already.", repair="Add --force to replace it, or give another path."
            )

    def open(self, keep: int | None = None) -> None:
        """Begin to write: anew, or after the first `keep` bytes of what an earlier run has left.

        Raises:
            ResumeError: it has left fewer, or another run writes it or has just completed it. OSError: the file cannot
                be written.
        """
        with naming(self.path):
            self._file = open(self.partial, "ab")  # noqa: SIM115  # closed by `publish`, `discard` or `close`
        _lock(self._file, self.partial)
        size = os.fstat(self._file.fileno()).st_size
        if keep is None:
            keep = 0
            self.forget_state()
        if size < keep:
            raise ResumeError(f"{self.partial}: {size:,} bytes, but {keep:,} had been written.", repair=REPAIR)
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, raw: bytes) -> None:
        """More of the output."""
        with naming(self.path):
            self._file.write(raw)

    def flush(self) -> None:
        """Nothing to do: nobody reads a file that is not complete."""

    def sync(self) -> None:
        """Have on disk what was written."""
        with naming(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Everything is there: let FILE appear."""
        self.sync()
        os.replace(self.partial, self.path)
        self._file.close()
        self.forget_state()

    def discard(self) -> None:
        """Let nothing be left."""
        self.close()
        self.partial.unlink(missing_ok=True)
        self.forget_state()

    def forget_state(self) -> None:
        """Remove the state, and what a run that was killed as it wrote one has left."""
        for path in (self.state_path, temporary_of(self.state_path)):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave it as it is."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk has been reported before
                self._file.close()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system in the block are of `path`, and not of files beside it that nobody gave.

    Raises:
        OSError: with the name of `path`.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class SavedRun:
    """Writes the state of a run now and then.

    Args:
        run: what tells whether another run is the same one (`changes`).
        every: seconds between two states; more where a state takes long to write.

    Attributes:
        size: bytes of the last state; 0 before the first.
    """

    def __init__(self, output: PartialFile, run: Mapping[str, Any], every: float) -> None:
        self.size = 0
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
            self.size = write_state(self._output.state_path, KIND, VERSION, state, arrays)
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


def _lock(file: Any, path: Path) -> None:
    """Refuse a second run on the same file; where system and file system have such locks."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ResumeError(
            f"{path}: another run is writing it.", repair="Wait for its end, or give another name."
        ) from error
    except OSError:
        return
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):  # published before the lock
        raise ResumeError(
            f"{path}: another run has just completed it.", repair="Look at its output, or give another name."
        )
