"""An output file that grows in FILE.partial, and appears as FILE when it is complete."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlexport.atomic_output import check_file, file, naming
from xlexport.errors import OutputExistsError, ResumeError

__all__ = ["HINT", "PartialFile"]

HINT = "Start again with --force."
LEAVE_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # and never wait for the other end of a pipe


class PartialFile:
    """An output that becomes FILE when it is complete; until then its bytes are in FILE.partial.

    Args:
        finish: writes FILE from the complete FILE.partial, if FILE has another format; None: both have the same bytes.

    Attributes:
        name: FILE for messages; path: FILE; partial: the growing file; state_path: the state in the same folder.
    """

    def __init__(self, path: Path, finish: Callable[[Path, Path], None] | None = None) -> None:
        self.name, self.path = str(path), path
        self._finish = finish
        self.partial = path.with_name(path.name + ".partial")
        self.state_path = path.with_name(self.partial.name + ".state")
        self._file: Any = None
        self._may_replace = True

    @property
    def position(self) -> int:
        """Number of bytes written so far."""
        return int(self._file.tell())

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has written the whole output."""
        return self.path.exists() and not self.partial.exists()

    def check(self, force: bool, resume: bool) -> None:
        """Refuse to replace existing files, now and when FILE appears.

        Raises:
            OutputFolderError: its folder does not exist.
            OutputExistsError: FILE is not a file; FILE or FILE.partial exists without `force` or `resume`; or
            FILE.partial was not left by a run.
        """
        self._may_replace = force or resume
        check_file(self.path, force=True)
        if os.path.lexists(self.partial):
            self._check_partial(self.partial.lstat())
        if self.partial.exists() and not (force or resume):
            raise OutputExistsError(
                f"{self.partial}: of a run that was interrupted.",
                hint="Continue with --resume, or start again with --force.",
            )
        check_file(self.path, force or resume)

    def open(self, keep: int | None = None) -> None:
        """Begin to write from the start, or after the first `keep` bytes of an earlier run.

        Raises:
            ResumeError: FILE.partial has fewer bytes.
            OutputExistsError: as `check`. OSError: the file cannot be written.
        """
        check_file(self.path, self._may_replace)  # another run may have completed it since `check`
        if self.partial.is_symlink():
            self._check_partial(self.partial.lstat())

        def opener(path: str, flags: int) -> int:
            return os.open(path, (flags if keep is None else flags & ~os.O_CREAT) | LEAVE_LINKS, 0o666)

        with naming(self.path):
            self._file = open(self.partial, "ab", opener=opener)  # noqa: SIM115  # see `publish`, `close`
        self._check_partial(os.fstat(self._file.fileno()))
        size = os.fstat(self._file.fileno()).st_size
        if keep is None:
            keep = 0
            self.forget_state()
        if size < keep:
            raise ResumeError(f"{self.partial}: {size:,} bytes, but {keep:,} had been written.", hint=HINT)
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, raw: bytes) -> None:
        """Append bytes to the output."""
        with naming(self.path):
            self._file.write(raw)

    def sync(self) -> None:
        """Make sure that everything written is on the disk."""
        with naming(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Publish the complete output as FILE.

        Raises:
            OutputExistsError: FILE has appeared meanwhile and must not be replaced.
        """
        self.sync()
        if self._finish is None:
            self._check()
            with naming(self.path):
                self.partial.replace(self.path)
        else:
            with naming(self.path), file(self.path, self._check) as temporary:
                self._finish(self.partial, temporary)
            self.partial.unlink(missing_ok=True)
        self._file.close()
        self.forget_state()

    def discard(self) -> None:
        """Remove the unfinished output and its state."""
        self.close()
        self.partial.unlink(missing_ok=True)
        self.forget_state()

    def forget_state(self) -> None:
        """Remove the state."""
        self.state_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the unfinished output and keep it."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk has been reported before
                self._file.close()

    def _check(self) -> None:
        """Refuse to replace a FILE that has appeared meanwhile."""
        check_file(self.path, self._may_replace)

    def _check_partial(self, status: os.stat_result) -> None:
        """Refuse links, which may lead to another person's file, and anything else that is not a plain file."""
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
            return
        what = "a link" if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) else "not a file"
        raise OutputExistsError(
            f"{self.partial}: {what}, so no run has left it.", hint="Remove it, or give another path."
        )
