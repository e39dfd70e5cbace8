"""Sides of a benchmark, each in a process of its own: start them, measure them in turns, print and keep the figures.

A side is a function that returns `Ready`, which holds the step to measure. It runs in a new process, which has no
libraries, threads or allocator of another side. All sides are warm, and slow preparations (an export, a compilation)
happen once, outside the measurement.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from xlexport.bench.measuring import SGEMM_SIZE, Clock, RateMeter, Rates, disturbance, peak_rss_mb, seconds, take_turns
from xlexport.extras import disable_telemetry
from xlruntime.devices import parse_device

__all__ = [
    "PATH",
    "ROOT",
    "Figures",
    "Pieces",
    "Ready",
    "Run",
    "Side",
    "SideError",
    "Sides",
    "add_to_json",
    "benchmark",
    "bundle_of",
    "code_digest",
    "log_probs",
    "machine",
    "measure",
    "print_table",
    "rates_of_the_machine",
    "run_once",
    "text_ids",
]

ROOT = Path(__file__).parents[1]
PATH = click.Path(path_type=Path)
LIBRARIES = ("numpy", "onnxruntime", "torch", "transformers", "reformer-pytorch")
RATES = ("sgemm_onnxruntime", "sgemm_torch", "memory_gb_per_s")
PROBES = 5  # measurements of each rate between two rounds, of which the best counts
ROUNDING = 1e-3  # nats: a hundred times the observed differences of correct sides
_SPAWN = multiprocessing.get_context("spawn")
_STARTING = threading.Lock()
disable_telemetry()  # of transformers

Figures = dict[str, Any]
Scores = npt.NDArray[Any]


class SideError(click.ClickException):
    """A side's process ended before it answered."""


@dataclass
class Ready:
    """The content of a side's own process.

    Attributes:
        step: the work that is timed; returns scores of its tokens in nats, or None.
        facts: further facts about the side, as plain JSON. `tokens` of a step are needed for ratios.
        warm: steps before the first turn.
        elsewhere: as in `Clock`.
    """

    step: Callable[[], Scores | None]
    facts: dict[str, Any] = field(default_factory=dict)
    warm: int = 2
    elsewhere: bool = False


@dataclass(frozen=True)
class Turn:
    """Several steps of a side in a row: the scores that they returned, and the times of all turns so far."""

    clock: Clock
    peak_rss_mb: float
    scores: npt.NDArray[np.float64]


