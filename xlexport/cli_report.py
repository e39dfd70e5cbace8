"""The `report` command and its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from xlexport.cli_options import document_options, runtime_options
from xlexport.cli_output import progress_bar, tell

__all__ = ["report"]

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", type=PATH, help="HTML file to write.  [default: FILE without its suffix + .html]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--top", type=click.IntRange(0, 10), default=5, show_default=True, help="Likeliest tokens to show for each token."
)
@click.option("--title", help="Of the page.  [default: FILE's name]")
@click.option("--ids", is_flag=True, help="The file holds token ids separated by white space, not text.")
@document_options
@runtime_options
def report(
    bundle: Path,
    file: Path,
    output: Path | None,
    force: bool,
    top: int,
    title: str | None,
    ids: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Write a web page about FILE: its text coloured by how surprising BUNDLE finds it. One file, works offline."""
    is_stdin = str(file) == "-"
    if output is None and is_stdin:
        raise click.UsageError("Standard input has no name to call the page by: give -o.")
    from xlexport.opening import open_bundle
    from xlexport.report import check_page, read_whole, write_report

    if file.is_dir():
        raise click.UsageError(f"{file} is a folder. A page is about one document: give a file.")
    output = output or file.with_suffix(".html")
    if not is_stdin and output.resolve() == file.resolve():
        raise click.UsageError(f"{output} is the file to report on. Give another one with -o.")
    if is_stdin or file.exists():  # else the missing file is what must be mended first
        check_page(output, force)
    document = read_whole(None if is_stdin else file, ids, sys.stdin.buffer)
    model = open_bundle(bundle, **runtime)
    score = write_report(
        model,
        document,
        output,
        top=top,
        title=title,
        force=force,
        progress=lambda length: progress_bar(length, "scoring"),
        **evaluation,
    )
    tell(f"wrote {output}: {score.tokens:,} tokens, {output.stat().st_size / 1e6:,.1f} MB")
