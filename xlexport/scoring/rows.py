"""Rows of JSON lines and tables, before one of their fields becomes a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlexport.scoring.inputs import Reading
from xlruntime import TextError
from xlruntime.limits import Limits
from xlruntime.messages import listed, shown

__all__ = ["MOST_COLUMNS", "Row", "check_header", "too_long"]

MOST_COLUMNS = 1000


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: the file and the line or number of the row.
        values: its values by the names of their fields; or the error that takes their place.
        size: bytes of memory that the row takes.
        of_text: whether all values are text, as in CSV.
    """

    name: str
    values: Mapping[str, Any] | Exception
    size: int = 0
    of_text: bool = False


def too_long(name: str, limits: Limits, what: str) -> TextError:
    """Return the error for a row that exceeds the limit."""
    return TextError(
        f"{name}: a {what} of more than {limits.bytes:,} bytes.",
        hint="Check the file, or allow longer ones: --set max_document_bytes=N.",
    )


def check_header(names: Sequence[str], name: str, reading: Reading, hint: str = "") -> None:
    """Check the names of a table's columns.

    Raises:
        TextError: there are too many, two are equal, or one is missing that an option names.
    """
    if len(names) > MOST_COLUMNS:
        raise TextError(f"{name}: {len(names):,} columns, expected at most {MOST_COLUMNS:,}.")
    twice = sorted({column for column in names if column and names.count(column) > 1})
    if twice:
        raise TextError(
            f"{name}: several columns named {listed(map(shown, twice))}.", hint="Rename all but one of them."
        )
    wanted = {
        "--field": (reading.field,),
        "--context-field": (reading.context_field,),
        "--id-field": (reading.id_field,),
        "--region-field": (reading.region_field,),
        "--keep": reading.keep or (),
    }
    for option, columns in wanted.items():
        for column in columns:
            if column is not None and column not in names:
                found = listed(map(shown, filter(None, names))) or "nothing"
                raise TextError(
                    f"{name}: no column {shown(column)}, found only {found}.", hint=f"Check {option}.{hint}"
                )
