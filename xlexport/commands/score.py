"""The `score` command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import SPECIAL
from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import document_options, quiet_option, runtime_options, usage_errors
from xlexport.commands.values import BUNDLE, NAMES, OutputFile
from xlexport.progress_bar import DocumentsBar
from xlexport.scoring.score_options import HERE, OutputFormat, ScoreOptions
from xlexport.terminal import (
    Failure,
    Interrupted,
    escaped_json,
    failure,
    is_quiet,
    print_json,
    print_line,
    standard_output,
    tell,
)
from xlruntime.messages import many_lines, one_line

if TYPE_CHECKING:
    from xlexport.scoring.score_options import Level
    from xlexport.scoring.totals import Totals

__all__ = ["score"]


class _PlaceName(click.Path):
    """A path, or a text if it is the address of an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


class _OutputPlace(OutputFile):
    """A file to write; or a text if it is the address of an object store, or the name of a folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) or str(value).endswith("/") else super().convert(value, param, ctx)


class _Batch(click.ParamType[Any]):
    """A number of documents, or `auto`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in (None, "auto") else click.IntRange(1).convert(value, param, ctx)


class _Escaped(click.ParamType[str]):
    r"""A text in which `\n`, `\t`, `\r` and `\\` are the characters that they mean elsewhere."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
        return re.sub(r"\\([ntr\\])", lambda match: marks[match[1]], str(value))


def _one_context(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> str | None:
    if len(names) > 1:
        raise click.UsageError("--context-field is given twice, but `score` takes one context. `report` compares two.")
    return names[0] if names else None


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport score bundle book.txt", "Print bits per byte of one text."),
        (
            "xlexport score bundle texts --include '*.txt' --per token --top 5",
            "Score every token, and list the five likeliest.",
        ),
        (
            "xlexport score bundle items.csv --field sentence --context-field preamble --per word -o words.csv",
            "Score every word of experimental items after their contexts.",
        ),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("files", nargs=-1, required=True, type=_PlaceName(path_type=Path, allow_dash=True, readable=False))
@headed("Device", runtime_options)
@options_from(
    ScoreOptions,
    **SPECIAL,
    context_field={"multiple": True, "callback": _one_context},
    keep={"type": NAMES},
    join={"type": _Escaped()},
    separator={"type": _Escaped()},
    output={"type": _OutputPlace()},
    batch_size={"type": _Batch()},
    ray={"is_flag": False, "flag_value": HERE},
)
@headed("Output", quiet_option)
@headed("Model settings", document_options)
def score(
    bundle: Path, files: tuple[Path | str, ...], options: ScoreOptions, runtime: dict[str, Any], **evaluation: Any
) -> None:
    """Score FILES with BUNDLE, each as one document of any length.

    FILES are files, folders, quoted patterns ('books/**/*.txt'), s3:// addresses or '-'. With --field, each row of a
    table is a document. `score` reports unreadable documents, continues, and exits with 1.
    """
    from xlexport.score_files import ScoreRun
    from xlexport.scoring.inputs import extent

    with usage_errors():
        run = ScoreRun(bundle, files, options, runtime, tell)
    if run.is_complete:
        unchecked = "Options and inputs were not checked; --force scores again."
        tell(f"{run.output}: already complete, so nothing was done. {unchecked}")
        return
    chosen = options.as_json or options.kind is not None or options.level == "document"
    output = _StandardOutput(options.format) if chosen or not sys.stdout.isatty() else _Table(options.level)
    reporter = _Reporter(DocumentsBar(*extent(run.inputs, options.reading)), options.as_json)
    try:
        totals = run.score(evaluation, reporter, output, sys.stdin.buffer)
    except KeyboardInterrupt as error:
        if not error.args:
            raise
        raise Interrupted(str(error)) from None
    if totals.failed:
        click.get_current_context().exit(1)


class _Reporter:
    """Prints to standard error: lines for people, or objects with --json; on a terminal also a progress bar."""

    def __init__(self, bar: DocumentsBar, as_json: bool) -> None:
        self._bar, self._as_json = bar, as_json
        self.take, self.clear = bar.take, bar.clear

    def tell(self, line: str) -> None:
        tell(line)

    def fail(self, document: str, error: Exception) -> None:
        line = f"{document}: {error}"
        (failure(error) or Failure(line, None, type(error).__name__)).show(self._as_json)

    def total(self, fields: Mapping[str, Any]) -> None:
        from xlexport.scoring.output_formats import document_line

        if is_quiet():
            return
        if self._as_json:
            print_json(dict(fields), err=True)
        else:
            tell(document_line(fields))

    def resumed(self, totals: Totals) -> None:
        self._bar.resumed(totals.documents + totals.failed, totals.bytes)


class _StandardOutput:
    """Writes records to standard output at once; escapes what a terminal cannot show."""

    def __init__(self, kind: OutputFormat) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._escaped = escaped_json if kind == "jsonl" else many_lines

    def write(self, raw: bytes) -> None:
        data = self._escaped(raw.decode("utf-8")) if self._is_terminal else raw
        with standard_output():
            click.echo(data, nl=False, color=True)


class _Table:
    """Shows records on a terminal in aligned columns, under the name of their document."""

    def __init__(self, level: Level) -> None:
        self._level, self._text, self._document = level, "text" if level == "line" else level, None

    def write(self, raw: bytes) -> None:
        for record in map(json.loads, raw.decode("utf-8").split("\n")[:-1]):
            numbers = {"bits": record.get("surprisal_bits", record.get("bits"))}
            numbers |= {name: record[f"{name}_bits"] for name in ("corrected", "entropy") if f"{name}_bits" in record}
            if record["document"] != self._document:
                self._document = record["document"]
                print_line(f"{self._document}:")
                print_line(f"{''.join(f'{name:>10}' for name in numbers)}  {self._level}")
            cells = ("–" if value is None else f"{value:.2f}" for value in numbers.values())
            likeliest = " | ".join(entry["token"] for entry in record.get("top", ()))
            text = one_line(record[self._text]) + (f"    likeliest: {one_line(likeliest)}" if likeliest else "")
            print_line(f"{''.join(f'{cell:>10}' for cell in cells)}  {text}")
