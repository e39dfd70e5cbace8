"""What stands in documents that are not plain text: a line of JSON, or token ids; errors say what was found instead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from xlruntime import TextError, TokenError
from xlruntime.documents import Ids
from xlruntime.messages import listed

__all__ = ["MARK", "field_of", "ids_of_words", "no_ids"]

MARK = b"\xef\xbb\xbf"  # that some editors put before UTF-8
SHOWN = 40  # characters of what was found


def ids_of_words(words: Sequence[bytes], name: str) -> Ids:
    """Token ids that are written as numbers.

    Raises:
        TokenError: one is not, or has more than 64 bits.
    """
    ids = np.empty(len(words), np.int64)
    for place, word in enumerate(words):
        try:
            ids[place] = int(word)
        except (ValueError, OverflowError) as error:
            shown = word[:SHOWN].decode("utf-8", "backslashreplace")
            raise no_ids(name, repr(shown) + ("…" if len(word) > SHOWN else "")) from error
    return ids


def no_ids(name: str, found: str) -> TokenError:
    """That a document does not hold token ids."""
    return TokenError(
        f"{name}: not token ids separated by white space (found {found}).", repair="Leave out --ids for text."
    )


def field_of(line: bytes, name: str, field: str | None, id_field: str | None, ids: bool) -> tuple[Any, str]:
    """What the field of a line of JSON holds, and the document's name.

    Args:
        name: of the document where `id_field` has none.
        ids: it must be a list, not text.

    Raises:
        TextError: the line is no object, or has nothing of the kind there.
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
    """What is wrong with a line that is no JSON, and where."""
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