class Side:
    """A process that holds one side, ready."""

    def __init__(
        self, function: Callable[..., Any], *arguments: object, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process and wait until it is ready, so that it does not run while another side is measured.

        Raises:
            SideError: the side could not start; stderr has the reason.
        """
        self.name = function.__name__
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, function, arguments))
        with _environment({"TRANSFORMERS_VERBOSITY": "error", **(environment or {})}):
            self._process.start()
        theirs.close()
        self.facts: Any = self._answer()

    def measure(self, repeats: int) -> Turn:
        """Measure `repeats` steps."""
        self._connection.send(repeats)
        turn: Turn = self._answer()
        return turn

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise SideError(f"side {self.name} ended with status {status}; its output is above.") from None


Sides = dict[str, Callable[[], Side]]


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment that a new process inherits."""
    with _STARTING:
        before = dict(os.environ)
        os.environ.update(changes)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _serve(connection: Connection, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    """Get ready, then measure a turn for each number of repeats until the other end closes."""
    os.dup2(2, 1)  # only the table goes to standard output
    side = function(*arguments)
    if not isinstance(side, Ready):
        connection.send(side)
        return
    side.facts["first_step_seconds"] = seconds(side.step)
    for _ in range(side.warm - 1):
        side.step()
    connection.send(side.facts)
    clock = Clock(elsewhere=side.elsewhere)
    with contextlib.suppress(EOFError):
        while True:
            repeats, results = connection.recv(), list[Scores | None]()
            clock.round(lambda: results.append(side.step()), repeats)  # noqa: B023  # called in this turn
            scores = [np.asarray(result, np.float64).ravel() for result in results if result is not None]
            connection.send(Turn(clock, peak_rss_mb(), np.concatenate([*scores, []])))


def run_once(function: Callable[..., Any], *arguments: object, environment: Mapping[str, str] | None = None) -> Any:
    """Run a function in a separate process and return its result."""
    side = Side(function, *arguments, environment=environment)
    side.close()
    return side.facts


def rates_of_the_machine(threads: int, device: str) -> Ready:
    """Return a side whose step measures `RATES` of the machine, with the matrix product of both libraries."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.rand(2, SGEMM_SIZE, SGEMM_SIZE).to(device)
    probe = RateMeter(parse_device(device), threads)

    def product() -> None:
        _ = a @ b
        if device != "cpu":
            torch.cuda.synchronize(device)

    def step() -> Scores:
        rates = probe.rates()
        return np.array([rates.sgemm, 2 * SGEMM_SIZE**3 / seconds(product) / 1e9, rates.memory])

    return Ready(step)


def measure(
    makers: Mapping[str, Callable[[], Side]],
    rounds: int,
    repeats: int | Mapping[str, int],
    threads: int,
    device: str = "cpu",
) -> Figures:
    """Measure all sides in turns on `device`, `repeats` steps of each in a round, and return their figures.

    A side whose facts have `flops` (and `bytes`) of a step gets a floor. A side that returns as many scores as the
    first side of its `model` gets the difference between them. `disturbance` says why a side's times cannot be compared
    with those of the first side.
    """
    figures: Figures = {"machine": machine(), "threads": threads, "rounds": rounds, "peaks": []}
    turns: dict[str, Turn] = {}
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}
        probe = Side(rates_of_the_machine, threads, device)
        stack.callback(probe.close)
        for name, make in makers.items():
            print(f"getting ready: {name}", file=sys.stderr)
            sides[name] = make()
            stack.callback(sides[name].close)

        def turn(name: str) -> None:
            turns[name] = sides[name].measure(repeats if isinstance(repeats, int) else repeats[name])

        def rates() -> None:
            best = np.array([probe.measure(1).scores for _ in range(PROBES)]).max(axis=0)
            figures["peaks"].append(dict(zip(RATES, best.tolist(), strict=True)))

        print("measuring", file=sys.stderr)
        take_turns([lambda name=name: turn(name) for name in sides], rounds, rates)  # type: ignore[misc]
    figures["load_average_after"] = os.getloadavg()[0]
    figures["sides"] = _figures_of_sides(turns, {name: side.facts for name, side in sides.items()}, figures["peaks"])
    return figures


def _figures_of_sides(
    turns: Mapping[str, Turn], facts: Mapping[str, Figures], peaks: list[dict[str, float]]
) -> Figures:
    """Return the times of each side, its floor, its differences from the first side of its model, and its facts."""
    ours, torch, memory = (max(peak[name] for peak in peaks) for name in RATES)
    best = Rates(max(ours, torch), memory, memory)
    references: dict[str, npt.NDArray[np.float64]] = {}
    base, *_ = turns.values()
    rows: Figures = {}
    for name, turn in turns.items():
        clock, steps = turn.clock, len(turn.clock.runs)
        rows[name] = row = {
            "median": clock.quantile(0.5),
            "best": min(clock.runs),
            "user": clock.user / steps,
            "system": clock.system / steps,
            "peak_rss_mb": turn.peak_rss_mb,
            "seconds": clock.rounds,
            **facts[name],
            "disturbance": disturbance(base.clock, *([] if turn is base else [clock])),
        }
        if row.get("flops") is not None:
            row["floor"] = max(row["flops"] / best.sgemm, row.get("bytes", 0) / best.memory) / 1e9
        reference = references.setdefault(row.get("model", ""), turn.scores)
        if turn.scores.size and turn.scores.shape == reference.shape:
            row["max_abs_log_prob_diff"] = float(np.abs(turn.scores - reference).max())
            row["mean_log_prob_diff"] = float(turn.scores.mean() - reference.mean())
    return rows


def print_table(title: str, figures: Figures, ours: int = 1) -> None:
    """Print the state of the machine and a line for each side.

    `x ours` is the time of a token over that of the fastest of the first `ours` sides; `by round` is the least and the
    largest of the medians of rounds. A side that other programs disturbed has no ratios, nor has another model.
    """
    sides: dict[str, Figures] = figures["sides"]
    base = min(list(sides.values())[:ours], key=lambda side: float(side["median"] / side["tokens"]))
    ranges = [[peak[name] for peak in figures["peaks"]] for name in RATES]
    onnxruntime, torch, memory = ranges
    load = f"{figures['machine']['load_average']:.1f} at the start, {figures['load_average_after']:.1f} at the end"
    print(title)
    print(
        f"  SGEMM {min(onnxruntime):.0f} to {max(onnxruntime):.0f} GFLOP/s by ONNX Runtime, {min(torch):.0f} to "
        f"{max(torch):.0f} by PyTorch; memory {max(memory):.0f} GB/s; {figures['threads']} threads; load {load}"
    )
    rows = [{"side": name, **_cells(side, base)} for name, side in sides.items()]
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    cells = [headings, *([row[heading] for heading in headings] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        line = "  ".join(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print(f"  {first:<{widths[0]}}  {line}".rstrip())
    for name, side in sides.items():
        if side["disturbance"] is not None:
            print(f"  {name} not compared: {side['disturbance']}")
        if side.get("max_abs_log_prob_diff", 0) > ROUNDING:
            print(f"  {name} differs by more than rounding: it computes something else, or a hash was on an edge")


def _cells(side: Figures, base: Figures) -> dict[str, str]:
    """Return a side's cells by heading, empty if it has no such figure."""

    def number(name: str, form: str, factor: float = 1.0) -> str:
        return format(side[name] * factor, form) if side.get(name) is not None else ""

    def ratio(*values: float) -> str:
        return " to ".join(f"{value:,.2f}" for value in values) if side["disturbance"] is None else "-"

    tokens = side["tokens"]
    cells = {
        "best ms": number("best", ",.2f", 1e3),
        "median": number("median", ",.2f", 1e3),
        "user": number("user", ",.2f", 1e3),
        "system": number("system", ",.2f", 1e3),
        "best ms/token": number("best", ",.3f", 1e3 / tokens),
        "tokens/s": f"{tokens / side['median']:,.0f}",
        "x ours, best": "",
        "median ": "",
        "by round": "",
        "x floor": ratio(side["best"] / side["floor"]) if "floor" in side else "",
        "MB": number("peak_rss_mb", ",.0f"),
        "load s": number("load_seconds", ".2f"),
        "compiled in s": number("compile_seconds", ".0f"),
        "graph breaks": number("graph_breaks", ".0f"),
        "largest difference": number("max_abs_log_prob_diff", ".1e"),
        "of the mean": number("mean_log_prob_diff", ".1e"),
    }
    if side.get("model") == base.get("model"):
        share = base["tokens"] / tokens
        medians = [
            np.median(own) / np.median(first) for own, first in zip(side["seconds"], base["seconds"], strict=True)
        ]
        cells["x ours, best"], cells["median "] = (ratio(side[key] / base[key] * share) for key in ("best", "median"))
        cells["by round"] = ratio(min(medians) * share, max(medians) * share)
    return cells


def add_to_json(file: Path | None, name: str, figures: Figures) -> None:
    """Add a case's figures to the file atomically, if there is one."""
    if file is not None:
        cases = json.loads(file.read_text()) if file.exists() else {}
        beside = file.with_name(f".{file.name}.new")
        beside.write_text(json.dumps({**cases, name: figures}, indent=1) + "\n")
        os.replace(beside, file)


def machine() -> Figures:
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


def bundle_of(checkpoint: Path, *options: str) -> Path:
    """Return the bundle beside a checkpoint that the current code makes of it; reuse an existing one."""
    bundle = checkpoint.with_name(f"{checkpoint.name}-{code_digest()}")
    if not bundle.exists():
        command = [sys.executable, "-m", "xlexport", "convert", str(checkpoint), "-o", str(bundle)]
        command += ["--tokenizer", "none", "--segments", "2", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return bundle


def code_digest() -> str:
    """Return a digest of the code that exports; kept bundles are valid while it is unchanged."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("xlexport/**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def _text() -> npt.NDArray[np.int64]:
    content = b"".join(path.read_bytes() for path in sorted(ROOT.glob("x*/**/*.py")))
    return np.frombuffer(content, np.uint8).astype(np.int64)


def text_ids(start: int, count: int) -> npt.NDArray[np.int64]:
    """Return `count` bytes of this repository's code, repeated, from byte `start` on: the frequencies of real text."""
    ids = _text()
    return ids[np.arange(start, start + count) % len(ids)]


class Pieces:
    """Hand out tokens and targets (1, S) of consecutive pieces of one text."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.start = tokens, 0

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the next piece."""
        ids = text_ids(self.start, self.tokens + 1)[None]
        self.start += self.tokens
        return ids[:, :-1].copy(), ids[:, 1:].copy()


def log_probs(logits: npt.NDArray[Any], targets: npt.NDArray[np.int64]) -> Scores:
    """Return the log-probabilities (B,) of targets (B,) by logits (B, V), in nats."""
    greatest = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - greatest).sum(axis=1)
    scores: Scores = logits[np.arange(len(targets)), targets] - greatest[:, 0] - np.log(sums)
    return scores


@dataclass(frozen=True)
class Run:
    """The options of every benchmark with sides; `folder` keeps checkpoints and bundles, `file` figures."""

    rounds: int
    threads: int
    tiny: bool
    folder: Path
    file: Path | None


def benchmark(function: Callable[..., None]) -> click.Command:
    """Return the command of a program: its function gets the options of `Run` as its first argument."""

    @functools.wraps(function)
    def main(rounds: int, threads: int, tiny: bool, folder: Path | None, file: Path | None, **own: Any) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            function(Run(rounds, threads, tiny, folder or Path(scratch), file), **own)

    options = (
        click.option("--rounds", default=3, show_default=True, type=click.IntRange(1)),
        click.option("--threads", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1)),
        click.option("--tiny", is_flag=True, help="A small shape, to try the command out."),
        click.option("--folder", type=PATH, help="Folder that keeps checkpoints and bundles for reuse."),
        click.option("--json", "file", type=PATH, help="File for figures; figures of other tables are kept."),
    )
    described = (sys.modules[function.__module__].__doc__ or "").partition("\n\n")[0]
    return click.command(help=described)(functools.reduce(lambda made, option: option(made), reversed(options), main))
