"""The `score` command and its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.choices import LEVELS
from xlexport.commands.options import DOCUMENT, OUTPUT, PATH, all_of, document_options, runtime_options

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Input, Reading

__all__ = ["score"]

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}

input_options = all_of(
    click.option("--field", metavar="NAME", help="The files are JSON lines, each with a document in this field."),
    click.option(
        "--id-field", metavar="NAME", help="With --field: the field that names a document, where there is one."
    ),
    click.option("--include", multiple=True, metavar="PATTERN", help="Of folders, take only files named so: '*.txt'."),
    click.option("--ids", is_flag=True, help="The files hold token ids separated by white space, not text."),
    click.option("--strict", is_flag=True, help="Stop at the first document that cannot be scored."),
    click.option(
        "--continuous", is_flag=True, help="Carry memory on from document to document, in the order they are given."
    ),
    click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Documents at a time."),
)

output_options = all_of(
    click.option(
        "--per",
        type=click.Choice(LEVELS),
        help="What there is a record of; totals then go to stderr.  [default: document]",
    ),
    click.option("--per-token", is_flag=True, help="The same as --per token."),
    click.option(
        "--format",
        "kind",
        type=click.Choice(["jsonl", "csv"]),
        help="Of the records.  [default: by the ending of --output; on stdout jsonl, for documents a line each]",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl; totals on stderr are JSON, too."),
    click.option(
        "--detail", is_flag=True, help="With --per token: rank, and the entropy of each prediction (natural logarithm)."
    ),
    click.option(
        "--top", type=click.IntRange(1, 10), metavar="K", help="With --per token: also the K likeliest tokens."
    ),
    click.option(
        "-o", "--output", type=OUTPUT, metavar="FILE", help="Write to FILE, which appears when it is complete."
    ),
    click.option("--force", is_flag=True, help="Replace FILE, or what an interrupted run has left of it."),
    click.option(
        "--resume", is_flag=True, help="Go on with an interrupted run; the output is the same, byte for byte."
    ),
    click.option(
        "--save-every",
        type=click.FloatRange(0),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        help="How often a run with --output saves what --resume goes on from.",
    ),
)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@output_options
@input_options
@runtime_options
@document_options
def score(
    bundle: Path,
    files: tuple[Path, ...],
    per: str | None,
    per_token: bool,
    kind: str | None,
    as_json: bool,
    detail: bool,
    top: int | None,
    output: Path | None,
    force: bool,
    resume: bool,
    save_every: float,
    field: str | None,
    id_field: str | None,
    include: tuple[str, ...],
    ids: bool,
    strict: bool,
    continuous: bool,
    batch_size: int,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Score FILES with BUNDLE, each as one document of any length. Needs no PyTorch.

    FILES are files, folders, quoted patterns ('books/**/*.txt') or '-' for standard input, any of them packed by gzip.
    A document that cannot be read is told of; the others are scored, and the exit status is 1.
    """
    output = None if str(output) == "-" else output
    level = _level(per, per_token, detail, top, ids)
    chosen = _format(level, kind, as_json, output)
    _check_usage(output, force, resume, field, id_field, continuous, batch_size)
    from xlexport.bundles import open_bundle
    from xlexport.scoring.inputs import Reading, find_inputs, nothing_in
    from xlexport.scoring.partial_file import PartialFile
    from xlexport.scoring.run import RunOptions, score_run
    from xlexport.terminal import tell

    file = None if output is None else PartialFile(output)
    if file is not None:
        file.check(force, resume)
        if resume and file.path.exists() and not file.partial.exists():
            file.forget_state()  # of a run that was killed after its last step
            tell(
                f"{file.path}: complete already, so nothing was done. Options and inputs were not compared with those "
                "it was made of; --force scores them anew."
            )
            return
    reading = Reading(ids, field, id_field)
    written = [] if file is None else [file.path, file.partial, file.state_path]
    inputs = find_inputs(files, include, reading, written, tell)
    _check_inputs(inputs, reading, output, resume)
    model = open_bundle(bundle, **runtime)
    options = RunOptions(
        per=level,
        kind=chosen,
        reading=reading,
        batch_size=batch_size,
        detail=top if top is not None else 0 if detail else None,
        continuous=continuous,
        strict=strict,
        totals_as_json=as_json,
    )
    try:
        totals = score_run(
            model, model.evaluation(**evaluation), inputs, options, sys.stdin.buffer, file, save_every, resume
        )
        if file is not None:
            file.publish() if totals.documents else file.discard()
        if not totals.documents and not totals.failed:
            raise nothing_in([given.name for given in inputs], "lines that are not blank")
    except KeyboardInterrupt:
        if file is None:
            raise click.ClickException("interrupted; standard output has what was scored until then.") from None
        if not file.partial.exists():
            raise
        again = all(given.repeatable for given in inputs)
        repair = "Go on with --resume." if again else "Its input cannot be read again: begin again with --force."
        raise click.ClickException(f"interrupted; {file.partial} has what was scored. {repair}") from None
    finally:
        if file is not None:
            file.close()
    if totals.failed:
        click.get_current_context().exit(1)


