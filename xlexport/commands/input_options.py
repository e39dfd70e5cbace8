"""Declare the options that turn files into documents, and find these documents for all commands."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.long_help import options_from
from xlexport.commands.options import usage_errors
from xlexport.scoring.score_options import InputOptions
from xlexport.terminal import tell
from xlruntime.limits import Limits

if TYPE_CHECKING:
    from xlexport.scoring.traits import TraitCounter
    from xlruntime import Document

__all__ = ["SPECIAL", "find_document", "find_documents", "find_texts", "reading_options", "tell_traits"]

ALL_LIMITS = Limits(operations=1 << 40, seconds=math.inf)  # of all JSON lines that are held in memory
DOCUMENT_COST, ID_COST = 2000, 40  # bytes of memory for a document, and for a token id in a list


class _Delimiter(click.ParamType[str]):
    """One character, or the name of a tab."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        mark = {"tab": "\t", r"\t": "\t"}.get(value, str(value))
        if len(mark) != 1 or mark in '\r\n"' or not mark.isascii():
            self.fail(f"{value!r} is not one character, such as ';', or 'tab'.", param, ctx)
        return mark


SPECIAL: dict[str, Any] = {
    "delimiter": {"type": _Delimiter()},
    "include": {"multiple": True, "type": str},
}
reading_options = options_from(InputOptions, "input_options", **SPECIAL)


def find_documents(files: Sequence[Path], input_options: InputOptions, keep: bool = False) -> list[Document]:
    """Return the documents in files, folders, patterns and standard input; only JSON lines are opened already.

    Args:
        keep: whether their sources keep the text that was read.

    Raises:
        click.UsageError: --include would do nothing.
        TextError: no document is found, or lines exceed the limits. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import documents
    from xlexport.scoring.input_search import find_inputs
    from xlexport.scoring.inputs import nothing_in
    from xlruntime import TextError

    reading = input_options.reading
    with usage_errors():
        inputs = find_inputs(files, input_options.include, reading, [], tell)
    budget = ALL_LIMITS.budget("all documents together", TextError)
    collection = []
    for document in documents(inputs, reading, sys.stdin.buffer, keep=keep):
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


def find_document(file: Path, input_options: InputOptions) -> Document:
    """Return the only document of a file, a folder, a pattern or standard input, still unopened.

    Raises:
        click.UsageError: --include would do nothing.
        TextError: there are several documents, or none. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import only_document
    from xlexport.scoring.input_search import find_inputs

    reading = input_options.reading
    with usage_errors():
        inputs = find_inputs([file], input_options.include, reading, [], tell)
    document = only_document(inputs, reading, sys.stdin.buffer)
    tell_traits([getattr(document.source, "traits", None)])
    return document
