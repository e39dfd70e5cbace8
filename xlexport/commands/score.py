"""The `score` command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import SPECIAL
from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import BUNDLE, Names, OutputFile, document_options, runtime_options
from xlexport.extras import require
from xlexport.progress_bar import DocumentsBar
from xlexport.scoring.options import ScoreOptions
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
    from xlexport.scoring.backends import Backend
    from xlexport.scoring.inputs import Input
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.totals import Totals
    from xlruntime import Model

__all__ = ["score"]

HERE = "this machine"  # instead of the address of a Ray cluster


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
    keep={"type": Names()},
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
    """Score FILES with BUNDLE, each as one document of any length. Needs no PyTorch.

    FILES are files, folders, quoted patterns ('books/**/*.txt') or '-' for standard input; gzip is unpacked.
    With --field, each row of JSON lines or of a table is a document.
    `score` reports a document that it cannot read and continues with the others; the exit status is then 1.
    """
    if runtime["threads"] is None and (options.processes is not None or options.ray is not None):
        runtime["threads"] = 1  # of each process
    output, kind = options.path, options.format
    from xlexport.scoring.chunks import Job
    from xlexport.scoring.input_search import find_inputs
    from xlexport.scoring.inputs import extent, nothing_in
    from xlexport.scoring.run import score_documents

    file = _output_file(output, kind)
    if file is not None:
        file.check(options.force, options.resume)
        if options.resume and _is_complete(file):
            return
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(files, options.include, options.reading, written, tell)
    _check_inputs(inputs, output, options)
    backend, model, device = _opened(bundle, options, runtime)
    job = Job(bundle, runtime, model.evaluation(**evaluation), options, inputs, file is None, device)
    reporter = _Reporter(DocumentsBar(*extent(inputs, options.reading)), options.as_json)
    records = file or _StandardOutput(kind)
    try:
        totals = score_documents(model, job, sys.stdin.buffer, records, reporter, backend)
        if file is not None:
            file.publish() if totals.documents else file.discard()
        if not totals.documents and not totals.failed:
            raise nothing_in([entry.name for entry in inputs], "lines that are not blank")
    except KeyboardInterrupt:
        if file is None:
            raise Interrupted("interrupted; standard output has what was scored until then.") from None
        if not file.partial.exists():
            raise
        again = all(entry.repeatable for entry in inputs)
        hint = "Continue with --resume." if again else "Its input cannot be read again: start again with --force."
        raise Interrupted(f"interrupted; {file.partial} has what was scored. {hint}") from None
    finally:
        if file is not None:
            file.close()
    if totals.failed:
        click.get_current_context().exit(1)


def _is_complete(file: PartialFile) -> bool:
    """Return whether an output is complete, and say so."""
    if not file.is_complete:
        return False
    file.forget_state()  # left by a run that was killed after its last step
    tell(
        f"{file.name}: already complete, so nothing was done. Options and inputs were not checked; --force scores "
        "again."
    )
    return True


def _output_file(output: Path | str | None, kind: Format) -> PartialFile | None:
    """Return the output file; None: standard output."""
    from xlexport.scoring.partial_file import PartialFile

    if output is None:
        return None
    finish = _finisher(kind)
    if isinstance(output, Path):
        return PartialFile(output, finish)
    require(None, "pyarrow")
    from xlexport.scoring.stores import StoredFile

    return StoredFile(output, finish)


def _opened(
    bundle: Path, options: ScoreOptions, runtime: Mapping[str, Any]
) -> tuple[Backend | None, Model, str | None]:
    """Return the workers that score, the open bundle, and the device of workers if it is not that of this process."""
    from xlexport.bundles import open_bundle

    if options.ray is not None:
        if str(runtime["device"]).startswith("cuda:"):
            raise click.UsageError(
                f"--device {runtime['device']}: Ray chooses the GPU of each process. Give --device cuda."
            )
        from xlexport.ray.cluster import Cluster, device_of, open_here

        cluster = Cluster(None if options.ray == HERE else options.ray, options.processes)
        return cluster, open_here(bundle, runtime), str(device_of(runtime))
    from xlexport.scoring.processes import WorkerProcesses

    count = options.processes or 1
    return WorkerProcesses(count) if count > 1 else None, open_bundle(bundle, **runtime), None


def _check_inputs(inputs: Sequence[Input], output: Path | str | None, options: ScoreOptions) -> None:
    """Refuse inputs that the output would replace, or that cannot be read again."""
    paths = [entry.path for entry in inputs if entry.path is not None]
    names = {os.path.realpath(path) for path in paths} | {entry.name for entry in inputs}
    if output is not None and not names.isdisjoint((str(output), os.path.realpath(output))):
        raise click.UsageError(f"{output} is also an input, which the output would replace. Name another file with -o.")
    if all(entry.repeatable for entry in inputs):
        return
    if options.resume:
        raise click.UsageError(
            "--resume reads its inputs again, which standard input and pipes do not allow. Give files."
        )
    if (options.processes or 1) > 1 or options.ray is not None:
        option = "--processes" if options.ray is None else "--ray"
        raise click.UsageError(f"{option} shares files. Give files, not standard input or a pipe.")


def _finisher(kind: Format) -> Callable[[Path, Path], None] | None:
    """Return the function that converts the complete records to this format; None if no conversion is needed."""
    if kind != "parquet":
        return None
    require("tables")
    from xlexport.scoring.output_formats import write_parquet

    return write_parquet


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

    def __init__(self, kind: Format) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._escaped = escaped_json if kind == "jsonl" else many_lines

    def write(self, raw: bytes) -> None:
        data = self._escaped(raw.decode("utf-8")) if self._is_terminal else raw
        with standard_output():
            click.echo(data, nl=False, color=True)
