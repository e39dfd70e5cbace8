"""The `context` command and its options."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import find_documents, reading_options
from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import any_memory_options, batch_option, json_option, quiet_option, runtime_options
from xlexport.commands.settings import rare
from xlexport.commands.values import BUNDLE, DOCUMENT, OUTPUT, Integers
from xlexport.progress_bar import progress_bar
from xlexport.terminal import drawing, print_json, print_line, tell
from xlruntime import OptionError
from xltraining.config_fields import options_of, setting

if TYPE_CHECKING:
    from xlexport.analysis.context import ReclOptions
    from xlexport.scoring.score_options import InputOptions

__all__ = ["ReclChoice", "context"]


_search = functools.partial(setting, heading="Measurement")


@dataclass(frozen=True)
class ReclChoice:
    """The context lengths at which to look for RECL, as options.

    Raises:
        OptionError: a setting of RECL would have no effect.
    """

    recl: bool | None = _search(
        None, "Also find RECL.  [default: if the longest memory has start + step tokens]", common=True
    )
    start: int = _search(100, "RECL: the first context length.")
    step: int = _search(100, "RECL: tokens from one context length to the next.")
    longest: int | None = _search(
        None, "RECL: the longest context length.  [default: the longest of --lengths]", metavar="INTEGER"
    )
    shares: tuple[float, ...] = _search(
        (0.1, 0.5, 1.0),
        "RECL: shares of the tokens to count, hardest first.",
        flags=("--hard",),
        metavar="R[,R…]",
        shown="0.1,0.5,1",
    )
    threshold: float = _search(0.01, "RECL: relative gain below which longer context no longer helps.")

    def __post_init__(self) -> None:
        if self.recl is False and (changed := self.changed):
            raise OptionError(f"{' and '.join(changed)}: only for RECL. Leave out --no-recl, or the settings.")

    @property
    def changed(self) -> list[str]:
        """The settings that are not the default, as the command line spells them."""
        settings = (option for option in options_of(ReclChoice).values() if not option.common)
        return [option.spelling for option in settings if getattr(self, option.name) != option.default]

    @property
    def options(self) -> ReclOptions | None:
        """Return the same choice as the library takes it, or None without RECL."""
        from xlexport.analysis.context import ReclOptions

        if self.recl is False:
            return None
        return ReclOptions(self.start, self.step, self.longest, self.shares, self.threshold)


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport context bundle book.txt", "Measure memory lengths up to twice the model's own."),
        (
            "xlexport context bundle book.txt --lengths 16,64 --plot context.png",
            "Measure two memory lengths, and draw a figure.",
        ),
        ("xlexport context bundle book.txt --beside other.bundle --no-recl", "Compare two models in one table."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("files", nargs=-1, required=True, type=DOCUMENT)
@headed(
    "Measurement",
    click.option("--beside", type=BUNDLE, multiple=True, help="Another bundle to compare. Repeatable."),
    click.option(
        "--lengths",
        type=Integers(some=True, at_least=1),
        metavar="N[,M…]",
        help="Memory lengths.  [default: 1/16, 1/8, … 2 times the model's own]",
    ),
    rare(
        "full_context",
        "boolean",
        "Count only tokens that follow at least as many tokens as the longest memory has.",
        default=False,
    ),
)
@options_from(ReclChoice, "recl")
@headed("Input", reading_options, batch_option)
@headed(
    "Output",
    json_option(),
    quiet_option,
    click.option("--plot", type=OUTPUT, metavar="FILE", help="Also draw a .png or .svg file. Needs matplotlib."),
)
@headed("Model settings", any_memory_options)
@headed("Device", runtime_options)
def context(
    bundle: Path,
    files: tuple[Path, ...],
    beside: tuple[Path, ...],
    lengths: tuple[int, ...] | None,
    recl: ReclChoice,
    full_context: bool,
    input_options: InputOptions,
    batch_size: int,
    as_json: bool,
    plot: Path | None,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Measure how far BUNDLE's memory reaches: the loss on FILES by memory length, and RECL. Needs no PyTorch.

    All lengths are rows of memory in each layer, the papers' attention length. Through several layers more text counts;
    Appendix C of the Transformer-XL paper has contexts of exactly so many tokens.

    RECL is the relative effective context length of the Transformer-XL paper. `context` measures it for BUNDLE and for
    each bundle of --beside.
    """
    from xlexport.analysis.context import context_lines, default_lengths, measure_context
    from xlexport.bundles import open_bundle

    if plot is not None:
        from xlexport.figures import check_picture

        check_picture(plot)
    search = recl.options
    documents = find_documents(files, input_options)
    models = [open_bundle(folder, **runtime) for folder in (bundle, *beside)]
    lengths = lengths or default_lengths(models)
    carried = all("mem_len" in model.bundle.evaluation.settings for model in models)  # otherwise nothing to measure
    shortest = recl.start + recl.step
    if carried and recl.recl is None and not recl.changed and max(lengths) < shortest:
        tell(f"without RECL: it needs a memory of start + step = {shortest} tokens, the longest has {max(lengths)}")
        search = None
    with progress_bar("scoring") as progress:
        report = measure_context(
            models,
            documents,
            lengths=lengths,
            recl=search,
            full_context=full_context,
            batch_size=batch_size,
            progress=progress,
            tell=tell,
            **evaluation,
        )
    if any(model.evaluation(**evaluation).segmentation_matters for model in models):
        tell(
            "Without same_length, a token sees the memory and the earlier tokens of its segment: `context` is the mean."
        )
    if as_json:
        print_json(report.to_dict())
    else:
        for line in context_lines(report):
            print_line(line)
    if plot is not None:
        from xlexport.analysis.plots import draw_context

        with drawing(plot, "The results are printed."):
            draw_context(report, plot)
