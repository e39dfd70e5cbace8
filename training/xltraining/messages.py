"""Parts of messages: what an error says, and values of any kind, each short and in one line."""

from __future__ import annotations

import reprlib

__all__ = ["first_line", "shown"]


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its class where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shown(value: object) -> str:
    """Return a value of any kind, short and in one line."""
    return " ".join(reprlib.repr(value).split())
