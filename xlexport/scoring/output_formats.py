"""Records as JSON lines or CSV. They come as columns, many at a time, since there may be one for every token."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from xlruntime.messages import one_line

__all__ = ["Columns", "Encoded", "Format", "document_line", "encoder", "json_value"]

Format = Literal["text", "jsonl", "csv"]
Columns = Mapping[str, Any]  # a list each, or one value for all


@dataclass(frozen=True)
class Encoded:
    """A column of values that are JSON already."""

    values: list[str]


def encoder(kind: Format, header: bool) -> Callable[[Columns], bytes]:
    """What makes bytes of columns; of CSV the first ones begin with their names if `header`.

    `text` is for documents alone: a line for people.
    """
    if kind == "text":
        return lambda columns: f"{one_line(document_line(columns))}\n".encode()
    return _Csv(header).encode if kind == "csv" else _json_lines


def document_line(fields: Mapping[str, Any]) -> str:
    """A document's total for people, from the fields of its DocumentScore."""
    per_byte = "" if fields["bits_per_byte"] is None else f"{fields['bits_per_byte']:.4f} bits per byte, "
    speed = f", {fields['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in fields else ""
    return (
        f"{fields['document']}: {fields['tokens']:,} tokens, {per_byte}{fields['bits_per_token']:.4f} bits per token, "
        f"perplexity {fields['perplexity']:.4g}{speed}"
    )


def _json_lines(columns: Columns) -> bytes:
    """Return an object a line, as json.dumps writes it; one template for all takes 3.4 µs a token, json.dumps 7.5."""
    known: dict[str, str] = {}
    template = "{" + ", ".join(f"{json.dumps(name)}: %s" for name in columns) + "}\n"
    encoded = []
    for values in columns.values():
        if isinstance(values, Encoded):
            encoded.append(values.values)
        elif isinstance(values, list):
            encoded.append([json_value(value, known) for value in values])
        else:
            encoded.append([json_value(values, known)] * _length(columns))
    text = "".join([template % row for row in zip(*encoded, strict=True)])
    return text.encode("utf-8", "backslashreplace")  # half a surrogate pair, of a file's name, becomes JSON's escape


def json_value(value: Any, known: dict[str, str]) -> str:
    """Write a string, number, boolean or None as json.dumps does, but quickly; what JSON does not have becomes null.

    Args:
        known: of strings, those that have been written before.
    """
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "null"
    if isinstance(value, str):
        if value not in known:
            known[value] = json.dumps(value, ensure_ascii=False)
        return known[value]
    return _number(value)


def _number(value: int) -> str:
    """A whole number, or true or false."""
    return str(value).lower() if value is True or value is False else str(value)


class _Csv:
    """RFC 4180 but for the newlines, which are single ones; what is None or not finite is empty.

    Not the csv module's writer, which in some versions of Python leaves a carriage return unquoted.
    """

    def __init__(self, header: bool) -> None:
        self._header = header

    def encode(self, columns: Columns) -> bytes:
        known: dict[str, str] = {}
        n = _length(columns)
        encoded = [
            [_csv_value(value, known) for value in values]
            if isinstance(values, list)
            else [_csv_value(values, known)] * n
            for values in columns.values()
        ]
        names = [",".join(columns)] if self._header else []
        self._header = False
        text = "".join(f"{row}\n" for row in [*names, *map(",".join, zip(*encoded, strict=True))])
        return text.encode("utf-8", "backslashreplace")


def _csv_value(value: Any, known: dict[str, str]) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        if value not in known:
            special = any(mark in value for mark in ',"\r\n')
            known[value] = '"{}"'.format(value.replace('"', '""')) if special else value
        return known[value]
    return _number(value)


def _length(columns: Columns) -> int:
    return next(
        (len(values.values if isinstance(values, Encoded) else values) for values in columns.values()
         if isinstance(values, list | Encoded)), 1
    )  # fmt: skip
