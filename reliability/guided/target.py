"""What a target of guided fuzzing is, and what may come of one input: a result, or an error of ours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol

from reliability.judging import Outcome, refusal

__all__ = ["BrokenPromiseError", "InputFile", "Target", "judge"]


class BrokenPromiseError(Exception):
    """A reader gave a result, but not the one that a plainer way of reading gives."""


class Target(Protocol):
    """One reader of foreign bytes. It is made once a process, with a folder of its own for files.

    Attributes:
        errors: classes of ours that the reader may raise; any other error is a finding.
        longest: bytes of the longest input that is tried.
        words: what inputs are made of, which guessing would find late.
        of_library: a library reads most of the input.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    longest: ClassVar[int] = 4096
    words: ClassVar[tuple[bytes, ...]] = ()
    of_library: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        """Prepare what every input needs."""

    def seeds(self) -> Iterable[bytes]:
        """Make the inputs to begin with: sound ones of each kind, and some that do harm."""

    def read(self, raw: bytes) -> object:
        """Let the reader read one input, and use what it gives."""


class InputFile:
    """A file that gets new content many thousand times a second. Each content has its own time of change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._written = 0

    def __del__(self) -> None:
        os.close(self._file)

    def write(self, raw: bytes) -> Path:
        """Replace the content; returns the path."""
        self._written += 1
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, raw, 0)
        # The clock of files is too coarse: a reader that keeps what it read last would not see the change.
        os.utime(self._file, ns=(self._written, self._written))
        return self.path


def judge(target: Target, raw: bytes) -> Outcome:
    """Read one input and say what came of it: a result (`right`), a refusal, or one of `reliability.judging.BUGS`."""
    try:
        target.read(raw)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        return refusal(error, target.errors)
    return Outcome("right")
