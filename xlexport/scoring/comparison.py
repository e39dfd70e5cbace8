"""Compare records of `score` in pairs: two tables row by row, or two conditions in one table."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from xlexport.scoring.rows import Row
from xlruntime import TextError
from xlruntime.messages import counted, listed, quoted, shown
from xltraining.messages import renamed

__all__ = ["Conditions", "PairedComparison", "Summary", "Table"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Comparison": "PairedComparison"})

PLACES = (("document",), ("index", "line"), ("word", "region", "text", "token"))  # one column of each, if both have it
VALUES = ("bits", "surprisal_bits")
ROUNDING = 1e-4  # bits: a smaller difference may come from another order of additions

Table = Callable[[], Iterator[Row]]  # reads the rows from the first
Record = tuple[str, Mapping[str, Any]]  # the file and the line of a row, and its values


@dataclass(frozen=True)
class Conditions:
    """Two values of a column; the rows that have them are the two sides of a comparison."""

    column: str
    a: str
    b: str


@dataclass
class Summary:
    """The differences of all records together.

    Attributes:
        value: the column that was compared; a, b: the names of the two sides.
        records: number of pairs; compared: of those with a value on both sides.
        items: the column that names items; n_items: number of items with a compared pair.
        mean_a, mean_b, mean_difference: means over the items, each counted once by the mean of its records; None:
            nothing was compared.
        standard_error: of the mean difference, over the items; t: their ratio, with n_items - 1 degrees of freedom.
            None for fewer than two items, t also if all items have the same difference.
        share: of the compared pairs, those in which A is lower by more than rounding; None: nothing was compared.
        share_from, share_to: its 95% interval (Wilson, 1927); None if an item has several pairs, which then are not
            independent.
    """

    value: str
    a: str
    b: str
    items: str
    records: int = 0
    compared: int = 0
    n_items: int = 0
    mean_a: float | None = None
    mean_b: float | None = None
    mean_difference: float | None = None
    standard_error: float | None = None
    t: float | None = None
    share: float | None = None
    share_from: float | None = None
    share_to: float | None = None

    def __str__(self) -> str:
        line = counted(self.records, "record")
        if self.compared < self.records:
            line += f", {self.records - self.compared:,} of them without a value on one side"
        if self.mean_difference is None:
            return line
        line += f": {self.value} {self.a} {self.mean_a:.4f}, {self.b} {self.mean_b:.4f}"
        line += f", {self.a} − {self.b} {self.mean_difference:.4f}"
        items = f"{counted(self.n_items, 'item')}, column {self.items}"
        if self.standard_error is None:
            line += f" ({items}: one item has no standard error; --items names another column)"
        else:
            line += f" ± {self.standard_error:.4f} (mean and standard error over {items})"
        line += "" if self.t is None else f", t({self.n_items - 1:,}) = {self.t:.2f}"
        line += f"; {self.a} is lower in {self.share:.1%} of {counted(self.compared, 'pair')}"
        return line if self.share_from is None else f"{line} (95%: {self.share_from:.1%} to {self.share_to:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)


class PairedComparison:
    """Records that belong together in pairs.

    Args:
        a, b: two tables whose rows match in order; or one table, if `conditions` are given.
        by: columns that are equal in both rows of a pair; empty: the usual ones that there are.
        value: the column to compare; None: `bits`, or `surprisal_bits` of tokens.
        items: the column that names items; None: the first of `by`.
        where: columns, each with the value that a row must have there; the name of another column is its value.

    Raises:
        TextError: a table has no rows or lacks a column.
    """

    def __init__(
        self,
        a: Table,
        b: Table | None = None,
        *,
        conditions: Conditions | None = None,
        by: Sequence[str] = (),
        value: str | None = None,
        items: str | None = None,
        where: Sequence[tuple[str, str]] = (),
    ) -> None:
        assert (b is None) != (conditions is None)
        self._tables = [a] if b is None else [a, b]
        self._conditions, self._where = conditions, where
        first = [_record(_first(table)) for table in self._tables]
        names = [name for name in first[0][1] if all(name in columns for _, columns in first)]
        places = PLACES if conditions is None else (("item", "document"), PLACES[1])  # conditions differ in their words
        usual = [next((name for name in group if name in names), None) for group in places]
        self.by = list(by) or [name for name in usual if name is not None]
        self.value = value or next((name for name in VALUES if name in names), VALUES[0])
        self.items = items or next(iter(self.by), "document")
        needed = [*self.by, self.items, self.value, *(name for name, _ in where)]
        needed += [] if conditions is None else [conditions.column]
        for place, columns in first:
            missing = [name for name in dict.fromkeys(needed) if name not in columns]
            if missing or not self.by:
                raise TextError(
                    f"{place}: no column {listed(map(shown, missing or ['document']))}, found only "
                    f"{listed(map(shown, columns))}.",
                    hint="Choose columns with --by, --items and --value.",
                )

    def summary(self) -> Summary:
        """Read the tables, and return the differences of all records together.

        Raises:
            TextError: rows do not match, or a value is not a number; the message has the first such row. Or there is
                no pair.
        """
        conditions = self._conditions
        labels = ("A", "B") if conditions is None else (conditions.a, conditions.b)
        summary = Summary(self.value, *labels, self.items)
        values: dict[str, list[tuple[float, float]]] = defaultdict(list)  # by item
        for record, a, b in self._compared():
            summary.records += 1
            if a is not None and b is not None:
                summary.compared += 1
                values[_text(record[self.items])].append((a, b))
        if not summary.records:
            raise TextError("no row of either table has the values of --where.", hint="Check --where.")
        if values:
            sides = [[statistics.fmean(side) for side in zip(*pairs, strict=True)] for pairs in values.values()]
            differences = [a - b for a, b in sides]
            summary.n_items = len(sides)
            lower = sum(b - a > ROUNDING for pairs in values.values() for a, b in pairs)
            summary.share = lower / summary.compared
            if len(sides) == summary.compared:
                summary.share_from, summary.share_to = _wilson(lower, summary.compared)
            summary.mean_a, summary.mean_b = (statistics.fmean(side) for side in zip(*sides, strict=True))
            summary.mean_difference = statistics.fmean(differences)
            if len(sides) > 1:
                summary.standard_error = statistics.stdev(differences) / math.sqrt(len(sides))
                summary.t = summary.mean_difference / summary.standard_error if summary.standard_error else None
        return summary

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a record for each pair: the columns that are equal, both values, and A − B; None: without a value.

        Raises:
            TextError: as `summary`.
        """
        conditions = self._conditions
        labels = ("a", "b") if conditions is None else (conditions.a, conditions.b)
        columns = dict.fromkeys([*self.by, self.items])
        computed = [*(f"{self.value}_{label}" for label in labels), "difference"]
        if both := [name for name in computed if name in columns]:
            raise TextError(
                f"column {listed(map(shown, both))} would be in the output twice: from the table, and computed.",
                hint="Rename it, or choose other columns with --by and --items.",
            )
        for record, a, b in self._compared():
            difference = None if a is None or b is None else a - b
            yield {
                **{column: record.get(column) for column in columns},
                **dict(zip(computed, (a, b, difference), strict=True)),
            }

    def _compared(self) -> Iterator[tuple[Mapping[str, Any], float | None, float | None]]:
        """Yield for each pair the row of one side, and the values of both; None: without a value."""
        pairs = self._of_tables() if self._conditions is None else self._of_conditions(self._conditions)
        for a, b in pairs:
            (_, record), *_ = [side for side in (a, b) if side is not None]
            yield record, self._number(a), self._number(b)

    def _rows(self, table: Table) -> Iterator[Record]:
        """Yield the rows of a table that `where` chooses."""
        for name, values in map(_record, table()):
            if all(
                _text(values.get(column)) == (_text(values[value]) if value in values else value)
                for column, value in self._where
            ):
                yield name, values

    def _of_tables(self) -> Iterable[tuple[Record, Record]]:
        """Yield the rows of two tables in pairs, in their order."""
        for one, other in itertools.zip_longest(*map(self._rows, self._tables)):
            if one is None or other is None:
                raise TextError(
                    f"{(one or other)[0]}: a row that the other table does not have.",
                    hint="Make both tables from the same documents in the same order, or choose rows with --where.",
                )
            for column in self.by:
                a, b = (values.get(column) for _, values in (one, other))
                if _text(a) != _text(b):
                    rest = ",".join(name for name in self.by if name != column)
                    hint = f", or leave {column} out: --by {quoted(rest)}" if rest else ""
                    raise TextError(
                        f"{other[0]}: {column} is {shown(b)}, but {shown(a)} in {one[0]}.",
                        hint=f"Make both tables from the same documents in the same order{hint}.",
                    )
            yield one, other

    def _of_conditions(self, conditions: Conditions) -> Iterable[tuple[Record | None, Record | None]]:
        """Yield the rows of two conditions in pairs, in the order of the table; None: the other row is missing."""
        sides: dict[str, dict[tuple[str, ...], Record]] = {conditions.a: {}, conditions.b: {}}
        others: dict[str, None] = {}
        for name, values in self._rows(self._tables[0]):
            condition = _text(values.get(conditions.column))
            if (side := sides.get(condition)) is None:
                others[condition] = None
                continue
            key = tuple(_text(values.get(column)) for column in self.by)
            if key in side:
                which = ", ".join(f"{column} {shown(value)}" for column, value in zip(self.by, key, strict=True))
                example = ", for instance index" if "index" in values and "index" not in self.by else ""
                raise TextError(
                    f"{name}: a second row of {conditions.column} {shown(condition)} with {which}; the first is "
                    f"{side[key][0]}.",
                    hint=f"Add a column to --by{example}, or choose rows with --where.",
                )
            side[key] = name, values
        a, b = sides.values()
        for condition, rows in sides.items():
            if not rows:
                known = listed(map(shown, [*others, *(one for one in sides if sides[one])])) or "no rows"
                raise TextError(
                    f"no row has {conditions.column} {shown(condition)}, found only {known}.",
                    hint="Check --pair and --where.",
                )
        if not a.keys() & b.keys():
            raise TextError(
                f"no row of {shown(conditions.a)} has the {' and '.join(self.by)} of one of {shown(conditions.b)}.",
                hint="Choose columns that both rows of a pair share, for instance --by item,index.",
            )
        return ((a.get(key), b.get(key)) for key in {**a, **b})

    def _number(self, row: Record | None) -> float | None:
        """Return the value of a row, or None if it is empty.

        Raises:
            TextError: it is not a number.
        """
        value = None if row is None else row[1].get(self.value)
        if row is None or value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise TextError(
                f"{row[0]}: {self.value} is {shown(value)}, expected a number or nothing.", hint="Check --value."
            )
        return number


def _wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share."""
    z = 1.959964
    middle = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return middle - half, middle + half


def _first(table: Table) -> Row:
    """Return the first row of a table, or one with an error."""
    for row in table():
        return row
    return Row("", TextError("a table without rows.", hint="Check the file."))


def _record(row: Row) -> Record:
    if isinstance(row.values, Exception):
        raise row.values
    return row.name, row.values


def _text(value: Any) -> str:
    """Return a value as CSV shows it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
