"""Divide files into parts: the units that are scored, written and, after an interruption, skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from xlexport.ray.places import Place
from xlexport.scoring.chunks import Chunk, chunks
from xlexport.scoring.inputs import Input, Reading
from xlexport.scoring.items import CarriedColumns, items
from xlexport.scoring.json_lines import json_rows
from xlexport.scoring.parquet_rows import parquet_rows
from xlexport.scoring.rows import Row
from xlexport.scoring.table_rows import table_rows
from xlexport.scoring.text_source import TextSource
from xlexport.scoring.token_ids import ids_of_words
from xlruntime import Document

__all__ = ["Part", "chunks_of", "documents_of_rows", "parts_of", "rows_of"]

MOST_ROWS = 4096  # of a part


@dataclass(frozen=True)
class Part:
    """Some consecutive rows of a file, or a file that is one document.

    Attributes:
        file: number of the file in the run; number: of the part in the file.
        rows: None if the file is one document, which is opened where it is scored.
    """

    uri: str
    file: int
    number: int
    rows: tuple[Row, ...] | None

    @property
    def name(self) -> str:
        """The name of the part's output, without ending."""
        return f"part-{self.file:07}-{self.number:07}"


def rows_of(uri: str, reading: Reading) -> Iterator[Row]:
    """Yield the rows of a file by the ending of its name."""
    place, name = Place(uri), PurePosixPath(uri.removesuffix(".gz"))
    if name.suffix == ".parquet":
        return parquet_rows(Input(uri, None), reading, place.open_table)
    source = TextSource(uri, place.open, at_hand=True)
    if name.suffix in (".csv", ".tsv"):
        return table_rows(source, reading, "\t" if name.suffix == ".tsv" else ",")
    return json_rows(source, reading)


def parts_of(uri: str, file: int, reading: Reading, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of a file. Where they begin depends on the file alone."""
    if reading.field is None:
        yield Part(uri, file, 0, None)
        return
    rows: list[Row] = []
    size = number = 0
    for row in rows_of(uri, reading):
        rows.append(row)
        size += row.size
        if size >= part_bytes or len(rows) >= MOST_ROWS:
            yield Part(uri, file, number, tuple(rows))
            rows, size, number = [], 0, number + 1
    if rows:
        yield Part(uri, file, number, tuple(rows))


def chunks_of(part: Part, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of a part in chunks.

    Args:
        keep: whether sources keep the text that was read, for records of lines and words.
    """
    given = Input(part.uri, None)
    if part.rows is not None:
        return documents_of_rows(part.rows, given, reading, keep)
    place = Place(part.uri)
    if reading.ids:
        ids: Any = ids_of_words(place.read().split(), part.uri)
        return iter([[(given, Document(part.uri, ids))]])
    source = TextSource(part.uri, place.open, True, keep)
    return iter([[(given, Document(part.uri, cast(BinaryIO, source), reading.document_limits))]])


def documents_of_rows(rows: tuple[Row, ...], given: Input, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of rows in chunks; each repeats the columns that `reading.keep` names."""
    columns = CarriedColumns(reading, (), lambda line: None)
    return chunks((given, document) for document in items(iter(rows), given.name, reading, keep, columns))
