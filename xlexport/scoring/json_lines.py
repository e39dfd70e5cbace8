"""Documents from JSON lines: one field of each line holds a document."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, cast

from xlexport.scoring.inputs import CHUNK, Reading
from xlexport.scoring.regions import RegionSource, regions_of_field
from xlexport.scoring.text_source import TextSource
from xlruntime import Document, TextError
from xlruntime.documents import utf8_bytes
from xlruntime.limits import Limits, parse_json
from xlruntime.messages import listed

__all__ = ["json_lines"]

SHOWN = 40  # characters of what was found
LONGEST_NAME = 1000  # characters; every record repeats the name of its document
MEMORY_OF_LINE = 16  # bytes of memory for the values of a line, per byte of its limit


def json_lines(source: TextSource, reading: Reading, keep: bool) -> Iterator[Document]:
    """Yield a document for each line that is not blank. Reading it fails if the line is not such an object."""
    number = 0
    lines = io.BufferedReader(source, CHUNK)
    while True:
        name = f"{source.name}:{number + 1}"
        try:
            line = lines.readline(reading.line_limits.bytes + 1)  # the newline does not count
            is_whole = len(line) <= reading.line_limits.bytes or line.endswith(b"\n")
            while not is_whole and not lines.readline(CHUNK).endswith(b"\n") and lines.peek(1):
                pass
        except (TextError, OSError) as error:  # nothing after it can be read
            yield Document(source.name if number == 0 else name, _refused(error))
            return
        if not line:
            return
        number += 1
        if not line.strip():
            continue
        try:
            if not is_whole:
                raise _too_long(name, reading.line_limits)
            text, own_name, regions = _field_of(line, name, reading)
            edges = [] if regions is None else regions_of_field(text, regions, str(reading.region_field), name)
        except TextError as error:
            yield Document(name, _refused(error))
            continue
        if reading.ids:
            yield Document(own_name, cast(Any, text))
        else:
            opener = partial(_text, text, own_name)
            held = TextSource(own_name, opener, True, keep)
            if reading.regions and reading.region_field is None:
                held = RegionSource(own_name, opener, True, reading.document_limits, keep)
            held.edges = edges
            held.held = len(line)
            yield Document(own_name, cast(BinaryIO, held), reading.document_limits)


def _text(text: str, name: str) -> BinaryIO:
    return io.BytesIO(utf8_bytes(text, name))


def _too_long(name: str, limits: Limits) -> TextError:
    return TextError(
        f"{name}: a line of more than {limits.bytes:,} bytes.",
        repair="Check that it is JSON lines, or allow longer ones: --max-document-bytes.",
    )


def _refused(error: Exception) -> BinaryIO:
    """Return a source that raises an error when it is read."""

    def fail() -> BinaryIO:
        raise error

    return cast(BinaryIO, TextSource("", fail, at_hand=True))


def _field_of(line: bytes, name: str, reading: Reading) -> tuple[Any, str, Any]:
    """Return the content of a JSON line's field, the document's name, and the content of `region_field` or None.

    Args:
        name: the document's name if `id_field` has none.

    Raises:
        TextError: the line is not an object, exceeds the limits, or its field has another type.
    """
    field, id_field, ids = reading.field, reading.id_field, reading.ids
    limits = replace(reading.line_limits, bytes=MEMORY_OF_LINE * reading.line_limits.bytes)
    try:
        value = parse_json(line.strip(), limits.budget(name, TextError))
    except TextError as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError | RecursionError):
            raise
        raise TextError(
            f"{name}: not JSON ({_json_problem(cause)}).", repair="With --field, each line is an object."
        ) from cause
    if not isinstance(value, dict):
        raise TextError(f"{name}: {_json_kind(value)}, expected a JSON object with field {field!r}.")
    text = value.get(field)
    if isinstance(text, list if ids else str):
        own = value.get(id_field) if id_field is not None else None
        regions = value.get(reading.region_field, "") if reading.region_field is not None else None
        if own is None:
            return text, name, regions
        own_name = own if isinstance(own, str) else json.dumps(own, ensure_ascii=False)
        if len(own_name) > LONGEST_NAME:
            raise TextError(
                f"{name}: a name of {len(own_name):,} characters in field {id_field!r}, expected at most "
                f"{LONGEST_NAME:,}.",
                repair="Check --id-field.",
            )
        return text, own_name, regions
    what = "token ids in a list" if ids else "text"
    fields = listed(repr(other[:SHOWN]) for other in value) or "nothing"
    found = f"{_json_kind(text)} there" if field in value else f"only {fields}"
    raise TextError(f"{name}: expected {what} in field {field!r}, found {found}.", repair="Check --field.")


def _json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line that is not JSON, and where."""
    if isinstance(error, json.JSONDecodeError):
        found = error.doc[error.pos : error.pos + 20]
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting")
        return f"{what} at character {error.pos + 1}: {found!r}" if found else f"{what} at its end"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"


def _json_kind(value: Any) -> str:
    """Return JSON's name for the type of a value."""
    kinds = {bool: "true or false", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
