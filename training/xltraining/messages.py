"""Parts of messages: what an error says, and values of any kind, each short and in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

__all__ = ["first_line", "listed", "shown"]

_LISTED = 12
_LONGEST_ENTRY = 140


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its class where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shown(value: object) -> str:
    """Return a value of any kind, short and in one line."""
    return " ".join(reprlib.repr(value).split())


def listed(entries: Iterable[object], separator: str = ", ") -> str:
    """Return the first entries, each cut if it is long and as a terminal can show it, and how many more there are."""
    every = list(entries)
    first = [text if text.isprintable() else ascii(text)[1:-1] for text in map(str, every[:_LISTED])]
    short = [entry if len(entry) <= _LONGEST_ENTRY else f"{entry[:_LONGEST_ENTRY]}…" for entry in first]
    return separator.join([*short, *([f"and {len(every) - _LISTED:,} more"] if len(every) > _LISTED else [])])
