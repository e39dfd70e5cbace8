"""Rows of JSON lines, tables (CSV, TSV) and Parquet files, before one of their fields becomes a document."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from xlexport.errors import MissingDependencyError
from xlexport.scoring.inputs import CHUNK, Input, Reading, TextSource, bounded_lines
from xlruntime import TextError
from xlruntime.documents import encoding_hint
from xlruntime.limits import Limits, parse_json
from xlruntime.messages import first_line, listed, shown

__all__ = ["MOST_COLUMNS", "Row", "json_kind", "parquet_rows", "rows_of", "table_rows"]

MOST_COLUMNS = 1000
MEMORY_OF_LINE = 16  # bytes of memory for the values of a line, per byte of its limit
MOST_DELIMITERS = 2_000_000  # in a row with its texts: a cell takes more memory than its bytes
DELIMITERS = ",;\t"
NO_QUOTE = "Check that quotes are closed, and doubled within a cell."
ROWS_AT_ONCE = 64
LARGEST_GROUP = 1 << 30  # bytes of a row group, unpacked
LARGEST_FOOTER = 64 << 20  # bytes of a text in the description of the file


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


def rows_of(entry: Input, source: TextSource, reading: Reading) -> Iterator[Row]:
    """Yield the rows of a file, whose format is that of its name; `source` reads it."""
    kind = entry.row_format
    if kind == "parquet":
        return parquet_rows(entry, reading)
    if kind == "json" and reading.delimiter is None:
        return _json_rows(source, reading)
    return table_rows(source, reading, "\t" if kind == "tsv" else ",")


def _too_long(name: str, limits: Limits, what: str) -> TextError:
    """Return the error for a row that exceeds the limit."""
    return TextError(
        f"{name}: a {what} of more than {limits.bytes:,} bytes.",
        hint="Check the file, or allow longer ones: --set max_document_bytes=N.",
    )


def _check_header(names: Sequence[str], name: str, reading: Reading, hint: str = "") -> None:
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
    for column, option in _wanted(reading).items():
        if column not in names:
            present = listed(map(shown, filter(None, names))) or "nothing"
            raise TextError(f"{name}: no column {shown(column)}, found only {present}.", hint=f"Check {option}.{hint}")


def _wanted(reading: Reading) -> dict[str, str]:
    """Return the columns that options name, each with its option."""
    named = {
        "--field": reading.field,
        "--context-field": reading.context_field,
        "--id-field": reading.id_field,
        "--set region_field": reading.region_field,
        "--group": reading.group,
    }
    columns = [*named.items(), *(("--keep", column) for column in reading.keep or ())]
    return {column: option for option, column in reversed(columns) if column is not None}


def _json_rows(source: TextSource, reading: Reading) -> Iterator[Row]:
    """Yield a row for each line that is not blank."""
    number = 0
    lines = bounded_lines(io.BufferedReader(cast(io.RawIOBase, source), CHUNK), reading.line_limits.bytes)
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
            yield Row(name, _too_long(name, reading.line_limits, "line"))
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
        hint = (
            "With --field, each line is a JSON object. Tables end in .csv, .tsv or .parquet, or need --set delimiter."
        )
        if isinstance(cause, UnicodeDecodeError):
            hint = encoding_hint(line, name.rpartition(":")[0])
        raise TextError(f"{name}: not JSON ({_json_problem(cause)}).", hint=hint) from cause
    if not isinstance(value, dict):
        raise TextError(f"{name}: {json_kind(value)}, expected a JSON object with field {reading.field!r}.")
    return value


def _json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line that is not JSON, and where."""
    if isinstance(error, json.JSONDecodeError):
        excerpt = error.doc[error.pos : error.pos + 20]
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting")
        return f"{what} at character {error.pos + 1}: {excerpt!r}" if excerpt else f"{what} at its end"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"


