"""Print what commands show: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import IO, Any

import click

from xlruntime.messages import bounded, many_lines, one_line

__all__ = [
    "DRAWING",
    "INTERRUPTED",
    "QUIET",
    "WARNINGS",
    "Failure",
    "Interrupted",
    "drawing",
    "encode_output",
    "escaped_json",
    "failure",
    "is_quiet",
    "print_json",
    "print_line",
    "print_table",
    "print_text",
    "standard_output",
    "tell",
    "tell_lines",
    "tell_problem",
    "tell_usage",
]

DRAWING = threading.RLock()
"""Held by what writes to the terminal: a bar of progress, or a message instead of it."""

STDOUT = "standard output"
LONGEST_NAME, LONGEST_VALUE, LONGEST_TABLE = 120, 1200, 25_000  # characters
LEAST_ROOM = 20  # characters of a column in which words are wrapped
COLOURS = {"Error:": "red", "Warning:": "yellow", "FAILED": "red", "NO": "red", "ok": "green", "yes": "green"}
QUIET = "xlexport.quiet"  # a key of click's context
INTERRUPTED = 130  # exit status after Ctrl-C or SIGTERM, as in shells


class Interrupted(click.ClickException):
    """A command was ended by Ctrl-C; the message says what it left."""

    exit_code = INTERRUPTED


@contextlib.contextmanager
def drawing(picture: Path, left: str) -> Iterator[None]:
    """Say that the block has written a picture, and what Ctrl-C leaves.

    Args:
        left: what is complete if Ctrl-C ends the block, and the next step.

    Raises:
        Interrupted: Ctrl-C; with these words.
    """
    done = "replaced" if picture.exists() else "wrote"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted before {picture} was drawn. {left}") from None
    tell(f"{done} {picture}")


def is_quiet() -> bool:
    """Return whether the command that runs was given --quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def tell(message: str) -> None:
    """Print a note on standard error, for the person at the terminal; print nothing with --quiet."""
    if not is_quiet():
        tell_problem(message)


def tell_problem(message: str) -> None:
    """Print an error or a warning on standard error, also with --quiet."""
    with _without_bar():
        click.echo(_coloured(one_line(message), sys.stderr), err=True)


def _coloured(line: str, stream: IO[str]) -> str:
    """Colour the first word of a line for a terminal if the word is a verdict; NO_COLOR leaves it plain."""
    word, space, rest = line.partition(" ")
    plain = word not in COLOURS or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return line if plain or not stream.isatty() else click.style(word, COLOURS[word], bold=True) + space + rest


class _Warnings(logging.Handler):
    """Print the warnings of a log on standard error, also with --quiet."""

    def emit(self, record: logging.LogRecord) -> None:
        tell_problem(f"Warning: {record.getMessage()}")


WARNINGS = _Warnings(logging.WARNING)


def tell_lines(text: str) -> None:
    """Print the lines of a log on standard error, also with --quiet; control characters are escaped."""
    with _without_bar():
        click.echo(many_lines(text), err=True)


def tell_usage(error: click.ClickException) -> None:
    """Print an error of usage as click does, but escape control characters in its quotations."""
    text = io.StringIO()
    error.show(text)
    for line in many_lines(text.getvalue()).splitlines():
        click.echo(_coloured(line, sys.stderr), err=True)


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """Remove the bar of progress, if there is one, until an update comes after the block."""
    with DRAWING:
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            for bar in list(tqdm._instances):
                bar.clear(nolock=True)
        yield


