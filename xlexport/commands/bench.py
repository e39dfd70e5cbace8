"""The `bench` command and its options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    checkpoint_options,
    device_options,
    given_options,
    json_option,
    reading_given,
    refuse,
    settings_options,
    trust_option,
)
from xlexport.commands.settings import Decorator, rare
from xlexport.commands.values import BUNDLE, MODEL, PATH, Integers
from xlexport.terminal import drawing, print_json, print_line, print_table

if TYPE_CHECKING:
    from xlexport.bench.report import BenchReport

__all__ = ["bench"]

AT_LEAST_ONE = Integers(some=True, at_least=1)


def _numbers(name: str, help: str, **attributes: Any) -> Decorator:
    """Return an option that takes several numbers, of which every combination is measured."""
    return click.option(name, metavar="N[,M…]", help=help, **{"type": Integers(some=True), **attributes})


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport bench bundle", "Tokens per second, and what the machine can do."),
        ("xlexport bench bundle --against checkpoint.pt --threads 1,2", "How much faster than the eager model."),
        ("xlexport bench bundle --segment-len 1,16,128 --batch-size 1,8 --plot speed.png", "Six combinations."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@headed(
    "Measurement",
    rare(
        "purpose",
        "choice",
        "Score segments, or generate token by token.",
        default="score",
        choices=("score", "generate"),
    ),
    _numbers("--batch-size", "Documents at a time.", type=AT_LEAST_ONE, default="1", show_default=True),
    rare("repeats", "integer", "Steps of each side in a round.", default=7, minimum=1),
    rare("rounds", "integer", "Rounds, in which all sides take turns.", default=3, minimum=1),
    rare("profile", "boolean", "Show where the time of a step goes, by operator and provider.", default=False),
)
@headed(
    "Output",
    json_option("one object for each combination"),
    click.option(
        "--plot",
        type=PATH,
        metavar="FILE",
        help="Draw several combinations into a .png or .svg file (needs matplotlib).",
    ),
)
@headed(
    "Checkpoint",
    click.option("--against", type=MODEL, help="Compare with the eager model of this checkpoint."),
    checkpoint_options,
    trust_option,
)
@headed(
    "Model settings",
    _numbers(
        "--segment-len",
        "Tokens in one step. Several values, here and below: every combination.  [default: the model's own]",
    ),
    _numbers("--mem-len", "How many earlier tokens each layer remembers.  [default: the model's own]"),
    settings_options,
)
@headed(
    "Device", _numbers("--threads", "Threads of one step.  [default: all cores]", type=AT_LEAST_ONE), device_options
)
def bench(
    bundle: Path, against: str | None, as_json: bool, plot: Path | None, reading: dict[str, Any], **options: Any
) -> None:
    """Compare BUNDLE's speed with what the machine can do, and with the eager model."""
    if against is None:
        refuse(reading_given(reading), "for the checkpoint of --against. Add --against, or leave {} out.")
    from xlexport.extras import require
    from xlruntime.bundle import RUN
    from xlruntime.bundle_files import read_bundle
    from xlruntime.hub_cache import bundle_folder

    require("convert")
    from xlexport.bench import sweep
    from xlexport.bench.report import check_plot

    lists = ("segment_len", "mem_len", "batch_size", "threads")
    swept: dict[str, Any] = {name: options.pop(name) or (None,) for name in lists}
    combinations = math.prod(len(set(values)) for values in swept.values())
    if plot is not None:
        check_plot(plot, combinations)
    if read_bundle(bundle_folder(bundle), check_files=False).purpose == RUN:
        _time_steps(bundle, as_json, {**options, **swept})
        return
    reports = sweep(bundle, against=against, **reading, **swept, **options)
    _print_reports(reports, combinations, as_json, plot)


def _time_steps(bundle: Path, as_json: bool, options: Mapping[str, Any]) -> None:
    """Print the times of a step model for each number of rows and threads."""
    from xlexport.bench.step_model import time_steps
    from xlruntime import load_step_model

    device = ("device", "provider", "provider_options", "ops", "strict_device", "cuda_graphs")
    own = ("bundle", "as_json", "batch_size", "threads", "overrides", *device)
    refuse(given_options(own), f"for language models, but {bundle} is a step model. Leave {{}} out.")
    for threads in options["threads"]:
        model = load_step_model(bundle, threads=threads, **{name: options[name] for name in device})
        for rows in options["batch_size"]:
            times = time_steps(model, rows)
            if as_json:
                print_json({**asdict(times), "threads": threads})
            else:
                print_table([*times.table(), ("threads", str(threads or "all cores"))])


def _print_reports(reports: Iterator[BenchReport], combinations: int, as_json: bool, plot: Path | None) -> None:
    """Print each report as soon as it is complete, and draw the plot of all."""
    from xlexport.bench.report import case_name, draw_plot, profile_lines, report_rows, table_header, table_line

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
                print_line(table_header(eager=report.eager_tokens_per_second is not None))
            print_line(table_line(report))
        seen.append(report)
    if not as_json:
        for report in seen:
            if report.profile is not None:
                threads = "" if report.threads is None else f", threads {report.threads}"
                print_line("")
                if combinations > 1:
                    print_line(f"{case_name(report)}{threads}")
                for line in profile_lines(report.profile):
                    print_line(line)
    if plot is not None:
        with drawing(plot, "The results are printed."):
            draw_plot(seen, plot)
