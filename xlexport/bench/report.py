"""The figures of one measurement, and their display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xlexport.bench.operator_profile import OperatorTime
from xlexport.bench.runners import Purpose

__all__ = ["BenchReport", "case_name", "profile_lines", "report_rows", "table_header", "table_line"]


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
    memory_rate = max(report.copy_gb_per_second, report.read_gb_per_second)
    rows = [
        ("step", f"{report.purpose}, {case_name(report)}"),
        ("on", f"{report.device}{threads}, {report.dtype}"),
        ("kernels", report.kernels),
        ("tokens/s", _amount(report.tokens_per_second)),
        (
            "ms a step",
            f"{_amount(report.ms_per_segment_p50)}, 95% within {_amount(report.ms_per_segment_p95)}, "
            f"quietest round {_amount(report.ms_per_segment_best_round)}",
        ),
        (
            "processor",
            f"{_amount(report.user_ms_per_segment)} ms user, {_amount(report.system_ms_per_segment)} ms system",
        ),
        *_arithmetic_rows(report),
        (
            "bytes",
            f"{_amount(report.bytes_per_segment / 1e6)} MB: {_amount(report.bytes_floor_ms)} ms at "
            f"{_amount(memory_rate)} GB/s (copies {_amount(report.copy_gb_per_second)}, reads "
            f"{_amount(report.read_gb_per_second)})",
        ),
        *_floor_rows(report),
    ]
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


def _arithmetic_rows(report: BenchReport) -> list[tuple[str, str]]:
    if report.flops_per_segment is None or report.arithmetic_floor_ms is None:
        return [("arithmetic", f"not counted; {_amount(report.sgemm_gflops)} GFLOP/s, a large matrix product's")]
    return [
        (
            "arithmetic",
            f"{_amount(report.flops_per_segment / 1e9)} GFLOP: {_amount(report.arithmetic_floor_ms)} ms at "
            f"{_amount(report.sgemm_gflops)} GFLOP/s, a large matrix product's",
        )
    ]


def _floor_rows(report: BenchReport) -> list[tuple[str, str]]:
    if report.floor_ms is None:
        return []
    floor = f"{_amount(report.floor_ms)} ms, of {report.floor}"
    if report.fraction_of_floor is not None:
        best_round = report.floor_ms / report.ms_per_segment_best_round
        floor += f"; {report.fraction_of_floor:.0%} of its speed reached, {best_round:.0%} in the quietest round"
    return [("floor", floor)]


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
    rows = [("operator", "ms", "share", "count", "provider"), *map(_profile_cells, profile)]
    elsewhere = {time.provider for time in profile} - {"", "CPUExecutionProvider"}
    width = max(len(row[0]) for row in rows)
    return [
        f"{name:<{width}}  {ms:>9}  {share:>6}  {count:>6}" + (f"  {provider}" if elsewhere else "")
        for name, ms, share, count, provider in rows
    ]


def _profile_cells(time: OperatorTime) -> tuple[str, str, str, str, str]:
    return time.operator, f"{time.ms:,.3f}", f"{time.percent:.1f}%", f"{time.count:,}", time.provider


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>10}" if index > 3 else f"{cell:>8}" for index, cell in enumerate(cells))


def _amount(value: float) -> str:
    """Format a number with three significant digits, or with all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"
