"""A plot of loss by memory length, like Figure 4 of the Transformer-XL paper, with the gains that decide RECL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xlexport.analysis.context import ContextReport
from xlexport.analysis.context_rows import names_of, share_name, unit_of
from xlexport.figures import plain, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_context"]


def draw_context(report: ContextReport, path: Path) -> None:
    """Draw bits by memory length, a line for each model, and next to it relative gains if RECL was computed.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    gains = report.recl is not None and any(recl.gains for model in report.models for recl in model.recl)
    figure = Figure(figsize=(11 if gains else 7, 4.8), layout="constrained")
    places = figure.subplots(1, 2 if gains else 1, squeeze=False)[0]
    _draw_losses(report, places[0])
    if gains:
        _draw_gains(report, places[1])
    names = [plain(Path(name).name) for name in report.documents]
    texts = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    figure.suptitle(f"{texts}: {report.scored_tokens:,} tokens", fontsize="medium")
    save_picture(figure, path)


def _draw_losses(report: ContextReport, axes: Axes) -> None:
    unit = unit_of(report)
    for name, model in zip(names_of(report), report.models, strict=True):
        lengths = [score.mem_len for score in model.lengths]
        bits = [getattr(score, f"bits_per_{unit}") for score in model.lengths]
        (line,) = axes.plot(lengths, bits, marker="o", markersize=4, label=plain(name))
        if lengths[0] <= model.mem_len <= lengths[-1]:
            axes.axvline(model.mem_len, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("memory length at evaluation, tokens (dotted: the bundle's own)")
    axes.set_ylabel(f"bits per {unit}")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_gains(report: ContextReport, axes: Axes) -> None:
    """Draw relative gains in percent, with a colour for each model and a line style for each share of hard tokens."""
    assert report.recl is not None
    styles = ("-", "--", ":", "-.")
    several = len(report.models) > 1
    for number, (name, model) in enumerate(zip(names_of(report), report.models, strict=True)):
        for style, recl in enumerate(model.recl):
            share = share_name(recl.hard)
            axes.plot(
                [gain.short for gain in recl.gains],
                [100 * gain.gain for gain in recl.gains],
                color=f"C{number}",
                linestyle=styles[style % len(styles)],
                marker="o",
                markersize=4,
                label=f"{plain(name)}, {share}" if several else share,
            )
    axes.axhline(100 * report.recl.threshold, color="black", linewidth=1)
    axes.set_xlabel(f"context length c, tokens; gain from c to c + {report.recl.step:,}")
    axes.set_ylabel("relative gain in perplexity, %")
    axes.set_ylim(bottom=0)
    axes.set_title(f"black: {100 * report.recl.threshold:g}%, below which RECL = c", fontsize="small")
    axes.grid(alpha=0.3)
    axes.legend()
