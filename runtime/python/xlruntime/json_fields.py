"""Build dataclasses from untrusted JSON; report every value of the wrong type or out of range."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .messages import shown

__all__ = ["OPTIONAL", "Pattern", "Size", "read_fields"]

T = TypeVar("T")
OPTIONAL = {"optional": True}  # metadata of a field that may be missing; all others must be there
LISTED = 5  # problems that a message lists
UNIONS = (Union, types.UnionType)
NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The pattern of a text, and its meaning: `Annotated[str, Pattern("[0-9]+", "digits")]`."""

    pattern: str
    meaning: str

    def __contains__(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None


Size = Annotated[int, range(1, 2**31)]  # of an axis, and numbers of as many


def read_fields(kind: type[T], value: object) -> T:
    """Return a JSON object as the dataclass `kind`, with lists as tuples and inner objects as dataclasses.

    Raises:
        ValueError: fields are missing, unknown, of another type or out of range, or the dataclass itself refuses them;
            the message lists the first few problems.
    """
    problems: list[str] = []
    result = _read(kind, value, "", problems)
    if problems:
        more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        raise ValueError("; ".join(problems[:LISTED]) + more)
    return result


def _read(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Return `value` as the type `hint`. If it does not fit, add to `problems`; the result is then not valid."""
    kinds = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    fitting = next((kind for kind in kinds if _fits(kind, value)), None)
    if fitting is None:
        problems.append(f"{where or 'it'} is {_shown(value)}, expected {_expected(hint)}")
        return None
    if get_origin(fitting) is Annotated:  # with a range
        fitting = get_args(fitting)[0]
    origin = get_origin(fitting)
    if dataclasses.is_dataclass(fitting):
        return _read_dataclass(fitting, value, where, problems)
    if origin is tuple:
        return tuple(_read(get_args(fitting)[0], part, f"{where}[{i}]", problems) for i, part in enumerate(value))
    if origin is Mapping:
        return {name: _read(get_args(fitting)[1], part, _inner(where, name), problems) for name, part in value.items()}
    return value


def _read_dataclass(kind: Any, value: dict[str, Any], where: str, problems: list[str]) -> Any:
    before = len(problems)
    hints = _hints(kind)
    for field in dataclasses.fields(kind):
        if field.name not in value and not field.metadata.get("optional"):
            problems.append(f"{_inner(where, field.name)} is missing")
    problems += [f"{_inner(where, name)} is unknown" for name in value if name not in hints]
    read = {
        name: _read(hints[name], part, _inner(where, name), problems) for name, part in value.items() if name in hints
    }
    if len(problems) > before:
        return None
    try:
        return kind(**read)
    except ValueError as error:
        problems.append(str(error).rstrip("."))
        return None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(kind: Any, value: object) -> bool:
    """Return whether a value has the type `kind` and its range: booleans are not numbers; inner values come later."""
    if get_origin(kind) is Annotated:
        bare, limit = get_args(kind)
        return _fits(bare, value) and value in limit
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if (length := _length(kind)) is not None:
        return isinstance(value, list) and len(value) == length
    return kind is Any or type(value) is _json_type(kind)


def _length(kind: Any) -> int | None:
    """Return the number of parts of a tuple; None: any number, or another type."""
    return len(get_args(kind)) if get_origin(kind) is tuple and Ellipsis not in get_args(kind) else None


def _json_type(kind: Any) -> type:
    if get_origin(kind) is tuple:
        return list
    return dict if get_origin(kind) is Mapping or dataclasses.is_dataclass(kind) else kind


def _expected(hint: Any) -> str:
    if get_origin(hint) in UNIONS:
        return " or ".join(map(_expected, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is Annotated:
        limit = get_args(hint)[1]
        whole = isinstance(limit, range)
        return f"a whole number from {limit.start} to {limit.stop - 1}" if whole else str(limit.meaning)
    if (length := _length(hint)) is not None:
        return f"a list of {length}"
    return NAMES[_json_type(hint)]


def _shown(value: object) -> str:
    """Return a value for a message; for objects and lists, only their kind."""
    return NAMES[type(value)] if isinstance(value, dict | list) else shown(value)


def _inner(where: str, name: str) -> str:
    spelling = name if name.isidentifier() and name.isascii() else ascii(name)[:40]
    return f"{where}.{spelling}" if where else spelling[:40]