def _level(per: str | None, per_token: bool, detail: bool, top: int | None, ids: bool) -> Any:
    """What there is a record of."""
    if per_token and per not in (None, "token"):
        raise click.UsageError(f"--per-token is --per token, but --per is {per}. Give one of them.")
    level = "token" if per_token else per or "document"
    if (detail or top is not None) and level != "token":
        raise click.UsageError("--detail and --top are for tokens. Add --per token.")
    if ids and level in ("line", "word"):
        raise click.UsageError(f"--ids has no text to find a {level} in. Use --per token or --per document.")
    return level


def _format(level: str, kind: str | None, as_json: bool, output: Path | None) -> Any:
    """How records are written."""
    if as_json and kind not in (None, "jsonl"):
        raise click.UsageError(f"--json is --format jsonl, but --format is {kind}. Give one of them.")
    if as_json or kind is not None:
        return kind or "jsonl"
    if output is None:
        return "text" if level == "document" else "jsonl"
    if output.suffix not in FORMATS:
        raise click.UsageError(f"{output}: no format of that ending; use {', '.join(FORMATS)}, or give --format.")
    return FORMATS[output.suffix]


def _check_usage(
    output: Path | None,
    force: bool,
    resume: bool,
    field: str | None,
    id_field: str | None,
    continuous: bool,
    batch_size: int,
) -> None:
    """Refuse options that do not go together."""
    if output is None and (force or resume):
        raise click.UsageError("--resume and --force are about an output file. Give it with -o.")
    if force and resume:
        raise click.UsageError("--resume goes on with what is there, --force begins again. Give one of them.")
    if id_field is not None and field is None:
        raise click.UsageError("--id-field is for JSON lines. Give --field, too.")
    if continuous and batch_size > 1:
        raise click.UsageError("--continuous scores documents one after another. Leave out --batch-size.")


def _check_inputs(inputs: Sequence[Input], reading: Reading, output: Path | None, resume: bool) -> None:
    """Refuse inputs that the options do not go with; say which are no text."""
    from xlexport.terminal import tell
    from xlruntime.messages import listed

    paths = [given.path for given in inputs if given.path is not None]
    if output is not None and os.path.realpath(output) in map(os.path.realpath, paths):
        raise click.UsageError(f"{output} is an input, which the output would replace. Give another.")
    if resume and not all(given.repeatable for given in inputs):
        raise click.UsageError("--resume reads its inputs again, but standard input and pipes are gone. Give files.")
    if reading.field is None and not reading.ids and (binary := [given.name for given in inputs if given.is_binary]):
        tell(f"{listed(binary)}: not text, as zero bytes in there show; scored all the same.")
