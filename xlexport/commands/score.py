"""The `score` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import BUNDLE, document_options, grouped, runtime_options
from xlexport.commands.score_options import (
    ENDINGS,
    HERE,
    PlaceName,
    ScoreOptions,
    input_options,
    output_options,
    record_options,
    sharing_options,
)
from xlexport.extras import require
from xlexport.progress_bar import DocumentsBar
from xlexport.terminal import Failure, Interrupted, escaped_json, failure, is_quiet, print_json, standard_output, tell
from xlruntime.messages import many_lines

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Input
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.totals import Totals

__all__ = ["score"]


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
@click.argument("files", nargs=-1, required=True, type=PlaceName(path_type=Path, allow_dash=True, readable=False))
@grouped("options", ScoreOptions)
@headed("Records", record_options)
@headed("Output", output_options)
@headed("Input", input_options)
@headed("Device", runtime_options, sharing_options)
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
    if options.ray is not None:
        _score_on_ray(bundle, files, options, runtime, evaluation)
        return
    paths = [_local(file) for file in files]
    output = None if options.path is None else _local(options.path)
    kind = options.format_for(output)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.chunks import Job
    from xlexport.scoring.inputs import extent, find_inputs, nothing_in
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.processes import Processes
    from xlexport.scoring.run import score_documents

    file = None if output is None else PartialFile(output, _finisher(kind))
    if file is not None:
        file.check(options.force, options.resume)
        if options.resume and _is_complete(file):
            return
    run_options = options.run_options(kind)
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(paths, options.include, run_options.reading, written, tell)
    _check_inputs(inputs, output, options)
    model = open_bundle(bundle, **runtime)
    settings = model.evaluation(**evaluation)
    job = Job(bundle, runtime, settings, run_options, inputs, with_speed=file is None, save_every=options.save_every)
    reporter = _Reporter(DocumentsBar(*extent(inputs, run_options.reading)), options.as_json)
    records = file or _StandardOutput(kind)
    try:
        backend = Processes(count) if (count := options.processes or 1) > 1 else None
        totals = score_documents(model, job, sys.stdin.buffer, records, reporter, backend, options.resume)
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
    if not file.path.exists() or file.partial.exists():
        return False
    file.forget_state()  # left by a run that was killed after its last step
    tell(
        f"{file.path}: already complete, so nothing was done. Options and inputs were not checked; --force scores "
        "again."
    )
    return True


def _local(place: Path | str) -> Path:
    """Return a path; refuse addresses of object stores and names of folders."""
    if isinstance(place, Path):
        return place
    if "://" in place:
        raise click.UsageError(f"{place}: only --ray reads and writes object stores. Add --ray.")
    raise click.UsageError(f"{place!r} is the name of a folder. Give that of a file. Only --ray writes folders.")


def _check_inputs(inputs: Sequence[Input], output: Path | None, options: ScoreOptions) -> None:
    """Refuse inputs that the output would replace, or that cannot be read again."""
    paths = [entry.path for entry in inputs if entry.path is not None]
    if output is not None and os.path.realpath(output) in map(os.path.realpath, paths):
        raise click.UsageError(f"{output} is also an input, which the output would replace. Name another file with -o.")
    if all(entry.repeatable for entry in inputs):
        return
    if options.resume:
        raise click.UsageError(
            "--resume reads its inputs again, which standard input and pipes do not allow. Give files."
        )
    if (options.processes or 1) > 1:
        raise click.UsageError("--processes reads its inputs several times. Give files, not standard input or a pipe.")


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


def _score_on_ray(
    bundle: Path,
    files: Sequence[Path | str],
    options: ScoreOptions,
    runtime: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> None:
    """Score files on a Ray cluster, and print the totals."""
    context = click.get_current_context()
    if context.get_parameter_source("save_every") is not ParameterSource.DEFAULT:
        raise click.UsageError("--set save_every cannot be combined with --ray. Leave it out.")
    if "-" in map(str, files):
        raise click.UsageError("--ray reads files that all machines can see, not standard input.")
    if str(runtime["device"]).startswith("cuda:"):
        raise click.UsageError(
            f"--device {runtime['device']}: Ray chooses the GPU of each process. Give --device cuda."
        )
    output = str(options.path)
    kind = options.kind or ("jsonl" if options.as_json else ENDINGS.get(Path(output).suffix, "parquet"))
    if kind not in ("jsonl", "parquet"):
        raise click.UsageError(f"--ray writes parquet or jsonl, not {kind}. Choose one with --format.")
    require("ray")
    from xlexport.ray.job import Cluster, score_files
    from xlexport.scoring.traits import trait_notes

    try:
        totals = score_files(
            bundle,
            [str(file) for file in files],
            output,
            options.run_options("jsonl"),
            evaluation,
            Cluster(None if options.ray == HERE else options.ray, options.processes, runtime),
            include=options.include,
            kind=kind,
            resume=options.resume,
            force=options.force,
            tell=tell,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {output} has the finished parts. Continue with --resume.") from None
    tell(f"{output}: {totals.together()}, {totals.failed:,} without a score")
    for note in trait_notes(totals):
        tell(note)
    if totals.failed:
        tell("the column `error` has the reasons")
        context.exit(1)
