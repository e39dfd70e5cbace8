"""Divide files into parts: the units that are scored, written and, after an interruption, skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from xlexport.ray.places import File, Place
from xlexport.scoring.chunks import Chunk, chunks
from xlexport.scoring.documents import CarriedColumns, file_document, items
from xlexport.scoring.inputs import Input, Reading
from xlexport.scoring.rows import Row

__all__ = ["Part", "chunks_of", "documents_of_rows", "parts_of"]

MOST_ROWS = 4096  # of a part


@dataclass(frozen=True)
class Part:
    """Some consecutive rows of a file, or a file that is one document.

    Attributes:
        number: of the part in the file.
        rows: None if the file is one document, which is opened where it is scored.
    """

    file: File
    number: int
    rows: tuple[Row, ...] | None

    @property
    def name(self) -> str:
        """The name of the part's output, without ending."""
        return f"part-{self.file.number:07}-{self.number:07}"


def parts_of(file: File, reading: Reading, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of a file. Where they begin depends on the file alone."""
    if reading.field is None:
        yield Part(file, 0, None)
        return
    rows: list[Row] = []
    size = number = 0
    for row in file.rows(reading):
        rows.append(row)
        size += row.size
        if size >= part_bytes or len(rows) >= MOST_ROWS:
            yield Part(file, number, tuple(rows))
            rows, size, number = [], 0, number + 1
    if rows:
        yield Part(file, number, tuple(rows))


def chunks_of(part: Part, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of a part in chunks.

    Args:
        keep: whether sources keep the text that was read, for records of lines and words.
    """
    name = part.file.name
    entry = Input(name, None)
    if part.rows is not None:
        return documents_of_rows(part.rows, entry, reading, keep)
    opener = partial(Place(part.file.uri).open, name, reading.binary)
    return iter([[(entry, file_document(name, opener, True, reading, keep))]])


def documents_of_rows(rows: tuple[Row, ...], entry: Input, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of rows in chunks; each repeats the columns that `reading.keep` names."""
    columns = CarriedColumns(reading, (), lambda line: None)
    return chunks((entry, document) for document in items(iter(rows), entry.name, reading, keep, columns))
