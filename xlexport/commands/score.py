"""The `score` command and its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from xlexport.choices import LEVELS, RECORD_FORMATS
from xlexport.commands.input_options import ItemSelection, item_options
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    DOCUMENT,
    OUTPUT,
    PATH,
    all_of,
    batch_option,
    document_options,
    grouped,
    runtime_options,
)
from xlexport.extras import require
from xlexport.progress_bar import DocumentsBar
from xlexport.terminal import (
    Failure,
    Interrupted,
    escaped_json,
    failure,
    is_quiet,
    print_json,
    quiet_option,
    standard_output,
    tell,
)
from xlruntime.messages import many_lines

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Input
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.records import Level
    from xlexport.scoring.totals import Totals

__all__ = ["OutputOptions", "RecordOptions", "format_of_ending", "score"]

ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


def format_of_ending(output: Path) -> Format:
    """Return the format of records in a file, by the ending of its name.

    Raises:
        click.UsageError: no format has this ending.
    """
    if output.suffix not in ENDINGS:
        raise click.UsageError(f"{output}: no format of that ending; use {', '.join(ENDINGS)}, or give --format.")
    return ENDINGS[output.suffix]


@dataclass(frozen=True)
class RecordOptions:
    """The unit of a record and its format; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    per: Level | None
    per_token: bool
    kind: Literal["jsonl", "csv", "tsv", "parquet"] | None
    as_json: bool
    detail: bool
    top: int | None
    region_field: str | None
    boundary: Literal["plain", "corrected"]
    bos: str | None

    def __post_init__(self) -> None:
        if self.per_token and self.per not in (None, "token"):
            raise click.UsageError(f"--per-token is --per token, but --per is {self.per}. Give one of them.")
        if self.top is not None and self.level != "token":
            raise click.UsageError("--top is for tokens. Add --per token.")
        if self.detail and self.level == "document":
            raise click.UsageError("--detail is for parts of a document. Add --per token, word, region or line.")
        if self.region_field is not None and self.level != "region":
            raise click.UsageError("--region-field is for regions. Add --per region.")
        if self.boundary == "corrected" and self.level not in ("word", "region"):
            raise click.UsageError("--boundary is for words and regions. Add --per word or --per region.")
        if self.as_json and self.kind not in (None, "jsonl"):
            raise click.UsageError(f"--json is --format jsonl, but --format is {self.kind}. Give one of them.")

    @property
    def level(self) -> Level:
        """The unit of one record."""
        return "token" if self.per_token else self.per or "document"

    @property
    def alternatives(self) -> int | None:
        """The number of likeliest tokens in a token's record; None: no detail at all."""
        return self.top if self.top is not None else 0 if self.detail else None

    def format_for(self, output: Path | None) -> Format:
        """Return the format of the records in `output`; None: standard output."""
        if self.kind == "parquet" and output is None:
            raise click.UsageError("Parquet is a format of files. Give one with -o.")
        if self.as_json or self.kind is not None:
            return self.kind or "jsonl"
        if output is None:
            return "text" if self.level == "document" else "jsonl"
        return format_of_ending(output)


