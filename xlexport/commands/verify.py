"""The `verify` command, for bundles and for graphs of others. Its exit status is that of `diff`."""

from __future__ import annotations

import dataclasses
import errno
import traceback
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import (
    checkpoint_options,
    evaluation_options,
    given_options,
    json_option,
    quiet_option,
    reading_given,
    refuse,
    runtime_options,
)
from xlexport.commands.quantize import ids_option
from xlexport.commands.values import MODEL, PATH, BundleName
from xlexport.graph_proof.options import GraphOptions
from xlexport.progress_bar import progress_bar
from xlexport.terminal import failure, print_json, print_table, tell_lines
from xltraining.config_fields import options_of

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


class _BundleOrGraph(BundleName):
    """A bundle as other commands take it, or the file of a graph: a bundle is a folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(str(value))
        return path if _is_graph(path) else super().convert(value, param, ctx)


def _is_graph(path: Path) -> bool:
    return path.suffix == ".onnx" and not path.is_dir()


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
        ("xlexport verify vad.onnx --input x=speech.wav", "The carried state of a graph that others wrote."),
    ),
)
@click.argument("bundle", type=_BundleOrGraph())
@click.argument("checkpoint", type=MODEL, required=False)
@headed(
    "Input",
    click.option("--text", type=PATH, help="Text to compare on.  [default: Python's documentation topics]"),
    ids_option,
    click.option(
        "--segments",
        type=_SegmentCount(1),
        metavar="N|all",
        help="Segments.  [default: twice the memory, 1,000 tokens]",
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
@options_from(
    GraphOptions,
    "graph_options",
    state={"multiple": True, "type": click.STRING},
    input={"multiple": True, "type": click.STRING},
    context={"multiple": True, "type": click.STRING},
    first={"type": PATH},
)
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
    graph_options: GraphOptions,
    **evaluation: Any,
) -> int:
    """Compare BUNDLE with the trained model in CHECKPOINT over many segments of carried memory.

    CHECKPOINT is what `xlexport convert` took. Or check the state that GRAPH.onnx carries, alone or against another
    graph or FILE.py:NAME. Exit status: 0 equal, 1 unequal, 2 not compared.
    """
    if _is_graph(bundle):
        refuse(_given(of_graphs=False), f"for bundles, but {bundle} is no folder. Leave {{}} out.")
        return _prove(bundle, checkpoint, dataclasses.replace(graph_options, trust="trust" in runtime), as_json)
    refuse(_given(of_graphs=True), f"for graphs of others, but {bundle} is a bundle. Leave {{}} out.")
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


def _given(of_graphs: bool) -> dict[str, bool]:
    """Return the spellings of the given options that are for graphs of others only, or for bundles only."""
    parameters = {str(one.name) for one in click.get_current_context().command.params}
    graph, both = {*options_of(GraphOptions)}, {"bundle", "checkpoint", "as_json", "quiet", "trust", "overrides"}
    return given_options(both | (parameters - graph if of_graphs else graph))


def _prove(graph: Path, other: str | None, options: GraphOptions, as_json: bool) -> int:
    """Print the report of a graph of others, and return the exit status."""
    from xlexport.extras import require

    require("convert")
    from xlexport.graph_proof.child import prove  # `api` would also import PyTorch, for seconds

    with progress_bar("verifying") as progress:
        report = prove(graph, other, options, progress)
    if as_json:
        print_json(report.to_dict())
    else:
        print_table(report.rows())
    return 0 if report.passed else UNEQUAL
