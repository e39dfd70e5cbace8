"""The `context` command and its options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.options import DOCUMENT, OUTPUT, PATH, Integers, all_of, any_memory_options, runtime_options
from xlexport.terminal import print_json, progress_bar, tell

if TYPE_CHECKING:
    from xlexport.scoring.totals import Progress
    from xlruntime import Document

__all__ = ["Numbers", "context", "documents_given", "text_options"]


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers separated by commas.", param, ctx)


recl_options = all_of(
    click.option(
        "--recl/--no-recl",
        "with_recl",
        default=None,
        help="Find RECL, too.  [default: where the longest memory has --start + --step tokens]",
    ),
    click.option("--start", type=int, default=100, show_default=True, help="RECL: the first context length."),
    click.option("--step", type=int, default=100, show_default=True, help="RECL: how much longer each next one is."),
    click.option("--longest", type=int, help="RECL: no context beyond it.  [default: the longest of --lengths]"),
    click.option(
        "--hard",
        "shares",
        type=Numbers(),
        metavar="R[,R…]",
        default="0.1,0.5,1",
        show_default=True,
        help="RECL: shares of tokens that count, the hardest ones with the shorter context.",
    ),
    click.option("--threshold", type=float, default=0.01, show_default=True, help="RECL: the gain that is none."),
)


text_options = all_of(
    click.option("--field", metavar="NAME", help="The files are JSON lines, each with a document in this field."),
    click.option("--ids", is_flag=True, help="The files hold token ids separated by white space, not text."),
    click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Documents at a time."),
)


def documents_given(files: Sequence[Path], ids: bool, field: str | None) -> tuple[list[Document], Progress]:
    """The documents in files, folders, patterns and standard input, as `score` reads them; none is opened yet.

    Returns:
        And what shows how far one is with them.

    Raises:
        TextError: there is not one. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.inputs import Reading, documents, find_inputs, nothing_in
    from xlexport.scoring.totals import Progress

    reading = Reading(ids, field)
    inputs = find_inputs(files, (), reading, [], tell)
    found = list(documents(inputs, reading, sys.stdin.buffer, keep=False))
    if not found:
        raise nothing_in([given.name for given in inputs], "lines that are not blank")
    return found, Progress.over(inputs, reading)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@click.option("--beside", type=PATH, multiple=True, help="Another bundle of the group; may be given several times.")
@click.option(
    "--lengths",
    type=Integers(some=True, at_least=1),
    metavar="N[,M…]",
    help="Memory lengths to try.  [default: from a sixteenth of the model's own to twice it, doubled]",
)
@recl_options
@click.option("--full-context", is_flag=True, help="Count only tokens with the longest memory's number before them.")
@text_options
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@click.option(
    "--plot", type=OUTPUT, metavar="FILE", help="Draw this .png or .svg file, or draw it anew (needs matplotlib)."
)
@any_memory_options
@runtime_options
def context(
    bundle: Path,
    files: tuple[Path, ...],
    beside: tuple[Path, ...],
    lengths: tuple[int, ...] | None,
    with_recl: bool | None,
    full_context: bool,
    field: str | None,
    ids: bool,
    batch_size: int,
    as_json: bool,
    plot: Path | None,
    start: int,
    step: int,
    longest: int | None,
    shares: tuple[float, ...],
    threshold: float,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Measure how far BUNDLE's memory reaches: loss of FILES by memory length, and RECL. Needs no PyTorch.

    RECL is the relative effective context length of the Transformer-XL paper, for BUNDLE and those --beside it.
    """
    from xlexport.analysis.context import ReclOptions, default_lengths, measure_context
    from xlexport.analysis.context_rows import context_lines
    from xlexport.bundles import open_bundle

    if plot is not None:
        from xlexport.figures import check_picture

        check_picture(plot)
    recl = None if with_recl is False else ReclOptions(start, step, longest, shares, threshold)
    documents, _ = documents_given(files, ids, field)
    models = [open_bundle(folder, **runtime) for folder in (bundle, *beside)]
    lengths = lengths or default_lengths(models)
    carried = not any(model.bundle.evaluation.whole for model in models)  # else there is nothing to measure
    if carried and with_recl is None and longest is None and max(lengths) < start + step:
        tell(f"without RECL: no memory has --start + --step = {start + step} tokens, the longest {max(lengths)}")
        recl = None
    report = measure_context(
        models,
        documents,
        lengths=lengths,
        recl=recl,
        full_context=full_context,
        batch_size=batch_size,
        progress=lambda label, length: progress_bar(length, label),
        tell=tell,
        **evaluation,
    )
    if any(model.evaluation(**evaluation).segmentation_matters for model in models):
        tell("Without same_length a token sees its segment so far and the memory: `context` is the mean.")
    if as_json:
        print_json(report.to_dict())
    else:
        for line in context_lines(report):
            click.echo(line)
    if plot is not None:
        from xlexport.analysis.plots import draw_context

        draw_context(report, plot)
        tell(f"wrote {plot}")
