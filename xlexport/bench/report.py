"""The figures of one measurement, and their display in rows, tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xlexport.bench.operator_profile import OperatorTime
from xlexport.bench.sides import Purpose
from xlexport.errors import XlexportError
from xlexport.figures import check_picture, save_picture

__all__ = [
    "BenchReport",
    "case_name",
    "check_plot",
    "draw_plot",
    "profile_lines",
    "report_rows",
    "table_header",
    "table_line",
]


@dataclass(frozen=True)
class BenchReport:
    """The figures of one run. Times are wall time unless stated otherwise; None: not measured."""

    segment_len: int
    mem_len: int
    batch_size: int
    threads: int | None
    device: str
    dtype: str
    tokens_per_second: float
    ms_per_segment_p50: float
    ms_per_segment_p95: float
    gflops: float | None  # arithmetic of a step over its median time
    sgemm_gflops: float  # the best of a 2048-cubed matrix product in this run, with the same runtime and threads
    fraction_of_sgemm: float | None
    load_seconds: float
    peak_rss_mb: float | None  # of the process, before PyTorch and the checkpoint are loaded; of a sweep's first only
    eager_tokens_per_second: float | None
    speedup: float | None  # median eager time over median time of the bundle
    purpose: Purpose
    ms_per_segment_best_round: float  # the median of the fastest round
    speedup_best_round: float | None  # of the same round
    user_ms_per_segment: float  # mean, over all threads of the process
    system_ms_per_segment: float
    flops_per_segment: int | None  # None, like all figures computed from it, if the architecture does not count them
    bytes_per_segment: int
    copy_gb_per_second: float
    read_gb_per_second: float
    arithmetic_floor_ms: float | None
    bytes_floor_ms: float
    floor_ms: float | None
    floor: Literal["arithmetic", "bytes"] | None  # the larger of the two times
    fraction_of_floor: float | None  # floor_ms over the median time
    kernels: str  # for custom operators
    disturbance: str | None  # why times cannot be compared; then all ratios are None
    profile: Sequence[OperatorTime] | None


def report_rows(report: BenchReport) -> list[tuple[str, str]]:
    """Return a report as rows for people."""
    threads = "" if report.threads is None else f", {report.threads} thread{'s' * (report.threads > 1)}"
    times = f"{_amount(report.ms_per_segment_p50)}, 95% within {_amount(report.ms_per_segment_p95)}"
    user, system = _amount(report.user_ms_per_segment), _amount(report.system_ms_per_segment)
    product = f"{_amount(report.sgemm_gflops)} GFLOP/s, a large matrix product's"
    arithmetic = f"not counted; {product}"
    if report.flops_per_segment is not None and report.arithmetic_floor_ms is not None:
        amount = f"{_amount(report.flops_per_segment / 1e9)} GFLOP"
        arithmetic = f"{amount}: {_amount(report.arithmetic_floor_ms)} ms at {product}"
    copy, read = report.copy_gb_per_second, report.read_gb_per_second
    rates = f"{_amount(max(copy, read))} GB/s (copies {_amount(copy)}, reads {_amount(read)})"
    rates += f"; the step reaches {_amount(report.bytes_per_segment / report.ms_per_segment_p50 / 1e6)}"
    rows = [
        ("step", f"{report.purpose}, {case_name(report)}"),
        ("on", f"{report.device}{threads}, {report.dtype}"),
        ("kernels", report.kernels),
        ("tokens/s", _amount(report.tokens_per_second)),
        ("ms a step", f"{times}, quietest round {_amount(report.ms_per_segment_best_round)}"),
        ("processor", f"{user} ms user, {system} ms system"),
        ("arithmetic", arithmetic),
        ("bytes", f"{_amount(report.bytes_per_segment / 1e6)} MB: {_amount(report.bytes_floor_ms)} ms at {rates}"),
    ]
    if report.floor_ms is not None:
        floor = f"{_amount(report.floor_ms)} ms, of {report.floor}"
        if report.fraction_of_floor is not None:
            best_round = report.floor_ms / report.ms_per_segment_best_round
            floor += f"; {report.fraction_of_floor:.0%} of its speed reached, {best_round:.0%} in the quietest round"
        rows.append(("floor", floor))
    if report.eager_tokens_per_second is not None:
        eager = f"{_amount(report.eager_tokens_per_second)} tokens/s"
        if report.speedup is not None:
            eager += f"; the bundle is {report.speedup:.3g} times as fast, "
            eager += f"{report.speedup_best_round:.3g} times in the quietest round"
        rows.append(("eager", eager))
    if report.disturbance is not None:
        rows.append(("not compared", report.disturbance))
    rows.append(("load", f"{report.load_seconds:.3g} s"))
    if report.peak_rss_mb is not None:
        rows.append(("peak memory", f"{report.peak_rss_mb:,.0f} MB"))
    return rows


def case_name(report: BenchReport) -> str:
    """Return the measured combination, in words."""
    return f"segment {report.segment_len:,}, memory {report.mem_len:,}, batch {report.batch_size:,}"


COLUMNS = ("threads", "segment", "memory", "batch", "ms a step", "tokens/s", "floor ms", "bound by", "of floor")


def table_header(eager: bool) -> str:
    """Return the header of a table of many reports."""
    return _line([*COLUMNS, "to eager"] if eager else COLUMNS)


def table_line(report: BenchReport) -> str:
    """Return the table line of one report."""
    cells = [
        "-" if report.threads is None else f"{report.threads}",
        f"{report.segment_len:,}",
        f"{report.mem_len:,}",
        f"{report.batch_size:,}",
        _amount(report.ms_per_segment_p50),
        _amount(report.tokens_per_second),
        "-" if report.floor_ms is None else _amount(report.floor_ms),
        report.floor or "-",
        "-" if report.fraction_of_floor is None else f"{report.fraction_of_floor:.0%}",
    ]
    if report.eager_tokens_per_second is not None:
        cells.append("-" if report.speedup is None else f"{report.speedup:.3g}x")
    return _line(cells) + ("" if report.disturbance is None else f"  not compared: {report.disturbance}")


def profile_lines(profile: Sequence[OperatorTime]) -> list[str]:
    """Return the time of each operator, one in each line; with execution providers unless all run on the CPU."""
    rows = [("operator", "ms", "share", "count", "provider")]
    rows += [(at.operator, f"{at.ms:,.3f}", f"{at.percent:.1f}%", f"{at.count:,}", at.provider) for at in profile]
    elsewhere = {time.provider for time in profile} - {"", "CPUExecutionProvider"}
    width = max(len(row[0]) for row in rows)
    return [
        f"{name:<{width}}  {ms:>9}  {share:>6}  {count:>6}" + (f"  {provider}" if elsewhere else "")
        for name, ms, share, count, provider in rows
    ]


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>10}" if index > 3 else f"{cell:>8}" for index, cell in enumerate(cells))


def _amount(value: float) -> str:
    """Format a number with three significant digits, or with all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or not value else f"{value:.1e}"


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
