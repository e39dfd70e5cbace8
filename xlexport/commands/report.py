"""The `report` command and its options."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import reading_options, tell_traits
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    all_of,
    document_options,
    force_option,
    grouped,
    quiet_option,
    refuse,
    runtime_options,
    usage_errors,
)
from xlexport.commands.values import BUNDLE, DOCUMENT, NAMES, PATH
from xlexport.progress_bar import DocumentsBar, progress_bar
from xlexport.terminal import drawing, tell
from xlruntime.hub_cache import folder_name

if TYPE_CHECKING:
    from xlexport.report.list_page import ListRow
    from xlexport.scoring.inputs import Input, Reading
    from xlexport.scoring.score_options import InputOptions
    from xlruntime import Document, Model

__all__ = ["PageOptions", "report"]

ENDINGS = (".html", ".htm")
TOP = 5
MOST_SHOWN = 5  # documents that are left out and named on standard error


def _page(context: click.Context, parameter: click.Parameter, text: str | None) -> Path | None:
    """Return the page that -o names, if its ending is one that browsers and servers know as a page."""
    if text is None:
        return None
    if text == "-":
        raise click.UsageError(
            "`report` cannot write a page to standard output. Name a file that ends in .html with -o."
        )
    if text.endswith(("/", os.sep)) or Path(text).is_dir():
        raise click.UsageError(f"{text}: a folder, expected a file. Name the page in it: -o {Path(text, 'page.html')}")
    if Path(text).suffix.lower() not in ENDINGS:
        raise click.UsageError(f"{text}: the name of a page must end in .html or .htm.")
    return Path(text)


@dataclass(frozen=True)
class PageOptions:
    """The content and the place of a page; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    output: Path | None
    force: bool
    top: int | None
    title: str | None
    other: Path | None
    context_fields: tuple[str, ...]
    keep: tuple[str, ...] | None
    bos: str | None
    picture: Path | None

    def __post_init__(self) -> None:
        if len(self.context_fields) > 2:
            raise click.UsageError(
                f"--context-field is given {len(self.context_fields)} times, but a page has at most two sides."
            )
        if len(self.context_fields) == 2 and self.other is not None:
            raise click.UsageError(
                "A page compares two bundles or two contexts. Leave out --with or a --context-field."
            )

    def output_for(self, files: Sequence[Path]) -> Path:
        """Return the file to write.

        Raises:
            click.UsageError: none is given, and the documents have no name in common.
        """
        if self.output is not None:
            return self.output
        if len(files) > 1:
            raise click.UsageError("Several files give the page no name. Name it with -o.")
        (file,) = files
        if str(file) == "-":
            raise click.UsageError("Standard input gives the page no name. Name it with -o.")
        if not file.name or (glob.has_magic(str(file)) and not file.exists()):
            raise click.UsageError(f"{file} gives the page no name. Name it with -o.")
        return file.with_name(f"{file.name}.html") if file.is_dir() else file.with_suffix(".html")

    def title_for(self, inputs: Sequence[Input]) -> str:
        """Return the title of a page of several documents."""
        if self.title is not None:
            return self.title
        name = inputs[0].path.name if inputs[0].path is not None else inputs[0].name
        return name if len(inputs) == 1 else f"{name} and {len(inputs) - 1:,} more"


page_options = all_of(
    headed(
        "Output",
        click.option(
            "-o",
            "--output",
            callback=_page,
            metavar="PAGE",
            help="HTML file to write.  [default: FILE as .html]",
        ),
        force_option,
        click.option(
            "--picture",
            type=PATH,
            metavar="FILE",
            help="Also draw surprisal by word into a .svg or .png.",
        ),
    ),
    click.option(
        "--top",
        type=click.IntRange(0, 10),
        help=f"Likeliest tokens to show at each.  [default: {TOP}]",
    ),
    click.option("--title", help="Title of the page.  [default: FILE's name]"),
    click.option(
        "--with",
        "other",
        type=BUNDLE,
        metavar="BUNDLE2",
        help="Also score with this bundle, and show A − B by word.",
    ),
    click.option(
        "--context-field",
        "context_fields",
        multiple=True,
        metavar="NAME",
        help="With --field: the field to read first, unscored. Two contexts are compared as sides A and B.",
    ),
    click.option(
        "--keep",
        type=NAMES,
        metavar="NAME,NAME",
        help="With --field: columns to show.  [default: all]",
    ),
    click.option(
        "--bos",
        metavar="TOKEN|TEXT|none",
        help="Token to read first.  [default: the tokenizer's]",
    ),
    grouped("page", PageOptions),
)


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport report bundle book.txt", "Write book.html: every token, and the likeliest ones there."),
        (
            r"xlexport report bundle items.csv --field sentence --id-field item --keep condition --bos '\n'",
            "List items with their conditions, each by word.",
        ),
        (
            "xlexport report bundle items.csv --field sentence --with bundle2 -o sides.html --picture sides.svg",
            "Compare two bundles, and draw a picture.",
        ),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@headed("Page", page_options)