@dataclass(frozen=True)
class OutputOptions:
    """Where records are written; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    output: Path | None
    force: bool
    resume: bool
    save_every: float

    def __post_init__(self) -> None:
        if self.path is None and (self.force or self.resume):
            raise click.UsageError("--resume and --force are about an output file. Give it with -o.")
        if self.force and self.resume:
            raise click.UsageError("--resume goes on with what is there, --force begins again. Give one of them.")

    @property
    def path(self) -> Path | None:
        """Return the file to write; None: standard output."""
        return None if str(self.output) == "-" else self.output


input_options = all_of(
    item_options,
    click.option("--strict", is_flag=True, help="Stop at the first document that cannot be scored."),
    batch_option,
)

record_options = all_of(
    click.option(
        "--per",
        type=click.Choice(LEVELS),
        help="Write one record for each document, line, word, region or token; totals go to stderr. Marks | in the "
        "text separate regions, and are removed.  [default: document]",
    ),
    click.option("--per-token", is_flag=True, help="The same as --per token."),
    click.option(
        "--format",
        "kind",
        type=click.Choice(RECORD_FORMATS),
        help="Format of the records.  [default: by the ending of --output; on stdout jsonl, and text for documents]",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl; totals on stderr are JSON, too."),
    click.option(
        "--detail",
        is_flag=True,
        help="Also entropies of the predictions, in nats; with --per token also the rank. Not for documents.",
    ),
    click.option(
        "--top", type=click.IntRange(1, 10), metavar="K", help="With --per token: also the K likeliest tokens."
    ),
    click.option(
        "--region-field",
        metavar="NAME",
        help="With --per region and --field: the field with the regions, as the text with marks, or as the numbers of "
        "the characters where they begin.",
    ),
    click.option(
        "--boundary",
        type=click.Choice(["plain", "corrected"]),
        default="plain",
        show_default=True,
        help="corrected: also surprisal that includes the end of a word instead of the end of the word before it. "
        "Takes about five times as long.",
    ),
    click.option(
        "--bos",
        metavar="TOKEN|TEXT",
        help="Let the model read this token before each document, so that the first token has a score, too: a name "
        r"such as '<eos>', or a text of one token such as '\n'.",
    ),
    grouped("record", RecordOptions),
)

output_options = all_of(
    click.option(
        "-o", "--output", type=OUTPUT, metavar="FILE", help="Write to FILE, which appears when it is complete."
    ),
    click.option("--force", is_flag=True, help="Replace FILE, or the rest of an interrupted run."),
    click.option("--resume", is_flag=True, help="Continue an interrupted run; the output is the same, byte for byte."),
    click.option(
        "--save-every",
        type=click.FloatRange(0),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        help="How often a run with --output saves the state from which --resume continues.",
    ),
    quiet_option,
    grouped("writing", OutputOptions),
)


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport score bundle book.txt", "Bits per byte of one text."),
        ("xlexport score bundle texts --include '*.txt' --per token --top 5", "Tokens, each with likelier ones."),
        (
            "xlexport score bundle items.csv --field sentence --context-field preamble --per word -o words.csv",
            "Every word of experimental items, after their contexts.",
        ),
    ),
)
@click.argument("bundle", type=PATH)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@headed("Records", record_options)
@headed("Output", output_options)
@headed("Input", input_options)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def score(
    bundle: Path,
    files: tuple[Path, ...],
    record: RecordOptions,
    writing: OutputOptions,
    selection: ItemSelection,
    strict: bool,
    batch_size: int,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Score FILES with BUNDLE, each as one document of any length. Needs no PyTorch.

    FILES are files, folders, quoted patterns ('books/**/*.txt') or '-' for standard input; gzip is unpacked.
    With --field, each row of JSON lines or of a table is a document.
    `score` reports a document that it cannot read and continues with the others; the exit status is then 1.
    """
    _check_records(record, selection, batch_size)
    output, kind = writing.path, record.format_for(writing.path)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.inputs import extent, find_inputs, nothing_in
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.run import RunOptions, score_run

    file = None if output is None else PartialFile(output, _finisher(kind))
    if file is not None:
        file.check(writing.force, writing.resume)
        if writing.resume and file.path.exists() and not file.partial.exists():
            file.forget_state()  # left by a run that was killed after its last step
            tell(
                f"{file.path}: complete already, so nothing was done. Options and inputs were not compared with those "
                "it was made of; --force scores them again."
            )
            return
    reading = replace(selection.reading, regions=record.level == "region", region_field=record.region_field)
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(files, selection.include, reading, written, tell)
    _check_inputs(inputs, output, writing.resume)
    model = open_bundle(bundle, **runtime)
    options = RunOptions(
        per=record.level,
        kind=kind,
        reading=reading,
        batch_size=batch_size,
        detail=record.alternatives,
        continuous=selection.continuous,
        separator=selection.between,
        strict=strict,
        bos=record.bos,
        corrected=record.boundary == "corrected",
    )
    reporter = _Reporter(DocumentsBar(*extent(inputs, reading)), record.as_json)
    try:
        totals = score_run(
            model,
            model.evaluation(**evaluation),
            inputs,
            options,
            sys.stdin.buffer,
            file or _StandardOutput(reporter, kind),
            reporter,
            writing.save_every,
            writing.resume,
        )
        if file is not None:
            file.publish() if totals.documents else file.discard()
        if not totals.documents and not totals.failed:
            raise nothing_in([given.name for given in inputs], "lines that are not blank")
    except KeyboardInterrupt:
        if file is None:
            raise Interrupted("interrupted; standard output has what was scored until then.") from None
        if not file.partial.exists():
            raise
        again = all(given.repeatable for given in inputs)
        repair = "Go on with --resume." if again else "Its input cannot be read again: begin again with --force."
        raise Interrupted(f"interrupted; {file.partial} has what was scored. {repair}") from None
    finally:
        if file is not None:
            file.close()
    if totals.failed:
        click.get_current_context().exit(1)


