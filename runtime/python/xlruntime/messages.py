"""Format parts of messages in one short line: errors, values of any kind, and lists of any length."""

from __future__ import annotations

import difflib
import os
import reprlib
import shlex
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "bounded",
    "counted",
    "first_line",
    "listed",
    "many_lines",
    "named",
    "near_path",
    "one_line",
    "quoted",
    "shown",
]

LISTED = 5  # entries that a list shows
LONGEST_NAME = 100
LONGEST_TEXT = 40
LONGEST_VALUE = 100


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its class if it has no text, as a terminal can show it."""
    return one_line(str(error).strip().partition("\n")[0] or type(error).__name__)


def shown(value: object) -> str:
    """Return a value of any kind, cut if it is long.

    The value comes from a file and may have any size. A value that contains itself many times is never written whole.
    """
    if isinstance(value, str):
        return repr(value[:LONGEST_TEXT])
    return " ".join(reprlib.repr(value).split()).encode("ascii", "backslashreplace").decode("ascii")[:LONGEST_VALUE]


def near_path(path: Path) -> str:
    """Return the question whether a missing path was meant to be the one most like it in its folder, or nothing."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    near = [] if path.name in names else difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean {quoted(path.with_name(near[0]))}?" if near else ""


def named(name: object) -> str:
    """Return a name from a file without quotes; characters that a terminal cannot show become escapes."""
    text = str(name)
    return text if text.isprintable() and len(text) <= LONGEST_NAME else ascii(text[:LONGEST_NAME])


def quoted(word: object) -> str:
    """Return a word of a command in a message as a shell needs it, such as the name of a file with spaces."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    marks = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text))
    return f"$'{''.join(marks)}'"


def listed(items: Iterable[str]) -> str:
    """Return the first few items, and the number of further ones."""
    every = list(items)
    more = f" and {len(every) - LISTED:,} more" if len(every) > LISTED else ""
    return ", ".join(every[:LISTED]) + more


def counted(n: int, what: str) -> str:
    """Return a number and its noun, with a plural s unless the number is one."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def many_lines(text: str) -> str:
    """Return a text as a terminal can show it, with its lines and tabs."""
    return "".join(mark if mark.isprintable() or mark in "\n\t" else ascii(mark)[1:-1] for mark in text)


def one_line(text: str) -> str:
    r"""Return a text in one line: line ends and terminal commands become escapes, such as \n.

    Names of files and documents may contain any characters.
    """
    return text if text.isprintable() else "".join(m if m.isprintable() else ascii(m)[1:-1] for m in text)


def bounded(text: str, longest: int = 1500) -> str:
    """Return a text in one line, as `one_line` does; of a longer one than `longest` characters, beginning and end."""
    line = one_line(text)
    return line if len(line) <= longest else f"{line[: longest * 2 // 3 - 3]} … {line[-(longest // 3) :]}"
