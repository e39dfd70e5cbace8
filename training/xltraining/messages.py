"""Parts of messages: texts of errors and values of any kind, each short and on one line."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

__all__ = ["bounded", "first_line", "listed", "renamed", "shown"]

_LISTED = 12


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its class if it has no text."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shown(value: object) -> str:
    """Return a value of any kind as a short text on one line."""
    return " ".join(reprlib.repr(value).split())


def bounded(text: str, longest: int = 1500) -> str:
    """Return a text in one line that a terminal can show; of one with over `longest` characters, beginning and end."""
    line = text if text.isprintable() else "".join(m if m.isprintable() else ascii(m)[1:-1] for m in text)
    return line if len(line) <= longest else f"{line[: longest * 2 // 3 - 3]} … {line[-(longest // 3) :]}"


def listed(entries: Iterable[object], separator: str = ", ") -> str:
    """Join the first entries, and add how many more there are."""
    every = list(map(str, entries))
    more = [f"and {len(every) - _LISTED:,} more"] if len(every) > _LISTED else []
    return separator.join([*every[:_LISTED], *more])


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module whose names changed: an import of an old name says the new one."""

    def refuse(name: str) -> NoReturn:
        if name in names:
            raise ImportError(f"{module}.{name} is {names[name]} since this version.", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
