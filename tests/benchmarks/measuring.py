"""Sides measured in turns, beside what the machine can do at that time; figures as JSON."""

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

import numpy as np
import numpy.typing as npt

from tests.benchmarks.sides import ROOT, Ready, Side, Turn, sides_of

__all__ = ["Figures", "add_to_json", "code_digest", "headline", "machine", "measure", "sgemm"]

SGEMM_SIZE = 2048
READ_MB = 256
Figures = dict[str, Any]
LIBRARIES = ("numpy", "onnxruntime", "torch", "transformers", "reformer-pytorch")


def measure(makers: Mapping[str, Callable[[], Side]], rounds: int, repeats: Mapping[str, int], threads: int) -> Figures:
    """Figures of all sides, measured in turns: `repeats` steps of each in a round.

    A side that tells `flops` (and `bytes`) of a step gets its floor; one that returns as many scores as the first side
    of its `model`, how far they are from those.
    """
    figures: Figures = {"machine": machine(), "threads": threads, "rounds": rounds}
    with sides_of({"SGEMM": lambda: Side(sgemm, threads), **makers}) as sides:
        floor = sides.pop("SGEMM")
        print("measuring", file=sys.stderr)
        measured, turns = [peaks(floor)], {name: list[Turn]() for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                turns[name].append(side.measure(repeats[name]))
            measured.append(peaks(floor))
        facts = {name: side.facts for name, side in sides.items()}
    figures["peaks"] = measured
    figures["load_average_after"] = os.getloadavg()[0]
    gflops, read = (max(each[key] for each in measured) for key in ("gflops", "read_gb_per_s"))
    references: dict[str, npt.NDArray[np.float64]] = {}
    figures["sides"] = {}
    for name, each in turns.items():
        figures["sides"][name] = row = {**medians(each), **facts[name], "seconds": [turn.seconds for turn in each]}
        if "flops" in row:
            row["floor"] = max(row["flops"] / gflops, row.get("bytes", 0) / read) / 1e9
        scores = np.array(each[-1].scores)
        reference = references.setdefault(row.get("model", ""), scores)
        if scores.size and scores.shape == reference.shape:
            row["max_abs_log_prob_diff"] = float(np.abs(scores - reference).max())
            row["mean_log_prob_diff"] = float(scores.mean() - reference.mean())
    return figures


def headline(name: str, figures: Figures) -> str:
    """What the machine did meanwhile."""
    gflops, read = ([each[key] for each in figures["peaks"]] for key in ("gflops", "read_gb_per_s"))
    return (
        f"{name}: SGEMM {min(gflops):.0f} to {max(gflops):.0f} GFLOP/s, reads {max(read):.0f} GB/s, "
        f"{figures['threads']} threads, load {figures['machine']['load_average']:.1f} at the start"
    )


def add_to_json(file: Path, name: str, figures: Figures) -> None:
    """Put a case's figures into the file, whole or not at all."""
    cases = json.loads(file.read_text()) if file.exists() else {}
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps({**cases, name: figures}, indent=1) + "\n")
    os.replace(beside, file)


def sgemm(threads: int) -> Ready:
    """The floor's measures, which a step returns: a 2048-cubed matrix product, and reading 256 MB."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.rand(2, SGEMM_SIZE, SGEMM_SIZE)
    block = torch.rand(READ_MB * 10**6 // 4)

    def step() -> npt.NDArray[Any]:
        started = time.perf_counter()
        _ = a @ b
        between = time.perf_counter()
        block.sum()
        return np.array([
            2 * SGEMM_SIZE**3 / (between - started) / 1e9,
            READ_MB / 1e3 / (time.perf_counter() - between),
        ])  # fmt: skip

    return Ready(step)


def peaks(side: Side, repeats: int = 5) -> dict[str, float]:
    """The most of a few tries, by a side of `sgemm`: GFLOP/s of the product, GB/s of reading."""
    tries = np.array([side.measure(1).scores for _ in range(repeats)])
    gflops, read = tries.max(axis=0)
    return {"gflops": float(gflops), "read_gb_per_s": float(read)}


def medians(turns: list[Turn]) -> dict[str, float]:
    """Of all steps of a side: median and best wall time; medians over turns of user and system time."""
    seconds = [each for turn in turns for each in turn.seconds]
    return {
        "median": float(np.median(seconds)),
        "best": min(seconds),
        "user": float(np.median([turn.user for turn in turns])),
        "system": float(np.median([turn.system for turn in turns])),
        "peak_rss_mb": max(turn.peak_rss_mb for turn in turns),
    }


def code_digest() -> str:
    """Of the code that exports: a bundle that was kept is of use while this is the same."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("xlexport/**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def machine() -> dict[str, Any]:
    """Where and when: processor, cores, how busy it is, versions, date."""
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
