"""A plot of a sweep: the measured speed, and the speed that the floor allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xlexport.bench.report import BenchReport
from xlexport.errors import XlexportError
from xlexport.figures import check_picture, save_picture

__all__ = ["check_plot", "draw_plot"]

AXES = {
    "segment_len": "tokens in a segment",
    "mem_len": "rows of memory",
    "batch_size": "rows of a batch",
    "threads": "threads",
}


def check_plot(path: Path, combinations: int) -> None:
    """Raise an error if the plot cannot be drawn, before any measurement.

    Raises:
        XlexportError: neither .png nor .svg, or nothing varies.
        MissingDependencyError: matplotlib is not installed.
        FileNotFoundError: the folder of the plot does not exist.
    """
    check_picture(path)
    if combinations < 2:
        raise XlexportError(
            f"{path}: one combination is not enough for a plot.",
            hint="Give several, for example --segment-len 1,16,80.",
        )


def draw_plot(reports: Sequence[BenchReport], path: Path) -> None:
    """Draw tokens per second over the setting with the most values, with a line for each combination of the others.

    Dashed lines show the floor, dotted lines the eager model.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    varied = {name: len({getattr(report, name) for report in reports}) for name in AXES}
    axis = max(varied, key=lambda name: varied[name])
    others = [name for name in AXES if name != axis and varied[name] > 1]
    lines: dict[tuple[Any, ...], list[BenchReport]] = {}
    for report in reports:
        lines.setdefault(tuple(getattr(report, name) for name in others), []).append(report)

    against = reports[0].eager_tokens_per_second is not None
    figure = Figure(figsize=(8, 5), layout="constrained")
    plot = figure.add_subplot()
    for key, line in lines.items():
        line.sort(key=lambda report: getattr(report, axis))
        label = ", ".join(f"{name} {value}" for name, value in zip(others, key, strict=True)) or "bundle"
        places = [getattr(report, axis) for report in line]
        (drawn,) = plot.plot(places, [report.tokens_per_second for report in line], marker="o", label=label)
        allowed = [
            report.tokens_per_second * report.ms_per_segment_p50 / report.floor_ms for report in line if report.floor_ms
        ]
        if allowed:  # None if the architecture does not count its arithmetic
            plot.plot(places, allowed, linestyle="--", color=drawn.get_color())
        if against:
            eager = [report.eager_tokens_per_second or 0 for report in line]
            plot.plot(places, eager, linestyle=":", color=drawn.get_color())
    plot.set_xlabel(AXES[axis])
    plot.set_ylabel("tokens/s")
    plot.set_xscale("log", base=2)
    places = sorted({getattr(report, axis) for report in reports})
    plot.set_xticks(places, [f"{place:,}" for place in places])
    plot.grid(alpha=0.3)
    plot.set_yscale("log")
    dashed = "" if reports[0].floor_ms is None else "; dashed: what the floor allows"
    dotted = "; dotted: eager model" if against else ""
    disturbed = "; disturbed by other programs" if any(report.disturbance for report in reports) else ""
    plot.set_title(f"{reports[0].purpose}{dashed}{dotted}{disturbed}")
    plot.legend()
    save_picture(figure, path)
