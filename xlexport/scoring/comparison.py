"""Compare two tables of records row by row: two bundles on one text, or one bundle after two contexts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xlexport.scoring.rows import Row
from xlexport.scoring.totals import added
from xlruntime import TextError
from xlruntime.messages import counted, listed, shown

__all__ = ["Comparison", "Summary", "Table"]

PLACES = (("document",), ("index", "line"), ("word", "region", "text", "token"))  # one column of each, if both have it
VALUES = ("bits", "surprisal_bits")
SAME = (
    "Make both tables from the same documents in the same order, or choose columns, for instance --by item,index,word."
)

Table = Callable[[], Iterator[Row]]  # reads the rows from the first


@dataclass
class Summary:
    """The differences of all records together.

    Attributes:
        records: number of rows; compared: of those with a value in both tables.
        mean_a, mean_b: means over the compared records.
        mean_difference: mean of A - B; standard_error: of this mean, None for fewer than two records.
    """

    value: str
    records: int = 0
    compared: int = 0
    mean_a: float = 0.0
    mean_b: float = 0.0
    mean_difference: float = 0.0
    standard_error: float | None = None

    def __str__(self) -> str:
        line = f"{counted(self.records, 'record')}"
        if self.compared < self.records:
            line += f", {self.records - self.compared:,} of them without a value in one of the tables"
        if not self.compared:
            return line
        error = "" if self.standard_error is None else f" ± {self.standard_error:.4f}"
        line += f": {self.value} A {self.mean_a:.4f}, B {self.mean_b:.4f}, A − B {self.mean_difference:.4f}{error}"
        return line + (" (mean and standard error over records)" if error else "")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)


class Comparison:
    """Two tables whose rows belong together in pairs.

    Args:
        by: columns that must be equal in both rows of a pair; empty: the usual ones that both tables have.
        value: the column to compare; None: `bits`, or `surprisal_bits` of tokens.

    Raises:
        TextError: a table has no rows or lacks a column.
    """

    def __init__(self, a: Table, b: Table, by: Sequence[str] = (), value: str | None = None) -> None:
        self._a, self._b = a, b
        first = [_values(row) for row in (_first(a), _first(b))]
        names = [name for name in first[0][1] if name in first[1][1]]
        usual = [next((name for name in group if name in names), None) for group in PLACES]
        self.by = list(by) or [name for name in usual if name is not None]
        self.value = value or next((name for name in VALUES if name in names), VALUES[0])
        for where, columns in first:
            missing = [name for name in [*self.by, self.value] if name not in columns]
            if missing or not self.by:
                raise TextError(
                    f"{where}: no column {listed(map(shown, missing or ['document']))}, found only "
                    f"{listed(map(shown, columns))}.",
                    hint="Choose columns with --by and --value.",
                )

    def summary(self) -> Summary:
        """Read both tables, and return the differences of all records together.

        Raises:
            TextError: rows do not match, or a value is not a number; the message has the first such row.
        """
        summary = Summary(self.value)
        squares = 0.0
        for record in self.records():
            summary.records += 1
            one, other, difference = list(record.values())[-3:]
            if difference is None:
                continue
            summary.compared += 1
            summary.mean_a, _ = added(summary.mean_a, 0.0, one, summary.compared)
            summary.mean_b, _ = added(summary.mean_b, 0.0, other, summary.compared)
            summary.mean_difference, squares = added(summary.mean_difference, squares, difference, summary.compared)
        if summary.compared > 1:
            summary.standard_error = math.sqrt(squares / (summary.compared - 1) / summary.compared)
        return summary

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a record for each pair: the columns that are equal, both values, and A − B; None: without a value.

        Raises:
            TextError: as `summary`.
        """
        for one, other in itertools.zip_longest(self._a(), self._b()):
            if one is None or other is None:
                raise TextError(f"{(one or other).name}: a row that the other table does not have.", hint=SAME)
            (name_a, a), (name_b, b) = _values(one), _values(other)
            for column in self.by:
                if _text(a.get(column)) != _text(b.get(column)):
                    raise TextError(
                        f"{name_b}: {column} is {shown(b.get(column))}, but {shown(a.get(column))} in {name_a}.",
                        hint=SAME,
                    )
            values = _number(a.get(self.value), self.value, name_a), _number(b.get(self.value), self.value, name_b)
            difference = None if values[0] is None or values[1] is None else values[0] - values[1]
            yield {
                **{column: a.get(column) for column in self.by},
                f"{self.value}_a": values[0],
                f"{self.value}_b": values[1],
                "difference": difference,
            }


def _first(table: Table) -> Row:
    """Return the first row of a table, or one with an error."""
    for row in table():
        return row
    return Row("", TextError("a table without rows.", hint="Check both files."))


def _values(row: Row) -> tuple[str, Mapping[str, Any]]:
    if isinstance(row.values, Exception):
        raise row.values
    return row.name, row.values


def _text(value: Any) -> str:
    """Return a value as CSV shows it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any, column: str, name: str) -> float | None:
    """Return a number, or None for an empty value.

    Raises:
        TextError: it is something else.
    """
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise TextError(f"{name}: {column} is {shown(value)}, expected a number or nothing.", hint="Check --value.")
    return number
