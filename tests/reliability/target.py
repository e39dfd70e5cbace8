"""A target: a reader of foreign bytes. Each input gives a result or one error of ours, at little cost."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol

LONGEST_MESSAGE = 2000
MOST_SECONDS = 2.0  # processor time for one input, because wall time means nothing on a busy machine
MOST_MEGABYTES = 256  # that one input may take in addition to all inputs before it


class BrokenPromiseError(Exception):
    """A reader did what no input may make it do."""


class Target(Protocol):
    """One reader of foreign bytes, with a folder for its files.

    Attributes:
        errors: our classes of errors that the reader may raise; any other error is a finding.
        longest: bytes of the longest input that the search tries.
        words: parts of inputs that guessing would find late.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    longest: ClassVar[int] = 4096
    words: ClassVar[tuple[bytes, ...]] = ()

    def __init__(self, folder: Path) -> None:
        """Prepare what every input needs."""

    def seeds(self) -> Iterable[bytes]:
        """Yield the first inputs: a sound one, sound ones of other kinds, and some harmful ones."""

    def read(self, raw: bytes) -> object:
        """Read one input with the reader, and use the result.

        Raises:
            BrokenPromiseError: the result is not that of a plainer way of reading.
        """


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


def judge(target: Target, raw: bytes) -> bool:
    """Read one input, and return whether it was refused.

    Raises:
        BrokenPromiseError: it took too much time or memory, or a terminal cannot show its error.
        BaseException: any error that is not one of the target's.
    """
    began, peak = time.process_time(), _megabytes()
    try:
        target.read(raw)
    except target.errors as error:
        check_message(error)
        refused = True
    else:
        refused = False
    if (seconds := time.process_time() - began) > MOST_SECONDS:
        raise BrokenPromiseError(f"slow: {seconds:.1f} s")
    if (taken := _megabytes() - peak) > MOST_MEGABYTES:
        raise BrokenPromiseError(f"memory: {taken:,.0f} MB")
    return refused


def check_message(error: Exception) -> None:
    """Check that an error is one short line that a terminal can show."""
    message = str(error)
    if not message or not message.isprintable() or len(message) > LONGEST_MESSAGE:
        raise BrokenPromiseError(f"bad message: {ascii(message)[:LONGEST_MESSAGE]}") from error


def _megabytes() -> float:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
