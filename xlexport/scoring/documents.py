"""Documents from files of text or token ids, and from rows of JSON lines and tables. A document opens at its turn.

A document that cannot be read fails only then, as part of the scoring, so the caller can continue with the next one.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from xlexport.scoring.inputs import CHUNK, Input, Reading, nothing_in
from xlexport.scoring.items import CarriedColumns, items
from xlexport.scoring.json_lines import json_rows
from xlexport.scoring.parquet_rows import parquet_rows
from xlexport.scoring.regions import RegionSource
from xlexport.scoring.rows import Row
from xlexport.scoring.table_rows import table_rows
from xlexport.scoring.text_source import TextSource, open_input
from xlexport.scoring.token_ids import ids_of_words, no_ids
from xlruntime import Document, TextError
from xlruntime.documents import Ids
from xlruntime.limits import Limits, read_at_most

__all__ = [
    "KEPT_LIMITS",
    "documents",
    "documents_by_input",
    "file_document",
    "kept",
    "only_document",
    "rows_of",
    "table",
]

KEPT_LIMITS = Limits(bytes=64 << 20)  # for a document that is read more than once; `context` needs 24 times as much
MARK = b"\xef\xbb\xbf"  # byte-order mark that some editors write before UTF-8


def documents(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool) -> Iterator[Document]:
    """Yield the documents in inputs. A document is not opened before it is read.

    Args:
        keep: whether their sources are `TextSource`s that keep what is read until `let_go`.
    """
    return (document for _, document in documents_by_input(inputs, reading, stdin, keep))


def documents_by_input(
    inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool, columns: CarriedColumns | None = None
) -> Iterator[tuple[Input, Document]]:
    """Yield the same documents as `documents`, each with its input.

    Args:
        columns: chooses the columns that documents from rows have; None: they have none.

    Raises:
        TextError: columns have names that records use themselves.
        MissingDependencyError: a Parquet file needs a package that is not installed.
    """
    for given in inputs:
        opener = partial(open_input, given, stdin, reading.binary)
        if reading.field is None:
            yield given, file_document(given.name, opener, given.repeatable, reading, keep)
            continue
        rows = rows_of(given, TextSource(given.name, opener, given.repeatable), reading)
        yield from ((given, document) for document in items(rows, given.name, reading, keep, columns))


def file_document(
    name: str, opener: Callable[[], BinaryIO], repeatable: bool, reading: Reading, keep: bool
) -> Document:
    """Return the document that a whole file is.

    Args:
        opener: opens the file, unpacked. repeatable: whether it can be read again.
        keep: as for `documents`.
    """
    source = TextSource(name, opener, repeatable, keep)
    if reading.ids:
        return Document(name, _ids(source))
    if reading.regions:
        source = RegionSource(name, opener, repeatable, reading.document_limits, keep)
    return Document(name, cast(BinaryIO, source), reading.document_limits)


def table(path: Path) -> Callable[[], Iterator[Row]]:
    """Return a function that reads the rows of a table from the first."""
    given = Input(str(path), path)
    opener = partial(open_input, given, io.BytesIO())
    return lambda: rows_of(given, TextSource(given.name, opener, given.repeatable), Reading())


def rows_of(
    given: Input, source: TextSource, reading: Reading, open_table: Callable[[], BinaryIO] | None = None
) -> Iterator[Row]:
    """Yield the rows of a file, whose format is that of its name.

    Args:
        source: the file; open_table: opens a file of Parquet; None: it is opened by its path.
    """
    kind = given.row_format
    if kind == "json":
        return json_rows(source, reading)
    if kind == "parquet":
        return parquet_rows(given, reading, open_table)
    return table_rows(source, reading, "\t" if kind == "tsv" else ",")


def only_document(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO) -> Document:
    """Return the only document in inputs; it is not opened unless it is a row.

    Raises:
        TextError: there are several documents, or none.
    """
    found = list(itertools.islice(documents(inputs, reading, stdin, keep=False), 2))
    names = ", ".join(given.name for given in inputs[:2])
    if not found:
        raise nothing_in([names], "lines that are not blank")
    if len(found) > 1:
        raise TextError(
            f"{names}: several documents, expected one.", hint="Give one of them; `xlexport score` takes several."
        )
    return found[0]


def kept(document: Document, limits: Limits = KEPT_LIMITS) -> Document:
    """Return a document that can be read several times; if its source can be read only once, it is read now.

    Raises:
        OSError, TextError, TokenError: the document cannot be read, exceeds the limits, or does not hold token ids.
    """
    source: Any = document.source
    if isinstance(source, str | bytes | Path | np.ndarray | list):
        return document
    budget = limits.budget(document.name, TextError)
    if hasattr(source, "read"):
        return replace(document, source=read_at_most(source, budget))
    parts = [np.zeros(0, np.int64)]
    for ids in source:
        budget.charge(ids.nbytes)
        parts.append(ids)
    return replace(document, source=np.concatenate(parts))


def _ids(source: TextSource) -> Iterator[Ids]:
    """Yield token ids that are separated by white space, in pieces."""
    left = source.read(len(MARK)).removeprefix(MARK)
    while raw := source.read(CHUNK):
        raw = left + raw
        cut = max(map(raw.rfind, (b" ", b"\n", b"\t", b"\r"))) + 1
        if not cut and len(raw) > CHUNK:
            raise no_ids(source.name, f"{len(raw):,} bytes without white space")
        yield ids_of_words(raw[:cut].split(), source.name)
        left = raw[cut:]
    yield ids_of_words(left.split(), source.name)
