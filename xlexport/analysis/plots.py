"""Plots of what was measured: loss by memory length, bits along documents, attention by distance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xlexport.analysis.attention import AttentionReport
from xlexport.analysis.bits_along import BitsAlong
from xlexport.analysis.context import ContextReport
from xlexport.analysis.context_rows import names_of, share_name, unit_of
from xlexport.figures import plain, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_along", "draw_attention", "draw_context"]

DECADES = 5  # of colour: less attention than this far below the most looks like none


def draw_context(report: ContextReport, path: Path) -> None:
    """Bits by memory length, a line for each model; next to it, if RECL was computed, relative gains.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen

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
    """Relative gains in percent; a colour for each model, a line style for each share of hard tokens."""
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


def draw_along(curves: Sequence[BitsAlong], path: Path) -> None:
    """Bits per unit in each window, pale, and from the beginning on; a colour for each document.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        begins = np.concatenate([[0], curve.ends[:-1]])
        axes.stairs(curve.windowed, np.append(begins, curve.ends[-1]), baseline=None, color=colour, alpha=0.45)
        label = f"{plain(Path(curve.document).name)}: {curve.running[-1]:.4f}"
        axes.plot(curve.ends, curve.running, color=colour, linewidth=2, label=label)
    unit, window = curves[0].unit, curves[0].window
    axes.set_xlim(0, max(int(curve.ends[-1]) for curve in curves))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(f"{unit}s of the document")
    axes.set_ylabel(f"bits per {unit}")
    axes.set_title(f"thick: from the beginning to there; steps: in windows of {window:,} {unit}s", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, path)


def draw_attention(report: AttentionReport, path: Path) -> None:
    """A row for each head, the first layer's at the top; colour is mean attention to each distance.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen

    L, H, D = report.mean.shape
    rows = report.mean.reshape(L * H, D)
    figure = Figure(figsize=(9, min(2.5 + 0.11 * L * H, 16)), layout="constrained")
    axes = figure.add_subplot()
    most = float(rows.max())
    mesh = axes.pcolormesh(
        np.arange(D + 1) + 0.5,  # distance + 1: a logarithm has no zero
        np.arange(L * H + 1),
        rows.clip(min=most * 10.0**-DECADES),
        norm=LogNorm(most * 10.0**-DECADES, most),
        cmap="viridis",
        rasterized=True,  # in an .svg, too: it would have a rectangle for each number
    )
    axes.scatter(
        report.within(0.5).flatten() + 1,
        np.arange(L * H) + 0.5,
        marker="|",
        s=30,
        color="white",
        label="half of the attention is within",
    )
    axes.set_xscale("log")
    axes.set_xlim(0.5, D + 0.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("tokens before the one that is predicted (distance + 1)")
    for layer in range(1, L):
        axes.axhline(layer * H, color="white", linewidth=0.8)
    axes.set_yticks(np.arange(L) * H + H / 2, [f"layer {layer}" for layer in range(L)])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(
        f"mean attention over {report.tokens:,} queries; heads of a layer 0 to {H - 1}; tick: half is nearer",
        fontsize="medium",
    )
    figure.colorbar(mesh, ax=axes, label="attention to one token", extend="min")
    save_picture(figure, path)
