"""An output file that grows in FILE.partial, and appears as FILE when it is complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from xlexport.atomic_output import check_file, move_into_place, naming
from xlexport.errors import OutputExistsError, ResumeError
from xlruntime.state_file import temporary_of

__all__ = ["REPAIR", "PartialFile"]

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
            OutputFolderError: its folder does not exist.
            OutputExistsError: FILE is not a file, or FILE or FILE.partial is there and neither `force` nor `resume`.
        """
        check_file(self.path, force=True)
        if self.partial.exists() and not (force or resume):
            raise OutputExistsError(
                f"{self.partial}: of a run that was interrupted.",
                repair="Go on with --resume, or begin again with --force.",
            )
        check_file(self.path, force or resume)

    def open(self, keep: int | None = None) -> None:
        """Begin to write: from the start, or after the first `keep` bytes of what an earlier run has left.

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
        move_into_place(self.partial, self.path)
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
