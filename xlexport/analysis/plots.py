"""Plots of analyses: bits by memory length and along a document, attention by distance, and training runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.analysis.attention import TERMS, AttentionReport, AttentionTerms, SegmentAttention
from xlexport.analysis.bits_along import BitsAlong
from xlexport.analysis.context import ContextReport, names_of, share_name, unit_of
from xlexport.analysis.recl import RelativeGain
from xlexport.figures import plain, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

__all__ = ["draw_along", "draw_attention", "draw_context", "plot_training"]

DECADES = 5  # range of the colours: attention further below the maximum looks like zero
FEW_POINTS = 60  # so few that each gets a mark
COUNT = "{x:,.0f}"  # the label of a number on an axis
TITLES = {"a": "(a) content", "b": "(b) position, as the query asks", "d": "(d) position"}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    return Figure(figsize=(width, height), layout="constrained")


def draw_context(report: ContextReport, path: Path) -> None:
    """Draw bits by memory length with a line for each model, and if RECL was computed, gains.

    Gains are relative, as the threshold is, and of perplexity itself, as in Figure 3 of Dai et al. 2019.

    Raises:
        OSError: the file cannot be written.
    """
    gains = report.recl is not None and any(recl.gains for model in report.models for recl in model.recl)
    figure = _figure(16 if gains else 7, 4.8)
    places = figure.subplots(1, 3 if gains else 1, squeeze=False)[0]
    _draw_losses(report, places[0])
    if gains:
        _draw_gains(report, places[1], "relative gain in perplexity, %", lambda gain: 100 * gain.gain)
        _draw_gains(report, places[2], "gain in perplexity", lambda gain: gain.perplexity_gain)
        threshold = report.recl.threshold if report.recl else 0
        places[1].axhline(100 * threshold, color="black", linewidth=1)
        places[1].set_title(f"black: {100 * threshold:g}%, below which RECL = c", fontsize="small")
    names = [plain(Path(name).name) for name in report.documents]
    texts = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    figure.suptitle(f"{texts}: {report.scored_tokens:,} tokens", fontsize="medium")
    save_picture(figure, path)


def _draw_losses(report: ContextReport, axes: Axes) -> None:
    unit = unit_of(report)
    for name, model in zip(names_of(report), report.models, strict=True):
        lengths = [score.mem_len for score in model.lengths]
        bits = [getattr(score, f"bits_per_{unit}") for score in model.lengths]
        marked = [place for place, length in enumerate(lengths) if length in report.curve]  # not those only for RECL
        (line,) = axes.plot(lengths, bits, marker="o", markersize=4, markevery=marked, label=plain(name))
        if lengths[0] <= model.mem_len <= lengths[-1]:
            axes.axvline(model.mem_len, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(COUNT)
    axes.set_xticks(report.curve)
    axes.minorticks_off()
    axes.set_xlabel("memory length at evaluation, tokens (dotted: the bundle's own)")
    axes.set_ylabel(f"bits per {unit} (the axis does not begin at 0)")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_gains(report: ContextReport, axes: Axes, label: str, height: Callable[[RelativeGain], float]) -> None:
    """Draw gains, with a colour for each model and a line style for each share of hard tokens."""
    assert report.recl is not None
    styles = ("-", "--", ":", "-.")
    several = len(report.models) > 1
    for number, (name, model) in enumerate(zip(names_of(report), report.models, strict=True)):
        for style, recl in enumerate(model.recl):
            share = share_name(recl.hard)
            axes.plot(
                [gain.short for gain in recl.gains],
                [height(gain) for gain in recl.gains],
                color=f"C{number}",
                linestyle=styles[style % len(styles)],
                marker="o",
                markersize=4,
                label=f"{plain(name)}, {share}" if several else share,
            )
    axes.set_xlabel(f"context length c, tokens; gain from c to c + {report.recl.step:,}")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


def draw_along(curves: Sequence[BitsAlong], path: Path) -> None:
    """Draw bits per unit in each window (pale) and from the beginning (thick), with a colour for each document.

    Raises:
        OSError: the file cannot be written.
    """
    figure = _figure(9, 4.8)
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        begins = np.concatenate([[0], curve.ends[:-1]])
        axes.stairs(curve.windowed, np.append(begins, curve.ends[-1]), baseline=None, color=colour, alpha=0.45)
        label = f"{plain(Path(curve.document).name)}: {curve.running[-1]:.4f}"
        axes.plot(curve.ends, curve.running, color=colour, linewidth=2, label=label)
    unit, window = curves[0].unit, curves[0].window
    axes.set_xlim(0, max(int(curve.ends[-1]) for curve in curves))
    axes.xaxis.set_major_formatter(COUNT)
    axes.set_xlabel(f"{unit}s of the document")
    axes.set_ylabel(f"bits per {unit}")
    axes.set_title(f"thick: from the beginning to there; steps: in windows of {window:,} {unit}s", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, path)


def draw_attention(report: AttentionReport | AttentionTerms | SegmentAttention, path: Path) -> None:
    """Draw the attention of heads, or the terms of its scores.

    Raises:
        OSError: the file cannot be written.
    """
    draw: dict[type, Callable[[Any], Figure]]
    draw = {AttentionReport: _distances, AttentionTerms: _terms, SegmentAttention: _segment}
    save_picture(draw[type(report)](report), path)


def _distances(report: AttentionReport) -> Figure:
    """Draw a row for each head, the first layer at the top; the colour shows mean attention to each distance."""
    L, H, _ = report.mean.shape
    figure = _figure(9, min(2.5 + 0.11 * L * H, 16))
    axes = figure.add_subplot()
    mesh = _heads(axes, report.mean)
    axes.scatter(
        report.within(0.5).flatten() + 1,
        np.arange(L * H) + 0.5,
        marker="|",
        s=30,
        color="white",
        label="half of the attention is within",
    )
    axes.set_xlabel("tokens before the one that is predicted (distance + 1)")
    axes.set_title(
        f"mean attention over {report.tokens:,} queries; heads of a layer 0 to {H - 1}; tick: half is nearer",
        fontsize="medium",
    )
    figure.colorbar(mesh, ax=axes, label="attention to one token", extend="min")
    return figure


def _mesh(axes: Axes, columns: Any, rows: Any, weights: Any) -> QuadMesh:
    """Draw attention weights (rows, columns) in cells with these edges, the first row at the top."""
    from matplotlib.colors import LogNorm

    most = float(weights.max())
    least = most * 10.0**-DECADES
    axes.invert_yaxis()
    # An .svg, too, gets an image, because it would otherwise have a rectangle for each number.
    return axes.pcolormesh(
        columns, rows, weights.clip(min=least), norm=LogNorm(least, most), cmap="viridis", rasterized=True
    )


def _segment(report: SegmentAttention) -> Figure:
    """Draw a panel for each head: a row for each token of the segment, and a column for each token of its context."""
    N, S, K = report.weights.shape
    figure, edges = _figure(9, 1 + 2.5 * N), np.arange(K + 1) + report.first - 0.5
    panels = figure.subplots(N, sharex=True, squeeze=False)[:, 0]
    for axes, (layer, head), weights in zip(panels, report.heads, report.weights, strict=True):
        figure.colorbar(_mesh(axes, edges, edges[K - S :], weights), ax=axes, extend="min")
        axes.axvline(edges[K - S], color="white", linewidth=0.8)
        axes.set_ylabel("token that attends")
        axes.set_title(f"layer {layer}, head {head}", fontsize="medium")
    panels[-1].set_xlabel("token of the context, by its position in the text; line: where the memory ends")
    return figure


def _terms(report: AttentionTerms) -> Figure:
    """Draw a panel for each term, as `_distances` draws the attention of all together."""
    L, H, _ = report.mean["a"].shape
    figure = _figure(12, min(2.5 + 0.11 * L * H, 16))
    for axes, term in zip(figure.subplots(1, len(TERMS)), TERMS, strict=True):
        mesh = _heads(axes, report.mean[term])
        axes.set_title(TITLES[term], fontsize="medium")
        axes.set_xlabel("distance + 1")
        figure.colorbar(mesh, ax=axes, extend="min")
    return figure


def _heads(axes: Axes, mean: npt.NDArray[np.float64]) -> QuadMesh:
    """Draw attention by distance (layers, heads, distances): a row for each head, on a logarithmic axis."""
    L, H, D = mean.shape
    mesh = _mesh(axes, np.arange(D + 1) + 0.5, np.arange(L * H + 1), mean.reshape(L * H, D))  # distance + 1
    axes.set_xscale("log")
    axes.set_xlim(0.5, D + 0.5)
    axes.xaxis.set_major_formatter(COUNT)
    for layer in range(1, L):
        axes.axhline(layer * H, color="white", linewidth=0.8)
    axes.set_yticks(np.arange(L) * H + H / 2, [f"layer {layer}" for layer in range(L)])
    axes.tick_params(axis="y", length=0)
    return mesh


def plot_training(log: Path, path: Path) -> None:
    """Draw the bits of the training text and of the held-out text, above the learning rate.

    Args:
        log: the `log.jsonl` of a run.

    Raises:
        OSError: the log cannot be read, or the file cannot be written.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    names = [name.removeprefix("bits_per_") for line in lines[:1] for name in line if name.startswith("bits_per_")]
    unit = "byte" if "byte" in names or not names else names[0]
    figure = _figure(9, 6)
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for name, label in ((f"bits_per_{unit}", "training text"), (f"valid_bits_per_{unit}", "held-out text")):
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            marker = "." if len(points) < FEW_POINTS else ""
            above.plot(*zip(*points, strict=True), label=f"{label}: {points[-1][1]:.4f}", marker=marker)
    above.set_ylabel(f"bits per {unit}")
    above.set_title(plain(log.parent.name), fontsize="medium")
    above.legend()
    below.plot([line["step"] for line in lines], [line["learning_rate"] for line in lines], color="C7")
    below.set_ylabel("learning rate")
    below.set_xlabel("updates")
    below.xaxis.set_major_formatter(COUNT)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    save_picture(figure, path)
