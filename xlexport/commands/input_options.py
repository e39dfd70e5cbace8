"""Declare the options that say how files become documents."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.options import Names, all_of, grouped
from xlexport.commands.settings import Setting

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Reading

__all__ = ["ItemSelection", "Selection", "item_options", "reading_options"]


class _Escaped(click.ParamType[str]):
    r"""A text in which `\n`, `\t`, `\r` and `\\` are the characters that they mean elsewhere."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
        return re.sub(r"\\([ntr\\])", lambda match: marks[match[1]], str(value))


@dataclasses.dataclass(frozen=True)
class Selection:
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
            raise click.UsageError("--id-field is for JSON lines and tables. Give --field, too.")

    @property
    def reading(self) -> Reading:
        """Return the same choices as the library takes them."""
        from xlexport.scoring.inputs import Reading

        reading = Reading(self.ids, self.field, self.id_field, keep=(), binary=self.binary)
        if self.max_document_bytes is None:
            return reading
        line, document = (
            dataclasses.replace(limits, bytes=self.max_document_bytes)
            for limits in (reading.line_limits, reading.document_limits)
        )
        return dataclasses.replace(reading, line_limits=line, document_limits=document)


@dataclasses.dataclass(frozen=True)
class ItemSelection(Selection):
    """How files become documents with a context and with columns.

    Raises:
        click.UsageError: the options do not go together.
    """

    context_field: str | None = None
    keep: tuple[str, ...] | None = None
    separator: str | None = None
    continuous: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in (("--context-field", self.context_field), ("--keep", self.keep)):
            if value is not None and self.field is None:
                raise click.UsageError(f"{option} is for JSON lines and tables. Give --field, too.")
        if self.separator is not None and self.ids:
            raise click.UsageError("--separator is text, but the files hold token ids. Leave it out.")
        if self.separator is not None and not self.continuous and self.context_field is None:
            raise click.UsageError("--separator is for --continuous and --context-field. Add one of them.")

    @property
    def reading(self) -> Reading:
        """Return the same choices as the library takes them."""
        reading = super().reading
        separator = reading.separator if self.separator is None else self.separator
        return dataclasses.replace(reading, context_field=self.context_field, keep=self.keep, separator=separator)

    @property
    def between(self) -> str:
        """The text between documents with --continuous."""
        return "" if self.ids or not self.continuous else "\n" if self.separator is None else self.separator


def _one_context(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise click.UsageError("--context-field is given twice, but a document has one context. `report` compares two.")
    return given[0] if given else None


_file_options = all_of(
    click.option(
        "--field",
        metavar="NAME",
        help="Each row of .csv, .tsv, .parquet or JSON lines has a document in this field.",
    ),
    click.option("--id-field", metavar="NAME", help="With --field: the field that holds a document's name."),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="From folders, take only files with names such as '*.txt'.",
    ),
    click.option("--ids", is_flag=True, help="The files hold token ids, separated by white space."),
    click.option(
        "--binary",
        cls=Setting,
        type=click.BOOL,
        default=False,
        show_default=True,
        help="Whether to read also files that are not text: with zero bytes, or marked as UTF-16.",
    ),
    click.option(
        "--max-document-bytes",
        cls=Setting,
        type=click.IntRange(1),
        help="Limit for documents that are read as a whole: rows, and texts for a tokenizer.json or a "
        "SentencePiece model.  [default: 64 MiB and 16 MiB]",
    ),
)

reading_options = all_of(_file_options, grouped("selection", Selection))

item_options = all_of(
    _file_options,
    click.option(
        "--context-field",
        metavar="NAME",
        multiple=True,
        callback=_one_context,
        help="With --field: the field with the text to read before the document, unscored.",
    ),
    click.option(
        "--keep",
        type=Names(),
        metavar="NAME,NAME",
        help="With --field: columns that records repeat; '' for none.  [default: all others]",
    ),
    click.option(
        "--continuous",
        is_flag=True,
        help="Carry memory from each document to the next.",
    ),
    click.option(
        "--separator",
        type=_Escaped(),
        metavar="TEXT",
        help=r"Text that the model reads between documents with --continuous, if the first does not end in white "
        r"space, and between context and document. It is not scored.  [default: '\n'; after a context ' ']",
    ),
    grouped("selection", ItemSelection),
)
