"""The `verify` command. Its exit status is that of `diff`."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    BUNDLE,
    MODEL,
    PATH,
    checkpoint_options,
    evaluation_options,
    json_option,
    quiet_option,
    reading_given,
    refuse,
    runtime_options,
)
from xlexport.commands.quantize import ids_option
from xlexport.progress_bar import progress_bar
from xlexport.terminal import failure, print_json, print_table, tell_lines

__all__ = ["verify"]

UNEQUAL, TROUBLE = 1, 2  # exit statuses


class _Verify(LongCommand):
    """A command that could not compare if anything fails: then its exit status is 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Return the exit status: that of the comparison, or 2."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:  # the reader of the output has seen enough
                raise
            if (trouble := failure(error)) is None:
                tell_lines(traceback.format_exc().rstrip())
            else:
                trouble.show(ctx.params["as_json"])
            return TROUBLE


class _SegmentCount(click.IntRange):
    """A number of segments, or `all`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the option."""
        return value if value == "all" else super().convert(value, param, ctx)


@click.command(
    cls=_Verify,
    examples=(
        ("xlexport verify bundle checkpoint.pt", "On the text that `convert` used."),
        ("xlexport verify bundle checkpoint.pt --text book.txt --segments all", "On your text, to its end."),
        ("xlexport verify bundle checkpoint.pt --mem-len 1000", "With other settings than the model's own."),
        ("xlexport verify bundle --against own.py:reference --trust", "With your own eager code."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("checkpoint", type=MODEL, required=False)
@headed(
    "Input",
    click.option("--text", type=PATH, help="Text to compare on.  [default: Python's documentation topics]"),
    ids_option,
    click.option(
        "--segments",
        type=_SegmentCount(1),
        metavar="N|all",
        help="Segments.  [default: until the memory has wrapped twice, and 1,000 tokens]",
    ),
    click.option("--against", metavar="FILE.py:NAME", help="Your own eager code, instead of CHECKPOINT."),
)
@headed(
    "Output",
    json_option("the report, with the figures of each segment,"),
    quiet_option,
)
@headed("Checkpoint", checkpoint_options)
@headed("Device", runtime_options)
@headed("Model settings", evaluation_options)
def verify(
    bundle: Path,
    checkpoint: str | None,
    text: Path | None,
    as_ids: bool,
    segments: Any,
    against: str | None,
    as_json: bool,
    reading: dict[str, Any],
    runtime: dict[str, Any],
    **evaluation: Any,
) -> int:
    """Compare BUNDLE with the trained model in CHECKPOINT over many segments of carried memory.

    CHECKPOINT is what `xlexport convert` took. Exit status: 0 equal, 1 unequal, 2 not compared.
    """
    if checkpoint is None:
        refuse(reading_given(reading), "for CHECKPOINT. Give CHECKPOINT, or leave {} out.")
    from xlexport.extras import require

    require("convert")
    from xlexport import api
    from xlexport.bundles import open_any_bundle, origin
    from xlexport.verification.parity import trained_model

    model = open_any_bundle(bundle, **{**runtime, "check": "off"})  # verify compares more, and with these kernels
    if checkpoint is None and against is None:
        raise click.UsageError(f"Missing argument 'CHECKPOINT': {bundle} was converted from {origin(model.bundle)}.")
    with progress_bar("verifying") as progress:
        report = api.verify(
            model,
            checkpoint,
            text=text,
            as_ids=as_ids,
            segments=segments,
            reference=against,
            trust=runtime.get("trust", False),
            progress=progress,
            **reading,
            **evaluation,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_table([("trained model", against or trained_model(model.bundle.provenance)), *report.rows()])
    if (error := report.problem()) is None:
        return 0
    if (unequal := failure(error)) is not None:
        unequal.show(as_json)
    return UNEQUAL
