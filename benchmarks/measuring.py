"""Measure sides in turns, together with the machine's rates at that time; write figures as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.sides import ROOT, Ready, Side, Turn, sides_of
from xlexport.bench.measuring import disturbance

__all__ = [
    "PATH",
    "Figures",
    "add_to_json",
    "code_digest",
    "common_options",
    "headline",
    "machine",
    "measure",
    "print_disturbances",
    "ratio",
    "sgemm",
]

PATH = click.Path(path_type=Path)
RATES = ("sgemm_onnxruntime", "sgemm_torch", "memory_gb_per_s")
Figures = dict[str, Any]
LIBRARIES = ("numpy", "onnxruntime", "torch", "transformers", "reformer-pytorch")


def measure(
    makers: Mapping[str, Callable[[], Side]],
    rounds: int,
    repeats: Mapping[str, int],
    threads: int,
    device: str = "cpu",
) -> Figures:
    """Measure all sides in turns on `device`, `repeats` steps of each in a round, and return their figures.

    A side whose facts have `flops` (and `bytes`) of a step gets a floor. A side that returns as many scores as the
    first side of its `model` gets the difference between them. `disturbance` says why a side's times cannot be compared
    with those of the first side.
    """
    figures: Figures = {"machine": machine(), "threads": threads, "rounds": rounds}
    with sides_of({"SGEMM": lambda: Side(sgemm, threads, device), **makers}) as sides:
        floor = sides.pop("SGEMM")
        print("measuring", file=sys.stderr)
        measured, turns = [peaks(floor)], dict[str, Turn]()
        for _ in range(rounds):
            for name, side in sides.items():
                turns[name] = side.measure(repeats[name])
            measured.append(peaks(floor))
        facts = {name: side.facts for name, side in sides.items()}
    figures["peaks"] = measured
    figures["load_average_after"] = os.getloadavg()[0]
    best = {key: max(each[key] for each in measured) for key in RATES}
    gflops = max(best["sgemm_onnxruntime"], best["sgemm_torch"])
    references: dict[str, npt.NDArray[np.float64]] = {}
    figures["sides"] = {}
    base, *_ = turns.values()
    for name, turn in turns.items():
        figures["sides"][name] = row = {**times(turn), **facts[name]}
        row["disturbance"] = disturbance(base.clock, *([] if turn is base else [turn.clock]))
        if "flops" in row:
            row["floor"] = max(row["flops"] / gflops, row.get("bytes", 0) / best["memory_gb_per_s"]) / 1e9
        scores = np.array(turn.scores)
        reference = references.setdefault(row.get("model", ""), scores)
        if scores.size and scores.shape == reference.shape:
            row["max_abs_log_prob_diff"] = float(np.abs(scores - reference).max())
            row["mean_log_prob_diff"] = float(scores.mean() - reference.mean())
    return figures


def headline(name: str, figures: Figures) -> str:
    """Return a headline with the name and the machine's state during the measurement."""
    ours, torch, memory = ([each[key] for each in figures["peaks"]] for key in RATES)
    load = f"{figures['machine']['load_average']:.1f} at the start, {figures['load_average_after']:.1f} at the end"
    sgemm = (
        f"{min(ours):.0f} to {max(ours):.0f} GFLOP/s by ONNX Runtime, {min(torch):.0f} to {max(torch):.0f} by PyTorch"
    )
    return f"{name}\n  SGEMM {sgemm}; memory {max(memory):.0f} GB/s; {figures['threads']} threads; load {load}"


def add_to_json(file: Path, name: str, figures: Figures) -> None:
    """Add a case's figures to the file atomically."""
    cases = json.loads(file.read_text()) if file.exists() else {}
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps({**cases, name: figures}, indent=1) + "\n")
    os.replace(beside, file)


def sgemm(threads: int, device: str = "cpu") -> Ready:
    """Return a side whose step measures `RATES` of the machine, with the matrix product of both libraries."""
    import torch

    from xlexport.bench.measuring import SGEMM_SIZE, Machine
    from xlruntime.devices import parse_device

    torch.set_num_threads(threads)
    a, b = torch.rand(2, SGEMM_SIZE, SGEMM_SIZE).to(device)
    machine = Machine(parse_device(device), threads)

    def step() -> npt.NDArray[Any]:
        rates = machine.rates()
        started = time.perf_counter()
        _ = a @ b
        if device != "cpu":
            torch.cuda.synchronize(device)
        return np.array([rates.sgemm, 2 * SGEMM_SIZE**3 / (time.perf_counter() - started) / 1e9, rates.memory])

    return Ready(step)


def peaks(side: Side, repeats: int = 5) -> dict[str, float]:
    """Return the best of a few measurements of each rate, by a side of `sgemm`."""
    tries = np.array([side.measure(1).scores for _ in range(repeats)])
    return dict(zip(RATES, tries.max(axis=0).tolist(), strict=True))


def times(last: Turn) -> Figures:
    """Return a side's median and best wall time over all steps, and its mean user and system time, by its last turn."""
    clock, steps = last.clock, len(last.clock.runs)
    return {
        "median": clock.quantile(0.5),
        "best": min(clock.runs),
        "user": clock.user / steps,
        "system": clock.system / steps,
        "peak_rss_mb": last.peak_rss_mb,
        "seconds": clock.rounds,
    }


def ratio(side: Figures, value: float | None, width: int) -> str:
    """Return a cell with a side's ratio to another; with a dash if its times cannot be compared."""
    if value is None:
        return " " * width
    return f"{value:{width}.2f}" if side["disturbance"] is None else f"{'-':>{width}}"


def print_disturbances(figures: Figures) -> None:
    """Print why some sides have no ratios."""
    for name, side in figures["sides"].items():
        if side["disturbance"] is not None:
            print(f"  {name} not compared: {side['disturbance']}")


def code_digest() -> str:
    """Return a digest of the code that exports; kept bundles are valid while it is unchanged."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("xlexport/**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def machine() -> dict[str, Any]:
    """Return the place and time of the measurement: processor, cores, load, versions, date."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": versions,
    }


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all benchmarks with sides have: `rounds`, `threads`, `tiny`, `folder` and `file`."""
    options = (
        click.option("--rounds", default=3, show_default=True, type=click.IntRange(1)),
        click.option("--threads", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1)),
        click.option("--tiny", is_flag=True, help="A small shape, to try the command out."),
        click.option("--folder", type=PATH, help="Folder that keeps checkpoints and bundles for reuse."),
        click.option("--json", "file", type=PATH, help="File for figures; figures of other tables are kept."),
    )
    for option in reversed(options):
        function = option(function)
    return function
