"""A plot of attention by distance for each head, like Figure 5 of the Transformer-XL paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xlexport.analysis.attention import AttentionReport
from xlexport.figures import save_picture

__all__ = ["draw_attention"]

DECADES = 5  # range of the colours: attention further below the maximum looks like zero


def draw_attention(report: AttentionReport, path: Path) -> None:
    """Draw a row for each head, the first layer at the top; the colour shows mean attention to each distance.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    L, H, D = report.mean.shape
    rows = report.mean.reshape(L * H, D)
    figure = Figure(figsize=(9, min(2.5 + 0.11 * L * H, 16)), layout="constrained")
    axes = figure.add_subplot()
    most = float(rows.max())
    mesh = axes.pcolormesh(
        np.arange(D + 1) + 0.5,  # distance + 1, because the axis is logarithmic
        np.arange(L * H + 1),
        rows.clip(min=most * 10.0**-DECADES),
        norm=LogNorm(most * 10.0**-DECADES, most),
        cmap="viridis",
        rasterized=True,  # also in an .svg, which would otherwise have a rectangle for each number
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
