"""What the commands print: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from xlruntime.messages import one_line

if TYPE_CHECKING:
    pass

__all__ = [
    "INTERRUPTED",
    "Failure",
    "Interrupted",
    "failure",
    "print_json",
    "print_table",
    "standard_output",
    "tell",
]

STDOUT = "standard output"
INTERRUPTED = 130  # exit status after Ctrl-C or SIGTERM: the one that shells use


class Interrupted(click.ClickException):
    """Ctrl-C ended a command, which says what it left."""

    exit_code = INTERRUPTED


def tell(message: str) -> None:
    """A line for the person at the terminal."""
    click.echo(one_line(message), err=True)


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
