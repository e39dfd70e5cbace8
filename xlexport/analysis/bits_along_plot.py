"""A plot of bits along documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xlexport.analysis.bits_along import BitsAlong
from xlexport.figures import plain, save_picture

__all__ = ["draw_along"]


def draw_along(curves: Sequence[BitsAlong], path: Path) -> None:
    """Draw bits per unit in each window (pale) and from the beginning (thick), with a colour for each document.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

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
