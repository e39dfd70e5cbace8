"""A plot of a training run: its losses and its learning rate by update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xlexport.figures import plain, save_picture

__all__ = ["plot_training"]

FEW_POINTS = 60  # so few that each gets a mark


def plot_training(log: Path, path: Path) -> None:
    """Draw the bits of the training text and of the held-out text, above the learning rate.

    Args:
        log: the `log.jsonl` of a run.

    Raises:
        OSError: the log cannot be read, or the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    unit = _unit(lines)
    figure = Figure(figsize=(9, 6), layout="constrained")
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
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    save_picture(figure, path)


def _unit(lines: list[dict[str, Any]]) -> str:
    """Return `byte` if the log has bits per byte, else its own unit."""
    names = [name.removeprefix("bits_per_") for line in lines[:1] for name in line if name.startswith("bits_per_")]
    return "byte" if "byte" in names or not names else names[0]
