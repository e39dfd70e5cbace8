"""Parts of messages: texts of errors and values of any kind, each short and on one line."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

__all__ = ["first_line", "listed", "shown"]

_LISTED = 12
_LONGEST_ENTRY = 140


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its class if it has no text."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shown(value: object) -> str:
    """Return a value of any kind as a short text on one line."""
    return " ".join(reprlib.repr(value).split())


def listed(entries: Iterable[object], separator: str = ", ") -> str:
    """Join the first entries, each cut if it is long and escaped for a terminal, and add how many more there are."""
    every = list(entries)
    first = [text if text.isprintable() else ascii(text)[1:-1] for text in map(str, every[:_LISTED])]
    short = [entry if len(entry) <= _LONGEST_ENTRY else f"{entry[:_LONGEST_ENTRY]}…" for entry in first]
    return separator.join([*short, *([f"and {len(every) - _LISTED:,} more"] if len(every) > _LISTED else [])])
