"""Rows of tables: comma-separated values, or values separated by tabs, as in RFC 4180."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace

from xlexport.scoring.inputs import Reading
from xlexport.scoring.rows import Row, check_header, too_long
from xlexport.scoring.text_source import TextSource, bounded_lines
from xlruntime import TextError
from xlruntime.limits import Limits
from xlruntime.messages import first_line

__all__ = ["table_rows"]

MOST_DELIMITERS = 2_000_000  # in a row with its texts: a cell takes more memory than its bytes
NO_QUOTE = "Check that quotes are closed, and doubled within a cell."


def table_rows(source: TextSource, reading: Reading, delimiter: str) -> Iterator[Row]:
    """Yield the rows after the first, which names the columns. A column without a name is left out.

    A row is named by its first line, because a quoted cell may have several lines.
    """
    lines = _Lines(source, reading, delimiter)
    csv.field_size_limit(max(csv.field_size_limit(), reading.line_limits.bytes))  # `lines` has the limit that counts
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
            yield Row(lines.name, TextError(f"{lines.name}: not a row ({first_line(error)[:100]}).", hint=NO_QUOTE))
            if names is None:
                return
            continue
        if cells is None:
            return
        if not cells:  # a blank line
            continue
        if names is None:
            hint = "" if len(cells) > 1 else " Separate columns by commas, or by tabs in a file that ends in .tsv."
            try:
                check_header(cells, source.name, reading, hint)
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
    """The lines of a table as text, within the limits of a row.

    Attributes:
        size: bytes of the row so far; ended: whether nothing more can be read.
    """

    def __init__(self, source: TextSource, reading: Reading, delimiter: str) -> None:
        self._source = source
        self._lines = bounded_lines(source, reading.line_limits.bytes)
        self._limits: Limits = replace(reading.line_limits, operations=MOST_DELIMITERS)
        self._delimiter = delimiter.encode()
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
            raise too_long(self.name, self._limits, "row")
        self._budget.charge(0, line.count(self._delimiter))
        try:
            return line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{self._source.name}:{self._number}: not UTF-8 at byte {error.start + 1} of the line "
                f"(0x{line[error.start]:02x}).",
                hint=f"Convert the file, for instance: iconv -f latin1 -t utf-8 {self._source.name}",
            ) from error
