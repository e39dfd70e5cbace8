"""JSON lines: a document in a field of each line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, cast

from xlexport.scoring.inputs import CHUNK, Reading
from xlexport.scoring.text_source import TextSource
from xlruntime import Document, TextError
from xlruntime.documents import utf8_bytes
from xlruntime.messages import listed

__all__ = ["json_lines"]

SHOWN = 40  # characters of what was found


def json_lines(source: TextSource, reading: Reading, keep: bool) -> Iterator[Document]:
    """Yield a document for each line that is not blank. If a line is not such an object, reading its document fails."""
    number = 0
    lines = io.BufferedReader(source, CHUNK)
    while True:
        name = f"{source.name}:{number + 1}"
        try:
            line = lines.readline()
        except (TextError, OSError) as error:  # nothing can be read behind it
            yield Document(source.name if number == 0 else name, _refused(error))
            return
        if not line:
            return
        number += 1
        if not line.strip():
            continue
        try:
            text, own_name = _field_of(line, name, reading.field, reading.id_field, reading.ids)
        except TextError as error:
            yield Document(name, _refused(error))
            continue
        if reading.ids:
            yield Document(own_name, cast(Any, text))
        else:
            yield Document(own_name, cast(BinaryIO, TextSource(own_name, partial(_text, text, own_name), True, keep)))


def _text(text: str, name: str) -> BinaryIO:
    return io.BytesIO(utf8_bytes(text, name))


def _refused(error: Exception) -> BinaryIO:
    """A source that fails when it is read."""

    def fail() -> BinaryIO:
        raise error

    return cast(BinaryIO, TextSource("", fail, at_hand=True))


def _field_of(line: bytes, name: str, field: str | None, id_field: str | None, ids: bool) -> tuple[Any, str]:
    """What the field of a line of JSON holds, and the document's name.

    Args:
        name: of the document where `id_field` has none.
        ids: it must be a list, not text.

    Raises:
        TextError: the line is not an object, or its field has another type.
    """
    try:
        value = json.loads(line.strip().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TextError(
            f"{name}: not JSON ({_json_problem(error)}).", repair="With --field, each line is an object."
        ) from error
    if not isinstance(value, dict):
        raise TextError(f"{name}: {_json_kind(value)}, expected a JSON object with field {field!r}.")
    text = value.get(field)
    if isinstance(text, list if ids else str):
        own = value.get(id_field) if id_field is not None else None
        if own is None:
            return text, name
        return text, own if isinstance(own, str) else json.dumps(own, ensure_ascii=False)
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
    """What JSON calls a value like this."""
    kinds = {bool: "true or false", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
