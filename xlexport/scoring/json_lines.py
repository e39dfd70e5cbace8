"""Rows from JSON lines: each line is an object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from xlexport.scoring.inputs import Reading
from xlexport.scoring.rows import Row, too_long
from xlexport.scoring.text_source import TextSource, bounded_lines
from xlruntime import TextError
from xlruntime.limits import parse_json

__all__ = ["json_kind", "json_rows"]

MEMORY_OF_LINE = 16  # bytes of memory for the values of a line, per byte of its limit


def json_rows(source: TextSource, reading: Reading) -> Iterator[Row]:
    """Yield a row for each line that is not blank."""
    number = 0
    lines = bounded_lines(source, reading.line_limits.bytes)
    while True:
        name = f"{source.name}:{number + 1}"
        try:
            line = next(lines, b"")
        except (TextError, OSError) as error:  # nothing after it can be read
            yield Row(source.name if number == 0 else name, error)
            return
        if line == b"":
            return
        number += 1
        if line is None:
            yield Row(name, too_long(name, reading.line_limits, "line"))
        elif line.strip():
            try:
                yield Row(name, _object(line, name, reading), len(line))
            except TextError as error:
                yield Row(name, error)


def _object(line: bytes, name: str, reading: Reading) -> dict[str, Any]:
    """Return the object in a line of JSON.

    Raises:
        TextError: the line is not an object, or exceeds the limits.
    """
    limits = replace(reading.line_limits, bytes=MEMORY_OF_LINE * reading.line_limits.bytes)
    try:
        value = parse_json(line.strip(), limits.budget(name, TextError))
    except TextError as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError | RecursionError):
            raise
        raise TextError(
            f"{name}: not JSON ({_json_problem(cause)}).", hint="With --field, each line is an object."
        ) from cause
    if not isinstance(value, dict):
        raise TextError(f"{name}: {json_kind(value)}, expected a JSON object with field {reading.field!r}.")
    return value


def _json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line that is not JSON, and where."""
    if isinstance(error, json.JSONDecodeError):
        found = error.doc[error.pos : error.pos + 20]
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting")
        return f"{what} at character {error.pos + 1}: {found!r}" if found else f"{what} at its end"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"


def json_kind(value: Any) -> str:
    """Return JSON's name for the type of a value."""
    kinds = {bool: "true or false", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
