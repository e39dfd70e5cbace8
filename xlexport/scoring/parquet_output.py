"""Turn JSON lines into a Parquet file, a part at a time, with one type for each column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["records_table", "write_parquet"]

ROWS = 10_000  # of a part


def write_parquet(lines: Path, output: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the objects of a file of JSON lines as the rows of a Parquet file.

    A column has the type of its values. Whole numbers among others become float64; values of several kinds, lists and
    objects become text. A column without values is float64, as most columns are numbers. The file is read twice.

    Args:
        known: columns that come first, each with the kind (bool, int, float or text) that it has without values.
    """
    import pyarrow.parquet

    kinds = _kinds(_records(lines), known or {})
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
    """Return a table of records, with the columns and types of `write_parquet`."""
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
