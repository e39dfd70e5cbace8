"""The `compare` command: differences between two tables of `score`, record by record."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from xlexport.choices import RECORD_FORMATS
from xlexport.commands.options import OUTPUT, PATH, Names
from xlexport.commands.score_options import format_of_ending
from xlexport.extras import require
from xlexport.terminal import print_json, print_text, tell

if TYPE_CHECKING:
    from xlexport.scoring.output_formats import Format

__all__ = ["compare"]


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option(
    "--by",
    type=Names(),
    default=(),
    metavar="NAME,NAME",
    help="Columns that must be equal in both rows of a pair.  [default: document, index or line, and the text]",
)
@click.option(
    "--value", metavar="NAME", help="The column to compare.  [default: bits, or surprisal_bits if it has tokens]"
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(RECORD_FORMATS),
    help="Format of the records.  [default: by the ending of --output; on stdout jsonl]",
)
@click.option("-o", "--output", type=OUTPUT, metavar="FILE", help="Write to FILE.")
@click.option("--force", is_flag=True, help="Replace FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, and no records.")
def compare(
    a: Path,
    b: Path,
    by: tuple[str, ...],
    value: str | None,
    kind: Literal["jsonl", "csv", "tsv", "parquet"] | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare two tables of `score`, A and B, record by record: two bundles on one text, or two contexts.

    The tables are .jsonl, .csv, .tsv or .parquet. Each pair of rows becomes a record with both values and A - B. The
    summary on stderr has the means and the standard error of the difference; with --json it is all that is printed.
    """
    output = None if str(output) == "-" else output
    if as_json and (output is not None or kind is not None):
        raise click.UsageError("--json prints the summary alone. Leave out --output and --format.")
    if output is None and kind == "parquet":
        raise click.UsageError("Parquet is a format of files. Give one with -o.")
    if output is None and force:
        raise click.UsageError("--force is about an output file. Give it with -o.")
    output_kind = kind or ("jsonl" if output is None else format_of_ending(output))
    from xlexport.atomic_output import check_file
    from xlexport.scoring.comparison import Comparison
    from xlexport.scoring.documents import table

    if output_kind == "parquet":
        require("tables")
    if output is not None:
        check_file(output, force)
    comparison = Comparison(table(a), table(b), by, value)
    summary = comparison.summary()  # before anything is written: the tables may not match
    if as_json:
        print_json(summary.to_dict())
        return
    from xlexport.scoring.output_formats import encoder, header_line

    records = comparison.records()
    first = next(records)
    header = header_line(output_kind, first)
    lines = itertools.chain([header] if header else [], map(encoder(output_kind), itertools.chain([first], records)))
    if output is not None:
        _write(lines, output, output_kind, force)
    else:
        for line in lines:
            print_text(line.decode("utf-8").removesuffix("\n"))
    tell(str(summary))


def _write(lines: Iterator[bytes], output: Path, kind: Format, force: bool) -> None:
    """Write records to a file, which appears when it is complete."""
    from xlexport.atomic_output import check_file, file, naming
    from xlexport.scoring.output_formats import write_parquet

    with naming(output), file(output, lambda: check_file(output, force)) as temporary:
        if kind == "parquet":
            with tempfile.TemporaryDirectory() as folder:
                records = Path(folder, "records.jsonl")
                _write_lines(lines, records)
                write_parquet(records, temporary)
        else:
            _write_lines(lines, temporary)


def _write_lines(lines: Iterator[bytes], path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(lines)