def json_kind(value: Any) -> str:
    """Return JSON's name for the type of a value."""
    kinds = {bool: "true or false", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")


def table_rows(source: TextSource, reading: Reading, usual: str) -> Iterator[Row]:
    """Yield the rows after the first, which names the columns. A column without a name is left out.

    A row is named by its first line, because a quoted cell may have several lines.

    Args:
        usual: what separates columns unless the reading says it, or the header is better cut at another mark.
    """
    csv.field_size_limit(max(csv.field_size_limit(), reading.line_limits.bytes))  # `lines` has the limit that counts
    lines = _Lines(source, reading, usual)
    delimiter = lines.delimiter
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        lines.begin_row()
        try:
            cells = next(reader, None)
        except (TextError, OSError) as error:
            yield Row(lines.name, error)
            if lines.ended or names is None:
                return
            continue
        except csv.Error as error:
            cr = "new-line character" in str(error)  # of Python's advice how to open the file
            problem = "a carriage return in a cell without quotes" if cr else first_line(error)[:100]
            yield Row(lines.name, TextError(f"{lines.name}: not a row ({problem}).", hint=NO_QUOTE))
            if names is None:
                return
            continue
        if cells is None:
            return
        if not cells:  # a blank line
            continue
        if names is None:
            hint = "" if len(cells) > 1 else " Separate columns by commas, semicolons or tabs, or give --set delimiter."
            try:
                _check_header(cells, source.name, reading, hint)
            except TextError as error:
                yield Row(source.name, error)
                return
            names = cells
        elif len(cells) != len(names):
            problem = f"{lines.name}: {len(cells):,} cells, expected {len(names):,} as in the first row."
            yield Row(lines.name, TextError(problem, hint=f"Quote cells that contain {delimiter!r}."))
        else:
            values = {name: cell for name, cell in zip(names, cells, strict=True) if name}
            yield Row(lines.name, values, lines.size, of_text=True)


class _Lines:
    """The lines of a table as text, within the limits of a row. If there is no LF, lines end with CR.

    Attributes:
        delimiter: what separates columns; size: bytes of the row so far; ended: whether nothing more can be read.
    """

    def __init__(self, source: TextSource, reading: Reading, usual: str) -> None:
        self._source = source
        self._file: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, source), CHUNK)
        self._failure: Exception | None = None
        beginning = b""
        try:
            beginning = self._file.peek(CHUNK)
        except (TextError, OSError) as error:
            self._failure = error
        if b"\r" in beginning and b"\n" not in beginning:
            self._file = io.BufferedReader(_Newlines(self._file), CHUNK)
            beginning = beginning.replace(b"\r", b"\n")
        header = beginning.partition(b"\n")[0].decode("utf-8", "replace")
        self.delimiter = reading.delimiter or _delimiter_of(header, usual, _wanted(reading))
        self._lines = bounded_lines(self._file, reading.line_limits.bytes)
        self._limits: Limits = replace(reading.line_limits, operations=MOST_DELIMITERS)
        self._delimiter = self.delimiter.encode()
        self._number = self._first = 0
        self.size = 0
        self.ended = False

    @property
    def name(self) -> str:
        """The place of the row."""
        return f"{self._source.name}:{self._first}" if self._number else self._source.name

    def begin_row(self) -> None:
        """Begin to count for the next row."""
        self._first = self._number + 1
        self.size = 0
        self._budget = self._limits.budget(f"{self._source.name}:{self._first}", TextError)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            if self._failure is not None:
                raise self._failure
            line = next(self._lines)
        except (TextError, OSError):
            self.ended = True
            raise
        self._number += 1
        self.size += len(line or b"")
        if line is not None and self.size > self._limits.bytes:
            self.ended = True  # a quote is open, so no later line is known to begin a row
            raise TextError(
                f"{self.name}: a row of more than {self._limits.bytes:,} bytes in several lines. The rest is not read.",
                hint=f"{NO_QUOTE} Or allow longer rows: --set max_document_bytes=N.",
            )
        if line is None:
            raise _too_long(self.name, self._limits, "row")
        self._budget.charge(0, line.count(self._delimiter))
        try:
            return line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{self._source.name}:{self._number}: not UTF-8 at byte {error.start + 1} of the line "
                f"(0x{line[error.start]:02x}).",
                hint=encoding_hint(line + self._file.peek(), self._source.name),
            ) from error


class _Newlines(io.RawIOBase):
    """A file whose lines end with CR, read with LF in their place."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = self._file.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(raw)] = raw
        return len(raw)


def _delimiter_of(header: str, usual: str, wanted: Collection[str]) -> str:
    """Return the mark that cuts a header into the columns that options name, or else into the most columns."""

    def fit(delimiter: str) -> tuple[bool, bool, int]:
        try:
            names = next(csv.reader([header], delimiter=delimiter), [])
        except csv.Error:  # told when the row is read
            names = []
        return set(wanted) <= set(names), delimiter == usual and len(names) > 1, len(names)

    return max((usual, *DELIMITERS), key=fit)


def parquet_rows(entry: Input, reading: Reading) -> Iterator[Row]:
    """Yield the rows of a file, numbered from 1.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"{entry.name}: Parquet needs the pyarrow package, which is not installed.", hint="pip install pyarrow"
        ) from error
    number = 0
    limits = {"thrift_string_size_limit": LARGEST_FOOTER, "thrift_container_size_limit": LARGEST_FOOTER}
    try:
        # Python opens the file, because its errors name it as all others are named.
        with entry.open_table() as raw, parquet.ParquetFile(raw, **limits) as file:
            _check_groups(file.metadata, entry.name)
            schema = file.schema_arrow
            _check_header(schema.names, entry.name, reading)
            wanted = _wanted(reading)
            columns = None if reading.keep is None else [name for name in schema.names if name in wanted]
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
                for place in range(batch.num_rows):
                    number += 1
                    yield _row(batch, place, f"{entry.name}:{number}", reading)
    except (TextError, OSError, pyarrow.ArrowException) as error:
        of_arrow = isinstance(error, pyarrow.ArrowException) or (isinstance(error, OSError) and error.errno is None)
        yield Row(entry.name, _unreadable(entry.name, number, error) if of_arrow else error)


def _check_groups(metadata: Any, name: str) -> None:
    """Refuse a file whose own description exceeds the limits."""
    if metadata.num_columns > MOST_COLUMNS:
        raise TextError(f"{name}: {metadata.num_columns:,} columns, expected at most {MOST_COLUMNS:,}.")
    largest = max((metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)), default=0)
    if largest > LARGEST_GROUP:
        raise TextError(
            f"{name}: a row group of {largest:,} bytes, expected at most {LARGEST_GROUP:,}.",
            hint="Write the file in smaller row groups, or as JSON lines.",
        )


def _row(batch: Any, place: int, name: str, reading: Reading) -> Row:
    values = {}
    size = 0
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        values[column] = value = array[place].as_py()
        size += len(value) if isinstance(value, str | bytes) else 8
    if size > reading.line_limits.bytes:
        return Row(name, _too_long(name, reading.line_limits, "row"))
    return Row(name, values, size)


def _unreadable(name: str, number: int, error: Exception) -> TextError:
    where = f" after row {number:,}" if number else ""
    return TextError(
        f"{name}: not Parquet that can be read{where} ({first_line(error)[:200]}).",
        hint="Write the file again, or as CSV.",
    )
