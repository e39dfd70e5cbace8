"""Declare the options that turn files into documents, and find these documents for all commands."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.options import all_of, declared, grouped
from xlexport.commands.settings import Setting
from xlexport.terminal import tell
from xlruntime.limits import Limits
from xltraining.config_fields import options_of, setting

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Reading
    from xlexport.scoring.traits import TraitCounter
    from xlruntime import Document

__all__ = [
    "Selection",
    "TableOptions",
    "file_options",
    "find_document",
    "find_documents",
    "find_texts",
    "reading_options",
    "tell_traits",
]

ALL_LIMITS = Limits(operations=1 << 40, seconds=math.inf)  # of all JSON lines that are held in memory
DOCUMENT_COST, ID_COST = 2000, 40  # bytes of memory for a document, and for a token id in a list


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are read."""

    delimiter: str | None = setting(
        None,
        "Mark between the columns of tables: a character or 'tab'. Files of any name are then tables.  [default: a "
        "comma, semicolon or tab, as the first row shows]",
        common=True,
    )


@dataclasses.dataclass(frozen=True)
class Selection(TableOptions):
    """How files become documents; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    field: str | None
    id_field: str | None
    include: tuple[str, ...]
    ids: bool
    max_document_bytes: int | None
    binary: bool = False

    def __post_init__(self) -> None:
        if self.id_field is not None and self.field is None:
            raise click.UsageError("--id-field is for JSON lines and tables. Add --field.")
        if self.delimiter is not None and self.field is None:
            raise click.UsageError("--delimiter is for tables. Add --field.")

    @property
    def reading(self) -> Reading:
        """Return the same choices as the library takes them."""
        from xlexport.scoring.inputs import Reading

        reading = Reading(self.ids, self.field, self.id_field, keep=(), binary=self.binary, delimiter=self.delimiter)
        if self.max_document_bytes is None:
            return reading
        line, document = (
            dataclasses.replace(limits, bytes=self.max_document_bytes)
            for limits in (reading.line_limits, reading.document_limits)
        )
        return dataclasses.replace(reading, line_limits=line, document_limits=document)


class _Delimiter(click.ParamType[str]):
    """One character, or the name of a tab."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        mark = {"tab": "\t", r"\t": "\t"}.get(value, str(value))
        if len(mark) != 1 or mark in '\r\n"' or not mark.isascii():
            self.fail(f"{value!r} is not one character, such as ';', or 'tab'.", param, ctx)
        return mark


file_options = all_of(
    click.option(
        "--field",
        metavar="NAME",
        help="Read a document from this field of each row of .csv, .tsv, .parquet or JSON lines.",
    ),
    declared(options_of(TableOptions)["delimiter"], type=_Delimiter(), metavar="MARK"),
    click.option("--id-field", metavar="NAME", help="With --field: the field with the document's name."),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="From folders, take only files whose names match, such as '*.txt'. Repeatable.",
    ),
    click.option("--ids", is_flag=True, help="Read the files as token ids separated by white space."),
    click.option(
        "--binary",
        cls=Setting,
        type=click.BOOL,
        metavar="true|false",
        default=False,
        show_default=True,
        help="Also read files that are not text: with zero bytes, or marked as UTF-16.",
    ),
    click.option(
        "--max-document-bytes",
        cls=Setting,
        type=click.IntRange(1),
        help="Most bytes of a document that is read as a whole: a row, or a text for a tokenizer.json or a "
        "SentencePiece model.  [default: 64 MiB and 16 MiB]",
    ),
)

reading_options = all_of(file_options, grouped("selection", Selection))


def find_documents(files: Sequence[Path], selection: Selection) -> list[Document]:
    """Return the documents in files, folders, patterns and standard input; only JSON lines are opened already.

    Raises:
        TextError: no document is found, or lines exceed the limits. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import documents
    from xlexport.scoring.input_search import find_inputs
    from xlexport.scoring.inputs import nothing_in
    from xlruntime import TextError

    reading = selection.reading
    inputs = find_inputs(files, selection.include, reading, [], tell)
    budget = ALL_LIMITS.budget("all documents together", TextError)
    collection = []
    for document in documents(inputs, reading, sys.stdin.buffer, keep=False):
        source: Any = document.source
        budget.charge(
            DOCUMENT_COST + (ID_COST * len(source) if isinstance(source, list) else getattr(source, "held", 0))
        )
        collection.append(document)
    if not collection:
        raise nothing_in([entry.name for entry in inputs], "lines that are not blank")
    tell_traits([getattr(document.source, "traits", None) for document in collection])
    return collection


def find_texts(arguments: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files that arguments name (files, folders, patterns), to train on their texts.

    Raises:
        TextError: no file is found.
    """
    from xlexport.scoring.input_search import find_inputs

    return tuple(entry.path or Path("-") for entry in find_inputs(arguments, (), None, (), tell)) if arguments else ()


def tell_traits(counters: Sequence[TraitCounter | None]) -> None:
    """Say at the end of the command which traits its documents have, as these have counted by then."""
    from xlexport.scoring.traits import TextTraits, trait_notes

    def show() -> None:
        found = TextTraits()
        for counter in counters:
            if counter is not None:
                found.add_traits(counter.found)
        for note in trait_notes(found):
            tell(note)

    if (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(show)


def find_document(file: Path, selection: Selection) -> Document:
    """Return the only document of a file, a folder, a pattern or standard input, still unopened.

    Raises:
        TextError: there are several documents, or none. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import only_document
    from xlexport.scoring.input_search import find_inputs

    reading = selection.reading
    document = only_document(find_inputs([file], selection.include, reading, [], tell), reading, sys.stdin.buffer)
    tell_traits([getattr(document.source, "traits", None)])
    return document
