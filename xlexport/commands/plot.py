"""The `plot` commands and their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from xlexport.commands.input_options import find_documents, reading_options
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    attention_options,
    batch_option,
    checkpoint_options,
    document_options,
    json_option,
    runtime_options,
)
from xlexport.commands.settings import rare
from xlexport.commands.values import BUNDLE, DOCUMENT, MODEL, OUTPUT, PATH
from xlexport.progress_bar import progress_bar
from xlexport.scoring.score_options import InputOptions
from xlexport.terminal import drawing, print_json, print_table

__all__ = ["plot"]

AGAIN = "Run the command again."

drawing_options = (
    click.option(
        "-o",
        "--output",
        type=OUTPUT,
        metavar="FILE",
        help="The .png or .svg file to write, or to replace.",
    ),
    json_option("the numbers of the plot"),
)


@click.group()
def plot() -> None:
    """Draw scores along documents, or attention, into .png or .svg files. Needs matplotlib."""


def _check(output: Path | None, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("Nothing to do. Give -o FILE to draw, --json to print the numbers, or both.")
    if output is not None:
        from xlexport.figures import check_picture

        check_picture(output)


@plot.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@headed(
    "Output",
    *drawing_options,
    rare("window", "integer", "Length of a window.  [default: at most 200 windows]", minimum=1),
)
@headed("Input", reading_options, batch_option)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def bits(
    bundle: Path,
    files: tuple[Path, ...],
    output: Path | None,
    window: int | None,
    input_options: InputOptions,
    batch_size: int,
    as_json: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Draw bits per byte along FILES: by window, and cumulative from the beginning. Needs no PyTorch."""
    _check(output, as_json)
    from xlexport.analysis.bits_along import bits_along
    from xlexport.bundles import open_bundle

    documents = find_documents(files, input_options, keep=True)
    model = open_bundle(bundle, **runtime)
    with progress_bar("scoring") as progress:
        curves = bits_along(
            model,
            documents,
            unit="token" if input_options.ids else "byte",
            window=window,
            batch_size=batch_size,
            progress=progress,
            **evaluation,
        )
    if as_json:
        print_json([curve.to_dict() for curve in curves])
    if output is not None:
        from xlexport.analysis.plots import draw_along

        with drawing(output, AGAIN):
            draw_along(curves, output)


def _parsed(context: click.Context, parameter: click.Parameter, heads: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the layer and the number of each head."""
    pairs = [re.fullmatch(r"(\d{1,6})\.(\d{1,6})", head) for head in heads]
    if None in pairs:
        raise click.BadParameter("expected LAYER.HEAD, such as 0.3.")
    return [(int(pair[1]), int(pair[2])) for pair in pairs if pair]


@plot.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("checkpoint", type=MODEL)
@click.argument("file", required=False, type=PATH)
@headed("Output", *drawing_options)
@headed(
    "Measurement",
    rare("tokens", "integer", "Largest number of queries to average over.", default=20_000, minimum=1),
    click.option(
        "--head",
        "heads",
        multiple=True,
        metavar="LAYER.HEAD",
        callback=_parsed,
        help="Draw the attention of this head in the last segment of these queries, token by token. Repeatable.",
    ),
    rare(
        "position",
        "boolean",
        "Draw the terms of the attention scores by distance: one of the content, two of the position.",
        default=False,
    ),
)
@headed("Checkpoint", checkpoint_options)
@headed("Model settings", attention_options)
def attention(
    bundle: Path,
    checkpoint: str,
    file: Path | None,
    output: Path | None,
    tokens: int,
    heads: list[tuple[int, int]],
    position: bool,
    as_json: bool,
    reading: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Draw how far back each head of CHECKPOINT attends over FILE, with BUNDLE's tokenizer and settings.

    Without FILE, the text is Python's built-in documentation topics. The attention weights come from the eager model,
    because graphs do not return them.
    """
    _check(output, as_json)
    if heads and position:
        raise click.UsageError("--head and --set position draw different figures. Give one of them.")
    from xlexport.extras import require

    require("convert")
    import xlruntime
    from xlexport.analysis.attention import (
        AttentionReport,
        AttentionTerms,
        SegmentAttention,
        attention_by_distance,
        attention_of_segment,
        attention_terms,
        require_attention,
    )
    from xlexport.families import architecture
    from xlexport.model_names import load_source
    from xlexport.verification.eager import check_sizes
    from xlexport.verification.text import verify_ids

    runtime_model = xlruntime.load(bundle, ops="none")  # for its tokenizer and settings; no graph runs
    require_attention(runtime_model.bundle.architecture, str(bundle))
    settings = runtime_model.evaluation(**evaluation)
    ids = verify_ids(runtime_model.bundle, runtime_model.tokenizer, file)
    model = load_source(checkpoint, **reading).build_model()
    check_sizes(runtime_model, model)
    model = architecture(runtime_model.bundle.architecture).configured(model, runtime_model.bundle.config, settings)
    report: AttentionReport | AttentionTerms | SegmentAttention
    with progress_bar("attending") as progress:
        walk: dict[str, Any] = {"segment_len": settings.segment_len, "tokens": tokens, "progress": progress}
        if heads:
            report = attention_of_segment(model, ids, heads, **walk)
        elif position:
            report = attention_terms(model, ids, **walk)
        else:
            report = attention_by_distance(model, ids, **walk)
    if as_json:
        print_json(report.to_dict())
    elif not isinstance(report, SegmentAttention):
        print_table(report.rows())
    if output is not None:
        from xlexport.analysis.plots import draw_attention

        with drawing(output, AGAIN):
            draw_attention(report, output)