def _check_records(record: RecordOptions, selection: ItemSelection, batch_size: int) -> None:
    """Refuse records that the inputs or the other options do not allow."""
    if selection.ids and record.level in ("line", "word", "region"):
        raise click.UsageError(f"--ids has no text to find a {record.level} in. Use --per token or --per document.")
    if record.region_field is not None and selection.field is None:
        raise click.UsageError("--region-field is for JSON lines and tables. Give --field, too.")
    if (selection.continuous or record.boundary == "corrected") and batch_size > 1:
        option = "--continuous" if selection.continuous else "--boundary corrected"
        raise click.UsageError(f"{option} scores documents one after another. Leave out --batch-size.")


def _finisher(kind: Format) -> Callable[[Path, Path], None] | None:
    """Return what turns the complete records into a file of this format; None if they are such a file."""
    if kind != "parquet":
        return None
    require("tables")
    from xlexport.scoring.parquet_output import write_parquet

    return write_parquet


class _Reporter:
    """What `score` prints to standard error: lines for people, or objects with --json; on a terminal also a bar."""

    def __init__(self, bar: DocumentsBar, as_json: bool) -> None:
        self._bar, self._as_json = bar, as_json
        self.take, self.clear = bar.take, bar.clear

    def tell(self, line: str) -> None:
        self.clear()
        tell(line)

    def fail(self, document: str, error: Exception) -> None:
        self.clear()
        found = failure(error) or Failure(f"{document}: {error}", None, type(error).__name__, f"{document}: {error}")
        found.show(self._as_json)

    def total(self, fields: Mapping[str, Any]) -> None:
        from xlexport.scoring.output_formats import document_line

        self.clear()
        if is_quiet():
            return
        if self._as_json:
            print_json(dict(fields), err=True)
        else:
            tell(document_line(fields))

    def resumed(self, totals: Totals) -> None:
        self._bar.resumed(totals.documents + totals.failed, totals.bytes)


class _StandardOutput:
    """Records on standard output, written step by step; on a terminal only what it can show."""

    def __init__(self, reporter: _Reporter, kind: Format) -> None:
        self._file = sys.stdout.buffer
        self._clear = reporter.clear if sys.stdout.isatty() else None
        self._escaped = escaped_json if kind == "jsonl" else many_lines

    def write(self, raw: bytes) -> None:
        if self._clear is not None:
            self._clear()
            raw = self._escaped(raw.decode("utf-8")).encode("utf-8")
        with standard_output():
            self._file.write(raw)

    def flush(self) -> None:
        with standard_output():
            self._file.flush()


def _check_inputs(inputs: Sequence[Input], output: Path | None, resume: bool) -> None:
    """Refuse inputs that the output would replace, or that cannot be read again."""
    paths = [given.path for given in inputs if given.path is not None]
    if output is not None and os.path.realpath(output) in map(os.path.realpath, paths):
        raise click.UsageError(f"{output} is an input, which the output would replace. Give another.")
    if resume and not all(given.repeatable for given in inputs):
        raise click.UsageError("--resume reads its inputs again, but standard input and pipes are gone. Give files.")
