"""The `report` command and its options."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import click

from xlexport.commands.documents import only_document_given
from xlexport.commands.options import DOCUMENT, PATH, Selection, document_options, reading_options, runtime_options
from xlexport.progress_bar import progress_bar
from xlexport.terminal import quiet_option, tell

__all__ = ["report"]

ENDINGS = (".html", ".htm")


def _page(context: click.Context, parameter: click.Parameter, given: str | None) -> Path | None:
    """Return the page that -o names, if its ending is one that browsers and servers know as a page."""
    if given is None:
        return None
    if given == "-":
        raise click.UsageError("A page is not written to standard output: name a file that ends in .html with -o.")
    if given.endswith(("/", os.sep)) or Path(given).is_dir():
        raise click.UsageError(f"{given}: a folder. Name the page in it, too: -o {Path(given, 'page.html')}")
    if Path(given).suffix.lower() not in ENDINGS:
        raise click.UsageError(f"{given}: a page is HTML, so its name has to end in .html or .htm.")
    return Path(given)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("file", type=DOCUMENT)
@click.option(
    "-o",
    "--output",
    callback=_page,
    metavar="PAGE",
    help="HTML file to write.  [default: FILE without its suffix + .html]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--top",
    type=click.IntRange(0, 10),
    default=5,
    show_default=True,
    help="Number of likeliest tokens to show for each token.",
)
@click.option("--title", help="Title of the page.  [default: FILE's name]")
@quiet_option
@reading_options
@document_options
@runtime_options
def report(
    bundle: Path,
    file: Path,
    output: Path | None,
    force: bool,
    top: int,
    title: str | None,
    selection: Selection,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Write a web page about FILE: its text coloured by how surprising BUNDLE finds it. One file, works offline."""
    is_stdin = str(file) == "-"
    if output is None and is_stdin:
        raise click.UsageError("Standard input has no name to call the page by: give -o.")
    from xlexport.atomic_output import check_file
    from xlexport.bundles import open_bundle
    from xlexport.report.page import read_for_page, write_report
    from xlexport.scoring.caveats import caveats, losses

    if file.is_dir():
        raise click.UsageError(f"{file} is a folder. A page is about one document: give a file.")
    output = output or file.with_suffix(".html")
    if not is_stdin and output.resolve() == file.resolve():
        raise click.UsageError(f"{output} is the file to report on. Give another one with -o.")
    if is_stdin or file.exists():  # otherwise the missing file must be reported first
        check_file(output, force)
    document = read_for_page(only_document_given(file, selection))
    if selection.field is None and not is_stdin:
        document = dataclasses.replace(document, name=file.name)
    model = open_bundle(bundle, **runtime)
    with progress_bar("scoring") as progress:
        score = write_report(
            model, document, output, top=top, title=title, force=force, progress=progress, **evaluation
        )
    for said in caveats(model.evaluation(**evaluation), model.tokenizer):
        tell(said)
    for said in losses(score):
        tell(f"{score.document}: {said}")
    tell(f"wrote {output}: {score.tokens:,} tokens, {output.stat().st_size / 1e6:,.1f} MB")
