"""What `xlexport bench` prints: a report, or the table of a sweep as it comes, an object a combination as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from xlexport.bench.plot import draw_plot
from xlexport.bench.report import BenchReport, case_name, profile_lines, report_rows, table_header, table_line
from xlexport.terminal import print_json, print_table, tell

__all__ = ["print_reports"]


def print_reports(reports: Iterator[BenchReport], combinations: int, as_json: bool, plot: Path | None) -> None:
    """Print each report when it is there, and draw the plot of all."""
    seen: list[BenchReport] = []
    for report in reports:
        if as_json:
            print_json(
                {name: value for name, value in asdict(report).items() if name != "profile" or value is not None}
            )
        elif combinations == 1:
            print_table(report_rows(report))
        else:
            if not seen:
                click.echo(table_header(eager=report.speedup is not None))
            click.echo(table_line(report))
        seen.append(report)
    if not as_json:
        for report in seen:
            if report.profile is not None:
                threads = "" if report.threads is None else f", threads {report.threads}"
                click.echo("" if combinations == 1 else f"\n{case_name(report)}{threads}")
                click.echo("\n".join(profile_lines(report.profile)))
    if plot is not None:
        draw_plot(seen, plot)
        tell(f"wrote {plot}")
