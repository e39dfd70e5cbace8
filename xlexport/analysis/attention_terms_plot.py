"""A plot of the terms of attention scores by distance, like Figure 7 of the Transformer-XL paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xlexport.analysis.attention_terms import TERMS, AttentionTerms
from xlexport.figures import save_picture

__all__ = ["draw_terms"]

TITLES = {"a": "(a) content", "b": "(b) position, as the query asks", "d": "(d) position"}


def draw_terms(report: AttentionTerms, path: Path) -> None:
    """Draw a column for each term and a row for each head; colours show the mean less that of all distances.

    Only differences between distances change attention.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    L, H, D = report.mean["a"].shape
    figure = Figure(figsize=(12, min(2.5 + 0.11 * L * H, 16)), layout="constrained")
    for axes, term in zip(figure.subplots(1, len(TERMS), sharey=True), TERMS, strict=True):
        rows = report.mean[term].reshape(L * H, D)
        rows = rows - rows.mean(axis=1, keepdims=True)
        most = float(np.abs(rows).max()) or 1.0
        mesh = axes.pcolormesh(
            np.arange(D + 1), np.arange(L * H + 1), rows, cmap="RdBu_r", vmin=-most, vmax=most, rasterized=True
        )
        for layer in range(1, L):
            axes.axhline(layer * H, color="black", linewidth=0.4)
        axes.set_yticks(np.arange(L) * H + H / 2, [f"layer {layer}" for layer in range(L)])
        axes.tick_params(axis="y", length=0)
        axes.set_title(TITLES[term], fontsize="medium")
        axes.set_xlabel("distance in tokens")
        figure.colorbar(mesh, ax=axes)
    figure.axes[0].invert_yaxis()
    save_picture(figure, path)
