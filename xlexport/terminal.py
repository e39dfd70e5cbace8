"""What the commands print: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

__all__ = [
    "Failure",
    "StatusLine",
    "bar",
    "counted",
    "duration",
    "failure",
    "one_line",
    "print_json",
    "print_table",
    "progress_bar",
    "standard_output",
    "tell",
]

EVERY = 0.2  # seconds between two pictures of a status line
WIDTH = 24  # of a bar
STDOUT = "standard output"


def tell(message: str) -> None:
    """A line for the person at the terminal."""
    click.echo(one_line(message), err=True)


def one_line(text: str) -> str:
    """A text as a terminal can show it: what would end the line or be obeyed becomes an escape, like \\n.

    Names of files and documents may hold anything.
    """
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)


def counted(n: int, what: str) -> str:
    """How many there are of what, with an s where it is not one."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def print_json(value: Any, err: bool = False) -> None:
    """One JSON value on a line; numbers that JSON does not have become null."""
    with contextlib.nullcontext() if err else standard_output():
        click.echo(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False), err=err)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Two aligned columns."""
    width = max((len(name) for name, _ in rows), default=0)
    with standard_output():
        for name, value in rows:
            click.echo(f"{name:<{width}}  {value}".rstrip())


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Writing there: errors say so.

    Raises:
        OSError: with its name; as any, where a reader has read enough (EPIPE).
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OSError(error.errno, error.strerror, STDOUT) from error


class StatusLine:
    """A line on standard error that is drawn anew again and again: only on a terminal, and one that can do that.

    Attributes:
        visible: whether it is shown at all.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.visible = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = -math.inf
        self._shown = False

    def draw(self, line: Callable[[], str]) -> None:
        """Show what `line` gives, unless it has just been drawn."""
        now = time.monotonic()
        if not self.visible or now - self._drawn < EVERY:
            return
        self._drawn, self._shown = now, True
        columns = shutil.get_terminal_size().columns
        self._stream.write(f"\r{line()[: columns - 1]}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def bar(fraction: float) -> str:
    """A share of the whole, as a number and as a picture."""
    filled = round(fraction * WIDTH)
    return f"{fraction:4.0%} {'█' * filled}{'░' * (WIDTH - filled)}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as a clock shows them."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@contextlib.contextmanager
def progress_bar(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while the block runs, which is given what to tell how far it came since."""
    line, done, began = StatusLine(), 0, time.monotonic()

    def picture() -> str:
        left = f"  {duration((length - done) * (time.monotonic() - began) / done)} left" if 0 < done <= length else ""
        return f"{bar(min(done / max(length, 1), 1.0))}  {label}{left}"

    def advance(more: int) -> None:
        nonlocal done
        done += more
        line.draw(picture)

    line.draw(picture)
    try:
        yield advance
    finally:
        line.clear()


@dataclass(frozen=True)
class Failure:
    """An expected error, for a person or for a program.

    Attributes:
        error: what is wrong, and where; repair: what to do about it; None: there is nothing to suggest.
        type: the class of the error.
        text: error and repair in one line.
    """

    error: str
    repair: str | None
    type: str
    text: str

    def show(self, as_json: bool) -> None:
        """Print it on standard error: a line for a person, or one JSON object."""
        if as_json:
            print_json({"error": self.error, "repair": self.repair, "type": self.type}, err=True)
        else:
            tell(f"Error: {self.text}")


def failure(error: Exception) -> Failure | None:
    """Return what to say of an error; None: it was not expected, so it is a bug."""
    from xlexport.errors import XlexportError
    from xlruntime.errors import XlruntimeError
    from xltraining.errors import XltrainingError

    kind = type(error).__name__
    if isinstance(error, XlexportError | XlruntimeError | XltrainingError):
        return Failure(error.message, error.repair, kind, str(error))
    if isinstance(error, OSError):
        what, repair = _system(error)
    elif isinstance(error, MemoryError):
        what = "out of memory."
        repair = "Use a smaller --batch-size, --segment-len or --mem-len, or a larger machine."
    else:
        return None
    return Failure(what, repair, kind, " ".join(filter(None, (what, repair))))


def _system(error: OSError) -> tuple[str, str | None]:
    """Return what the system says, and what to do about it."""
    repairs = {
        errno.ENOSPC: "Free some space, or write to another disk; nothing was published.",
        errno.ENOENT: "Check the path.",
        errno.EISDIR: "Give a file.",
        errno.EACCES: "Check its permissions.",
        errno.EROFS: "Write to another place.",
    }
    if error.strerror is None:
        return str(error), None
    where = f"{error.filename}: " if error.filename is not None else ""
    repair = repairs.get(error.errno or 0) if error.filename != STDOUT else None
    return f"{where}{error.strerror}.", repair
