"""The `score` command and its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import ItemSelection, item_options
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import PATH, all_of, document_options, runtime_options
from xlexport.commands.score_options import (
    OutputOptions,
    PlaceName,
    RecordOptions,
    SharingOptions,
    output_options,
    record_options,
    sharing_options,
)
from xlexport.commands.score_ray import score_on_ray
from xlexport.extras import require
from xlexport.progress_bar import DocumentsBar
from xlexport.terminal import (
    Failure,
    Interrupted,
    escaped_json,
    failure,
    is_quiet,
    print_json,
    standard_output,
    tell,
)
from xlruntime.messages import many_lines

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Input
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.totals import Totals

__all__ = ["score"]

input_options = all_of(
    item_options,
    click.option("--strict", is_flag=True, help="Stop at the first document that cannot be scored."),
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
@click.argument("files", nargs=-1, required=True, type=PlaceName(path_type=Path, allow_dash=True, readable=False))
@headed("Records", record_options)
@headed("Output", output_options)
@headed("Input", input_options)
@headed("Device", runtime_options, sharing_options)
@headed("Model settings", document_options)
def score(
    bundle: Path,
    files: tuple[Path | str, ...],
    record: RecordOptions,
    writing: OutputOptions,
    selection: ItemSelection,
    strict: bool,
    sharing: SharingOptions,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Score FILES with BUNDLE, each as one document of any length. Needs no PyTorch.

    FILES are files, folders, quoted patterns ('books/**/*.txt') or '-' for standard input; gzip is unpacked.
    With --field, each row of JSON lines or of a table is a document.
    `score` reports a document that it cannot read and continues with the others; the exit status is then 1.
    """
    _check_records(record, selection, sharing)
    if sharing.ray is not None:
        return score_on_ray(bundle, files, record, writing, selection, strict, sharing, runtime, evaluation)
    paths = _paths([*files, *([] if writing.output is None else [writing.output])])[: len(files)]
    output, kind = writing.path, record.format_for(writing.path)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.chunk_run import score_by_chunks
    from xlexport.scoring.inputs import extent, find_inputs, nothing_in
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.run import score_run
    from xlexport.scoring.run_options import RunOptions

    file = None if output is None else PartialFile(output, _finisher(kind))
    if file is not None:
        file.check(writing.force, writing.resume)
        if writing.resume and _is_complete(file):
            return
    reading = replace(selection.reading, regions=record.level == "region", region_field=record.region_field)
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(paths, selection.include, reading, written, tell)
    _check_inputs(inputs, output, writing.resume, sharing)
    runtime["threads"] = sharing.threads(runtime["threads"])
    model = open_bundle(bundle, **runtime)
    options = RunOptions(
        per=record.level,
        kind=kind,
        reading=reading,
        batch_size=sharing.batch(alone=record.boundary == "corrected"),
        detail=record.top,
        continuous=selection.continuous,
        separator=selection.between,
        strict=strict,
        bos=record.bos,
        corrected=record.boundary == "corrected",
    )
    reporter = _Reporter(DocumentsBar(*extent(inputs, reading)), record.as_json)
    try:
        by_chunks = partial(score_by_chunks, processes=sharing.processes or 1, runtime=runtime)
        totals = (by_chunks if sharing.by_chunks else score_run)(
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
        hint = "Go on with --resume." if again else "Its input cannot be read again: begin again with --force."
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
        f"{file.path}: complete already, so nothing was done. Options and inputs were not compared with those "
        "it was made of; --force scores them again."
    )
    return True


def _paths(given: Sequence[Path | str]) -> list[Path]:
    """Return paths; refuse addresses of object stores."""
    for place in given:
        if isinstance(place, str) and "://" in place:
            raise click.UsageError(f"{place}: only --ray reads and writes object stores. Add --ray.")
        if isinstance(place, str):
            raise click.UsageError(
                f"{place!r} is the name of a folder. Give that of a file. Only --ray writes folders."
            )
    return [Path(place) for place in given]


def _check_records(record: RecordOptions, selection: ItemSelection, sharing: SharingOptions) -> None:
    """Refuse records that the inputs or the other options do not allow."""
    if selection.ids and record.level in ("line", "word", "region"):
        raise click.UsageError(f"--ids has no text to find a {record.level} in. Use --per token or --per document.")
    if record.region_field is not None and selection.field is None:
        raise click.UsageError("--region-field is for JSON lines and tables. Give --field, too.")
    if selection.continuous and sharing.by_chunks:
        raise click.UsageError("--continuous scores documents one after another. Leave out --processes and auto.")
    if (selection.continuous or record.boundary == "corrected") and sharing.batch_size not in (None, 1):
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
        found = failure(error) or Failure(f"{document}: {error}", None, type(error).__name__)
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


def _check_inputs(inputs: Sequence[Input], output: Path | None, resume: bool, sharing: SharingOptions) -> None:
    """Refuse inputs that the output would replace, or that cannot be read again."""
    paths = [given.path for given in inputs if given.path is not None]
    if output is not None and os.path.realpath(output) in map(os.path.realpath, paths):
        raise click.UsageError(f"{output} is an input, which the output would replace. Give another.")
    if resume and not all(given.repeatable for given in inputs):
        raise click.UsageError("--resume reads its inputs again, but standard input and pipes are gone. Give files.")
    if (sharing.processes or 1) > 1 and not all(given.repeatable for given in inputs):
        raise click.UsageError("--processes reads its inputs several times, but standard input and pipes go by once.")
