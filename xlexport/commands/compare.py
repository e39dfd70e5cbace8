"""The `compare` command: differences between records of `score`."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import force_option, json_option
from xlexport.commands.values import NAMES, OUTPUT, PATH
from xlexport.extras import require
from xlexport.scoring.score_options import ENDINGS, NO_FORMAT, OutputFormat, RecordFormat
from xlexport.terminal import print_json, print_text, tell

if TYPE_CHECKING:
    from xlexport.scoring.comparison import Conditions

__all__ = ["compare"]


class _Pair(click.ParamType["Conditions"]):
    """Two values of a column: COLUMN=A,B."""

    name = "COLUMN=A,B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        column, mark, values = str(value).partition("=")
        conditions = [part.strip() for part in values.split(",")]
        if not (column.strip() and mark and len(conditions) == 2 and all(conditions)) or len(set(conditions)) < 2:
            self.fail(f"{value!r} is not a column with two values, such as condition=related,unrelated.", param, ctx)
        from xlexport.scoring.comparison import Conditions

        return Conditions(column.strip(), *conditions)


class _Equal(click.ParamType[tuple[str, str]]):
    """A column and its value: COLUMN=VALUE."""

    name = "COLUMN=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        column, mark, cell = str(value).partition("=")
        if not (column.strip() and mark):
            self.fail(f"{value!r} is not a column with a value, such as index=3.", param, ctx)
        return column.strip(), cell


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport compare words_a.csv words_b.csv", "Two bundles on one text, or two contexts, word by word."),
        (
            "xlexport compare words.csv --pair condition=related,unrelated --by item,index",
            "Two conditions of the same items, word by word.",
        ),
        (
            "xlexport compare words.csv --pair condition=related,unrelated --by item --where word=critical",
            "Only the word that the column critical names.",
        ),
    ),
)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH, required=False)
@headed(
    "Input",
    click.option(
        "--pair",
        "conditions",
        type=_Pair(),
        metavar="COLUMN=A,B",
        help="Compare the rows that have value A in a column of the only table with those that have value B.",
    ),
    click.option(
        "--where",
        type=_Equal(),
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Take only rows with this value in COLUMN. If VALUE names another column, its value counts. Repeatable.",
    ),
    click.option(
        "--by",
        type=NAMES,
        default=(),
        metavar="NAME,NAME",
        help="Columns with equal values in both rows of a pair.  [default: document, index or line, and the text; with "
        "--pair item or document, and index or line]",
    ),
    click.option(
        "--value", metavar="NAME", help="Column to compare.  [default: bits, or surprisal_bits if it has tokens]"
    ),
    click.option(
        "--items",
        metavar="NAME",
        help="Column of the items; the standard error is over their means.  [default: the first of --by]",
    ),
)
@headed(
    "Output",
    click.option(
        "--format",
        "kind",
        type=click.Choice(get_args(RecordFormat)),
        help="Format of the records.  [default: from the ending of --output; on stdout jsonl]",
    ),
    click.option("-o", "--output", type=OUTPUT, metavar="FILE", help="Write the records to FILE."),
    force_option,
    json_option("only the summary"),
)
def compare(
    a: Path,
    b: Path | None,
    conditions: Conditions | None,
    where: tuple[tuple[str, str], ...],
    by: tuple[str, ...],
    value: str | None,
    items: str | None,
    kind: RecordFormat | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare records of `score` in pairs: two tables A and B, or two conditions in the table A.

    The tables are .jsonl, .csv, .tsv or .parquet. Each pair of rows becomes a record with both values and their
    difference. The summary on stderr has the means over items, the standard error of their difference, and t.
    With --json, `compare` prints only this summary.
    """
    if (b is None) == (conditions is None):
        raise click.UsageError("Give a second table, or two conditions of one table: --pair condition=A,B.")
    output = None if str(output) == "-" else output
    if as_json and (output is not None or kind is not None):
        raise click.UsageError("--json prints the summary alone. Leave out --output and --format.")
    if output is None and kind == "parquet":
        raise click.UsageError("Parquet needs an output file. Name one with -o.")
    if output is None and force:
        raise click.UsageError("--force is about an output file. Give it with -o.")
    if kind is None and output is not None and output.suffix not in ENDINGS:
        raise click.UsageError(f"{output}: {NO_FORMAT}")
    output_kind = kind or ("jsonl" if output is None else ENDINGS[output.suffix])
    from xlexport.atomic_output import check_file
    from xlexport.scoring.comparison import PairedComparison
    from xlexport.scoring.documents import table

    if output_kind == "parquet":
        require("tables")
    if output is not None:
        check_file(output, force)
    comparison = PairedComparison(
        table(a), None if b is None else table(b), conditions=conditions, by=by, value=value, items=items, where=where
    )
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


def _write(lines: Iterator[bytes], output: Path, kind: OutputFormat, force: bool) -> None:
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