@headed("Output", quiet_option)
@headed("Input", reading_options)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def report(
    bundle: Path,
    files: tuple[Path, ...],
    page: PageOptions,
    input_options: InputOptions,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Write a web page that colours the text of FILES by surprisal under BUNDLE. It is one file, and works offline.

    For one document, the page shows every token. For several documents, it lists them, and each opens its text by word.
    With two sides A and B, it also shows the difference A − B of each word.
    """
    if input_options.field is None:
        of_rows = {"--context-field": page.context_fields, "--keep": page.keep is not None}
        refuse(of_rows, "for JSON lines and tables. Add --field.")
    output = page.output_for(files)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.input_search import find_inputs
    from xlexport.scoring.inputs import nothing_in

    outputs = [output, *([] if page.picture is None else [page.picture])]
    with usage_errors():
        inputs = find_inputs(files, input_options.include, input_options.reading, outputs, tell)
    _check_outputs(page, output, inputs)
    if len(page.context_fields) > 1 and not all(entry.repeatable for entry in inputs):
        raise click.UsageError(
            "Two contexts read their input twice, which standard input and pipes do not allow. Give files."
        )
    groups = _documents(inputs, input_options.reading, page)
    first = list(itertools.islice(groups, 2))
    if not first:
        raise nothing_in([entry.name for entry in inputs], "lines that are not blank")
    if len(first) == 1 and page.other is None and not page.context_fields:
        ((document,),) = first
        if input_options.field is None and inputs[0].path is not None:
            document = dataclasses.replace(document, name=inputs[0].path.name)
        _one_document(open_bundle(bundle, **runtime), document, page, output, evaluation)
        return
    if input_options.ids:
        raise click.UsageError(
            "A page of words needs text, but --ids reads token ids. Give text, or a single document."
        )
    if page.top is not None:
        raise click.UsageError(
            "--top is for a page of tokens, of a single document. This page shows words: leave it out."
        )
    bundles = [bundle] if page.other is None else [bundle, page.other]
    models = [open_bundle(path, **runtime) for path in bundles]
    _several(models, bundles, itertools.chain(first, groups), inputs, page, output, evaluation)


def _documents(inputs: Sequence[Input], reading: Reading, page: PageOptions) -> Iterator[tuple[Document, ...]]:
    """Yield each document with its columns, once for each context; contexts are columns only if --keep names them."""
    from xlexport.scoring.documents import CarriedColumns, documents_by_input

    hidden = page.context_fields if page.keep is None else ()
    readings = [
        dataclasses.replace(reading, keep=page.keep, context_field=name) for name in page.context_fields or (None,)
    ]
    carried = CarriedColumns(readings[0], (), tell)
    streams = [
        documents_by_input(inputs, one, sys.stdin.buffer, False, carried if one is readings[0] else None)
        for one in readings
    ]
    counters: list[Any] = []
    tell_traits(counters)
    for group in zip(*streams, strict=True):
        first, *others = (document for _, document in group)
        columns = {name: value for name, value in first.columns.items() if name not in hidden}
        counters.append(getattr(first.source, "traits", None))
        yield dataclasses.replace(first, columns=columns), *others


def _bos(page: PageOptions, model: Model) -> int | bool | None:
    from xlexport.scoring.begin_token import chosen_bos

    return chosen_bos(page.bos, model.tokenizer)


def _check_outputs(page: PageOptions, output: Path, inputs: Sequence[Input]) -> None:
    """Refuse files that cannot be written, before any work is done; a missing input is reported before that."""
    from xlexport.atomic_output import check_file
    from xlexport.figures import check_picture

    sources = [os.path.realpath(entry.path) for entry in inputs if entry.path is not None]
    outputs = [output] if page.picture is None else [output, page.picture]
    for path in outputs:
        if os.path.realpath(path) in sources:
            raise click.UsageError(f"{path} is also an input, which the output would replace. Name another file.")
    if page.picture is not None:
        check_picture(page.picture)
    if not sources or any(map(os.path.exists, sources)):
        for path in outputs:
            check_file(path, page.force)


def _one_document(
    model: Model, document: Document, page: PageOptions, output: Path, evaluation: dict[str, Any]
) -> None:
    """Write the page of one document with all its tokens."""
    from xlexport.report.document_page import read_for_page, write_report
    from xlexport.report.list_page import ListRow
    from xlexport.report.words import Held, WordCollector
    from xlexport.scoring.totals import caveats, losses
    from xlruntime.messages import counted

    document = read_for_page(document)
    collector = None
    if page.picture is not None:
        if not isinstance(document.source, bytes):
            raise click.UsageError("--picture shows words, but --ids reads token ids. Give text.")
        collector = WordCollector(document.source, model.tokenizer)
    with progress_bar("scoring") as progress:
        score = write_report(
            model,
            document,
            output,
            top=TOP if page.top is None else page.top,
            bos=_bos(page, model),
            title=page.title,
            force=page.force,
            progress=progress,
            watch=(lambda part: None) if collector is None else collector.take,
            **evaluation,
        )
    for sentence in caveats(model.evaluation(**evaluation), model.tokenizer):
        tell(sentence)
    for sentence in losses(score):
        tell(f"{score.document}: {sentence}")
    tell(f"wrote {output}: {counted(score.tokens, 'token')}, {_size(output)}")
    if collector is not None:
        row = ListRow(Held(document.name, b""), (collector.words(),))
        _draw(page, [row], [""], page.title or document.name)


def _several(
    models: Sequence[Model],
    bundles: Sequence[Path],
    groups: Iterable[tuple[Document, ...]],
    inputs: Sequence[Input],
    page: PageOptions,
    output: Path,
    evaluation: dict[str, Any],
) -> None:
    """Write the page of several documents, or of two sides."""
    from xlexport.report.list_page import Side, score_sides, write_list
    from xlexport.report.words import Held, hold
    from xlruntime.messages import counted

    documents, further = hold(groups)
    contexts = [f"context: {name}" for name in page.context_fields] or [""]
    sides = [
        Side(", ".join(filter(None, (name, context))), model, model.evaluation(**evaluation), _bos(page, model))
        for name, model in zip(_names(bundles), models, strict=True)
        for context in contexts
    ]
    readable = [document for document in documents if isinstance(document, Held)]
    bar = DocumentsBar(len(readable) * len(sides), sum(len(document.raw) for document in readable) * len(sides))
    try:
        list_report = score_sides(documents, further, sides, bar.take)
    finally:
        bar.clear()
    title = page.title_for(inputs)
    write_list(list_report, output, title=title, force=page.force)
    for omission in list_report.left_out[:MOST_SHOWN]:
        tell(f"{omission.name}: left out: {omission.why}")
    for sentence in list_report.remarks:
        tell(sentence)
    words = sum(len(row.sides[0].starts) for row in list_report.scored)
    what = f"{counted(len(list_report.scored), 'document')}, {counted(words, 'word')}"
    tell(f"wrote {output}: {what}, {_size(output)}")
    _draw(
        page, list_report.scored, [f"{letter}: {side.name}" for letter, side in zip("AB", sides, strict=False)], title
    )
    if any(omission.failed for omission in list_report.left_out):
        click.get_current_context().exit(1)


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size / 1e3:,.0f} kB"


def _names(bundles: Sequence[Path]) -> list[str]:
    """Return the names of two sides, those of their folders if that is enough; the only side needs none."""
    if len(bundles) == 1:
        return [""]
    folders = [folder_name(path.resolve()) for path in bundles]
    return folders if len(set(folders)) == len(folders) else list(map(str, bundles))


def _draw(page: PageOptions, rows: Sequence[ListRow], sides: Sequence[str], title: str) -> None:
    """Draw the picture, if there should be one."""
    if page.picture is None:
        return
    from xlexport.report.picture import draw_words

    with drawing(page.picture, "The page is complete. Run the command again with --force to draw."):
        for sentence in draw_words(rows, sides, title, page.picture):
            tell(sentence)
