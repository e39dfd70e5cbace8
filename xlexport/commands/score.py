"""The `score` command and its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from xlexport.choices import LEVELS
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    DOCUMENT,
    OUTPUT,
    PATH,
    Selection,
    all_of,
    batch_option,
    document_options,
    grouped,
    reading_options,
    runtime_options,
)
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
    from xlexport.scoring.inputs import Input, Reading
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.records import Level
    from xlexport.scoring.totals import Totals

__all__ = ["OutputOptions", "RecordOptions", "score"]

ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}


@dataclass(frozen=True)
class RecordOptions:
    """The unit of a record and its format; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    per: Level | None
    per_token: bool
    kind: Literal["jsonl", "csv"] | None
    as_json: bool
    detail: bool
    top: int | None

    def __post_init__(self) -> None:
        if self.per_token and self.per not in (None, "token"):
            raise click.UsageError(f"--per-token is --per token, but --per is {self.per}. Give one of them.")
        if (self.detail or self.top is not None) and self.level != "token":
            raise click.UsageError("--detail and --top are for tokens. Add --per token.")
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
        if self.as_json or self.kind is not None:
            return self.kind or "jsonl"
        if output is None:
            return "text" if self.level == "document" else "jsonl"
        if output.suffix not in ENDINGS:
            raise click.UsageError(f"{output}: no format of that ending; use {', '.join(ENDINGS)}, or give --format.")
        return ENDINGS[output.suffix]


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
    reading_options,
    click.option("--strict", is_flag=True, help="Stop at the first document that cannot be scored."),
    click.option(
        "--continuous",
        is_flag=True,
        help="Carry memory from each document to the next, in the order given. Nothing is put between them: end each "
        "with a newline.",
    ),
    batch_option,
)

record_options = all_of(
    click.option(
        "--per",
        type=click.Choice(LEVELS),
        help="Write one record for each document, line, word or token; totals go to stderr.  [default: document]",
    ),
    click.option("--per-token", is_flag=True, help="The same as --per token."),
    click.option(
        "--format",
        "kind",
        type=click.Choice(["jsonl", "csv"]),
        help="Format of the records.  [default: by the ending of --output; on stdout jsonl, and text for documents]",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl; totals on stderr are JSON, too."),
    click.option(
        "--detail", is_flag=True, help="With --per token: rank, and the entropy of each prediction (natural logarithm)."
    ),
    click.option(
        "--top", type=click.IntRange(1, 10), metavar="K", help="With --per token: also the K likeliest tokens."
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
        ("xlexport score bundle texts --include '*.txt' --per word -o words.csv", "Every word of a folder's texts."),
        ("xlexport score bundle items.jsonl --field text --per token --top 5", "Tokens, each with likelier ones."),
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
    selection: Selection,
    strict: bool,
    continuous: bool,
    batch_size: int,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Score FILES with BUNDLE, each as one document of any length. Needs no PyTorch.

    FILES are files, folders, quoted patterns ('books/**/*.txt') or '-' for standard input; gzip is unpacked.
    `score` reports a document that it cannot read and continues with the others; the exit status is then 1.
    """
    if selection.ids and record.level in ("line", "word"):
        raise click.UsageError(f"--ids has no text to find a {record.level} in. Use --per token or --per document.")
    if continuous and batch_size > 1:
        raise click.UsageError("--continuous scores documents one after another. Leave out --batch-size.")
    output, kind = writing.path, record.format_for(writing.path)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.inputs import extent, find_inputs, nothing_in
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.run import RunOptions, score_run

    file = None if output is None else PartialFile(output)
    if file is not None:
        file.check(writing.force, writing.resume)
        if writing.resume and file.path.exists() and not file.partial.exists():
            file.forget_state()  # left by a run that was killed after its last step
            tell(
                f"{file.path}: complete already, so nothing was done. Options and inputs were not compared with those "
                "it was made of; --force scores them again."
            )
            return
    reading = selection.reading
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(files, selection.include, reading, written, tell)
    _check_inputs(inputs, reading, output, writing.resume)
    model = open_bundle(bundle, **runtime)
    options = RunOptions(
        per=record.level,
        kind=kind,
        reading=reading,
        batch_size=batch_size,
        detail=record.alternatives,
        continuous=continuous,
        strict=strict,
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


def _check_inputs(inputs: Sequence[Input], reading: Reading, output: Path | None, resume: bool) -> None:
    """Refuse inputs that do not fit the options, and report files that are not text."""
    from xlruntime.messages import listed

    paths = [given.path for given in inputs if given.path is not None]
    if output is not None and os.path.realpath(output) in map(os.path.realpath, paths):
        raise click.UsageError(f"{output} is an input, which the output would replace. Give another.")
    if resume and not all(given.repeatable for given in inputs):
        raise click.UsageError("--resume reads its inputs again, but standard input and pipes are gone. Give files.")
    if reading.field is None and not reading.ids and (binary := [given.name for given in inputs if given.is_binary]):
        tell(f"{listed(binary)}: not text (contains zero bytes), but scored nevertheless.")
