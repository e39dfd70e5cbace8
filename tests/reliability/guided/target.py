"""A target of guided fuzzing, and the allowed results of one input: a value, or an error of ours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol

from tests.reliability.judging import Outcome, refusal

__all__ = ["BrokenPromiseError", "InputFile", "Target", "judge"]


class BrokenPromiseError(Exception):
    """A reader gave another result than a plainer way of reading."""


class Target(Protocol):
    """One reader of foreign bytes. Each process makes it once, with a folder for its files.

    Attributes:
        errors: our classes of errors that the reader may raise; any other error is a finding.
        longest: bytes of the longest input to try.
        words: parts of inputs that guessing would find late.
        of_library: whether a library reads most of the input.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    longest: ClassVar[int] = 4096
    words: ClassVar[tuple[bytes, ...]] = ()
    of_library: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        """Prepare what every input needs."""

    def seeds(self) -> Iterable[bytes]:
        """Yield the first inputs: sound ones of each kind, and some harmful ones."""

    def read(self, raw: bytes) -> object:
        """Read one input with the reader, and use the result."""


class InputFile:
    """A file whose content changes many thousand times a second. Each content has a different modification time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._written = 0

    def __del__(self) -> None:
        os.close(self._file)

    def write(self, raw: bytes) -> Path:
        """Replace the content and return the path."""
        self._written += 1
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, raw, 0)
        # The clock of files is too coarse: a reader with a cache would not see the change.
        os.utime(self._file, ns=(self._written, self._written))
        return self.path


def judge(target: Target, raw: bytes) -> Outcome:
    """Read one input and return the outcome: `right`, a refusal, or one of `tests.reliability.judging.BUGS`."""
    try:
        target.read(raw)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        return refusal(error, target.errors)
    return Outcome("right")
