"""Write records as JSON lines, CSV or TSV. They come as columns, many at a time, since every token may have one.

Parquet begins as JSON lines, which become a table with one type for each column when all are there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xlexport.scoring.score_options import OutputFormat
from xlruntime.messages import one_line
from xltraining.messages import renamed

__all__ = [
    "Columns",
    "Kind",
    "document_line",
    "encoder",
    "header_line",
    "records_table",
    "write_parquet",
]

Kind = Literal["int", "float", "bool", "text"]
"""The type of a column's values."""
ROWS = 10_000  # of Parquet that are written at a time
if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Format": "xlexport.scoring.score_options.OutputFormat"})
DELIMITERS = {"csv": ",", "tsv": "\t"}
Columns = Mapping[str, Any]  # each value is a list, or one value for all records


def encoder(kind: OutputFormat) -> Callable[[Columns], bytes]:
    """Return a function that encodes columns as bytes.

    Only documents can have the format `text`: a line for people.
    """
    if kind == "text":
        return lambda columns: f"{one_line(document_line(columns))}\n".encode()
    return partial(_csv, DELIMITERS[kind]) if kind in DELIMITERS else _json_lines


def header_line(kind: OutputFormat, names: Iterable[str]) -> bytes:
    """Return the bytes that a file begins with: of CSV, the names of the columns."""
    return _csv(DELIMITERS[kind], {name: name for name in names}) if kind in DELIMITERS else b""


def document_line(fields: Mapping[str, Any]) -> str:
    """Return a document's total as a line for people, from the fields of its DocumentScore."""
    units = [unit for unit in ("byte", "token") if fields[f"bits_per_{unit}"] is not None]
    if fields["scored_bytes"] == fields["scored_tokens"]:
        units = units[:1]  # tokens are bytes
    figures = ", ".join(f"{fields[f'bits_per_{unit}']:.4f} bits per {unit}" for unit in units)
    speed = f", {fields['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in fields else ""
    return f"{fields['document']}: {fields['tokens']:,} tokens, {figures}, perplexity {fields['perplexity']:.4g}{speed}"


def _rows(columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each record; numbers that are not finite, which JSON lacks, become None."""
    n = next((len(values) for values in columns.values() if isinstance(values, list)), 1)
    lists = (values if isinstance(values, list) else [values] * n for values in columns.values())
    for row in zip(*lists, strict=True):
        yield tuple(None if isinstance(value, float) and not math.isfinite(value) else value for value in row)


def _json_lines(columns: Columns) -> bytes:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    text = "".join(f"{encode(dict(zip(columns, row, strict=True)))}\n" for row in _rows(columns))
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate in the name of a file becomes JSON's escape


def _csv(delimiter: str, columns: Columns) -> bytes:
    """Return CSV as in RFC 4180, but lines end with a single newline. None is empty, booleans are those of JSON.

    TSV has tabs instead of commas, and the same quotes.

    The csv module's writer is not used because in some versions of Python it leaves a carriage return unquoted.
    """
    special = re.compile(f'[{delimiter}"\r\n]')

    def cell(value: Any) -> str:
        if isinstance(value, str):
            return '"{}"'.format(value.replace('"', '""')) if special.search(value) else value
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    text = "".join(f"{delimiter.join(map(cell, row))}\n" for row in _rows(columns))
    return text.encode("utf-8", "backslashreplace")


def write_parquet(lines: Path, output: Path) -> None:
    """Write the objects of a file of JSON lines as the rows of a Parquet file.

    A column has the type of its values. Whole numbers among others become float64; values of several kinds, lists and
    objects become text. A column without values is float64, as most columns are numbers. The file is read twice.
    """
    import pyarrow.parquet

    kinds = _kinds(_records(lines), {})
    schema = _schema(kinds)
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        part: list[dict[str, Any]] = []
        for record in _records(lines):
            part.append({name: _as_kind(record.get(name), kind) for name, kind in kinds.items()})
            if len(part) == ROWS:
                writer.write_table(pyarrow.Table.from_pylist(part, schema))
                part.clear()
        writer.write_table(pyarrow.Table.from_pylist(part, schema))


def records_table(records: list[dict[str, Any]], known: Mapping[str, str]) -> Any:
    """Return a table of records, with the columns and types of `write_parquet`.

    Args:
        known: columns that come first, each with the kind (bool, int, float or text) that it has without values.
    """
    import pyarrow

    kinds = _kinds(records, known)
    rows = [{name: _as_kind(record.get(name), kind) for name, kind in kinds.items()} for record in records]
    return pyarrow.Table.from_pylist(rows, _schema(kinds))


def _kinds(records: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> dict[str, str]:
    """Return the kind of each column."""
    kinds = dict.fromkeys(known, "null")
    for record in records:
        for name, value in record.items():
            kinds[name] = _joined(kinds.get(name, "null"), _kind(value))
    return {name: known.get(name, "float") if kind == "null" else kind for name, kind in kinds.items()}


def _schema(kinds: Mapping[str, str]) -> Any:
    import pyarrow

    types = {"bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    return pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in kinds.items()])


def _records(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _kind(value: Any) -> str:
    """Return the kind of a JSON value; numbers too large for int64 are text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "text"
    return "float" if isinstance(value, float) else "text"


def _joined(one: str, other: str) -> str:
    """Return the kind of a column that has values of both kinds."""
    kinds = {one, other} - {"null"}
    if len(kinds) < 2:
        return next(iter(kinds), "null")
    return "float" if kinds == {"int", "float"} else "text"


def _as_kind(value: Any, kind: str) -> Any:
    """Return a value as its column needs it."""
    if value is None or kind != "text" or isinstance(value, str):
        return float(value) if kind == "float" and value is not None else value
    return json.dumps(value, ensure_ascii=False)