def print_json(value: Any, err: bool = False) -> None:
    """Print a JSON value on one line; numbers that JSON does not have become null.

    Characters that would control a terminal or change the order of text become JSON's escapes: the output may reach
    one through a pipe.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)
    with _without_bar() if err else standard_output():
        click.echo(escaped_json(text), err=err)


def escaped_json(text: str) -> str:
    """Return the same JSON, in which characters that a terminal cannot show are escaped."""
    return re.sub(r"[^\n -~]+", lambda found: "".join(m if m.isprintable() else _escape(m) for m in found[0]), text)


def _escape(mark: str) -> str:
    """Return JSON's escape of a character; beyond 16 bits these are two escapes."""
    raw = mark.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print rows in two aligned columns, bounded; each is one line, which a terminal wraps within its column."""
    lines = [(bounded(name, LONGEST_NAME), bounded(value, LONGEST_VALUE)) for name, value in rows]
    width = max((len(name) for name, _ in lines), default=0)
    fitting = sum(size < LONGEST_TABLE for size in accumulate(width + len(value) for _, value in lines))
    lines[fitting:] = [("", f"and {more:,} more rows: --json has them")] if (more := len(lines) - fitting) else []
    room = shutil.get_terminal_size().columns - width - 2
    wraps = sys.stdout.isatty() and room >= LEAST_ROOM
    for name, value in lines:
        parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) if wraps else [value]
        for first, part in zip_longest([name], parts or [""], fillvalue=""):
            with standard_output():
                click.echo(f"{_coloured(f'{first:<{width}}', sys.stdout)}  {_coloured(part, sys.stdout)}".rstrip())


def print_line(line: str) -> None:
    """Print a line on standard output."""
    with standard_output():
        click.echo(one_line(line))


def print_text(text: str) -> None:
    """Print a text on standard output unchanged, but on a terminal with control characters escaped."""
    with standard_output():  # without `color`, click would remove some escape sequences
        click.echo(many_lines(text) if sys.stdout.isatty() else text, color=True)


def encode_output() -> None:
    """Make standard output UTF-8, whatever the code page; a terminal keeps its own, and shows escapes for the rest."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Remove the bar of progress if the block writes to a terminal, and let its errors name standard output.

    Raises:
        OSError: with the name of standard output; unchanged if the reader has closed the pipe (EPIPE).
    """
    try:
        with _without_bar() if sys.stdout.isatty() else contextlib.nullcontext():
            yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OSError(error.errno, error.strerror, STDOUT) from error


@dataclass(frozen=True)
class Failure:
    """An expected error, for a person or for a program.

    Attributes:
        error: what is wrong, and where; hint: what to do about it, or None.
        type: the class of the error; status: the exit status.
    """

    error: str
    hint: str | None
    type: str
    status: int = 1

    def show(self, as_json: bool) -> None:
        """Print it on standard error: a line for a person, or one JSON object."""
        if as_json:
            print_json({"error": self.error, "hint": self.hint, "type": self.type}, err=True)
        else:
            tell_problem(" ".join(filter(None, (f"Error: {self.error}", self.hint))))


def failure(error: Exception) -> Failure | None:
    """Return what to print about an error; None: the error is unexpected, so it is a bug."""
    from xlexport.errors import TrustError, XlexportError
    from xlruntime.errors import XlruntimeError
    from xltraining.errors import XltrainingError

    kind = type(error).__name__
    if isinstance(error, XlexportError | XlruntimeError | XltrainingError):
        return Failure(error.message, error.hint, kind, 2 if isinstance(error, TrustError) else 1)
    if isinstance(error, OSError):
        return Failure(*_system(error), kind)
    if isinstance(error, MemoryError):
        hint = "Use a smaller --batch-size, --segment-len or --mem-len, or a larger machine."
        return Failure("out of memory.", hint, kind)
    return None


def _system(error: OSError) -> tuple[str, str | None]:
    """Return the system's message and a suggestion."""
    hints = {
        errno.ENOSPC: "Free some space, or write to another disk; nothing was published.",
        errno.ENOENT: "Check the path.",
        errno.EISDIR: "Give a file.",
        errno.EEXIST: "Give another path.",
        errno.EBADF: "A standard stream is closed: open it, or give a file.",
        errno.EACCES: "Check its permissions.",
        errno.EROFS: "Write to another place.",
        errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or write to another place.",
    }
    if error.strerror is None:
        return str(error), None
    where = f"{error.filename}: " if error.filename is not None else ""
    hint = hints.get(error.errno or 0) if error.filename != STDOUT or error.errno == errno.EBADF else None
    return f"{where}{error.strerror}.", hint
