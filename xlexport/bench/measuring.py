"""Measure sides in turns, judge whether other programs disturbed them, and measure what the machine can do.

A side's `Clock` holds the times of its rounds. `take_turns` lets each side have a round and then measures the rates of
the machine, again and again, so that a slow phase meets all sides.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xlruntime.devices import Device
from xlruntime.providers import device_value, open_session

__all__ = [
    "PRECISION",
    "SGEMM_SIZE",
    "Clock",
    "RateMeter",
    "Rates",
    "compared",
    "disturbance",
    "peak_rss_mb",
    "seconds",
    "take_turns",
    "waited",
]

PAUSE = 0.05  # seconds; threads of PyTorch wait for work in a loop, for some milliseconds after their last
PRECISION = 0.03  # threads that run before all other programs wait for less than 0.01 of the time
SGEMM_SIZE = 2048
COPY_BYTES = 128 << 20  # of each array, larger than caches


@dataclass
class Clock:
    """Wall time of every run, in rounds, and processor and waiting time of all runs, in seconds.

    Attributes:
        elsewhere: another process does the work, so it does not matter whether this one waits.
    """

    rounds: list[list[float]] = field(default_factory=list)
    user: float = 0.0
    system: float = 0.0
    waited: float = 0.0
    elsewhere: bool = False

    def round(self, run: Callable[[], object], repeats: int) -> None:
        """Measure one round of `repeats` runs, after a pause in which the threads of another side come to rest."""
        time.sleep(PAUSE)
        waited_before, before = waited(), resource.getrusage(resource.RUSAGE_SELF)
        self.rounds.append([seconds(run) for _ in range(repeats)])
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.user += after.ru_utime - before.ru_utime
        self.system += after.ru_stime - before.ru_stime
        self.waited += 0.0 if self.elsewhere else max(0.0, waited() - waited_before)

    @property
    def runs(self) -> list[float]:
        """The times of all rounds in one list."""
        return [run for part in self.rounds for run in part]

    def quantile(self, share: float) -> float:
        """Return the quantile over all runs."""
        return float(np.quantile(self.runs, share))

    @property
    def medians(self) -> list[float]:
        """The median of each round."""
        return [float(np.median(part)) for part in self.rounds]


def take_turns(
    turns: Sequence[Callable[[], object]],
    rounds: int,
    rates: Callable[[], object] = lambda: None,
    patience: float = math.inf,
) -> None:
    """Call each function once in each round, and `rates` before the first round and after each.

    Args:
        patience: seconds after which no further round begins.
    """
    end = time.perf_counter() + patience
    rates()
    for _ in range(rounds):
        for turn in turns:
            turn()
        rates()
        if time.perf_counter() > end:
            return


def disturbance(*clocks: Clock, precision: float = PRECISION) -> str | None:
    """Return why times of these clocks cannot be compared, or None if they can.

    Args:
        clocks: sides that took turns, with as many rounds each; or one side, whose rounds are compared.
        precision: the largest share of time that threads may have waited, and the largest uncertainty of a median: the
            spread of the middle half of rounds, over the root of their number.
    """
    waiting = max(clock.waited / sum(clock.runs) for clock in clocks)
    if waiting > precision:
        return f"threads waited {waiting:.2g} s for a core in each second; stop other programs, or use fewer threads"
    first, *others = (np.array(clock.medians) for clock in clocks)
    # A round that is slow for all sides has the same ratio.
    for rounds in [other / first for other in others] or [first]:
        lower, middle, upper = np.quantile(rounds, (0.25, 0.5, 0.75))
        if (spread := (upper - lower) / middle) > precision * math.sqrt(len(rounds)):
            return f"rounds disagree by {spread:.0%}; stop other programs, or measure more rounds"
    return None


def compared(ratio: str, *clocks: Clock) -> str:
    """Return the ratio of these clocks' times, or why there is none; see `disturbance`."""
    reason = disturbance(*clocks)
    return ratio if reason is None else f"not compared: {reason}"


def waited(proc: Path = Path("/proc")) -> float:
    """Return the seconds so far in which threads of this process could run, but had no core.

    Linux counts them for each thread, and those in which a hypervisor took a core. Elsewhere all seconds count in which
    the process did not run, so only differences between moments of a computation mean anything.
    """
    delays = []
    for file in (proc / "self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread ended
            delays.append(int(file.read_text().split()[1]))
    if not any(delays):  # also if this Linux does not count
        return time.perf_counter() - time.process_time()
    cores, *_ = (proc / "stat").read_text().splitlines()
    stolen = int(cores.split()[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return sum(delays) / 1e9 + stolen


def seconds(run: Callable[[], object]) -> float:
    """Return the wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes, but bytes on macOS
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


@dataclass(frozen=True)
class Rates:
    """The best measured rates, in 10^9 per second.

    Attributes:
        sgemm: multiplications and additions of a float32 matrix product.
        copy: bytes read and written while copying a large array.
        read: bytes read while summing a large array.
    """

    sgemm: float
    copy: float
    read: float

    @staticmethod
    def best(rates: Sequence[Rates]) -> Rates:
        """Return the best of each rate."""
        return Rates(*(max(getattr(rate, name) for rate in rates) for name in ("sgemm", "copy", "read")))

    @property
    def memory(self) -> float:
        """The faster of the two rates of memory, so that the floor of a step is never too high."""
        return max(self.copy, self.read)


class RateMeter:
    """Measures rates with the same runtime, device and threads as the steps."""

    def __init__(self, device: Device, threads: int | None) -> None:
        square, count = (SGEMM_SIZE, SGEMM_SIZE), COPY_BYTES // 4
        factor, row = np.random.default_rng(0).random(square, np.float32), np.ones(count, np.float32)
        self._sgemm = _operator("MatMul", [factor, factor], square, device, threads)
        self._copy = _operator("Neg", [row], (count,), device, threads)  # a plain copy would get only one thread
        self._read = _operator("ReduceSum", [row], (1,), device, threads)
        self.rates()  # the first run allocates

    def rates(self, times: int = 1) -> Rates:
        """Measure each rate `times` times and return the best."""

        def best(run: Callable[[], object]) -> float:
            return min(seconds(run) for _ in range(times))

        return Rates(
            sgemm=2 * SGEMM_SIZE**3 / best(self._sgemm) / 1e9,
            copy=2 * COPY_BYTES / best(self._copy) / 1e9,
            read=COPY_BYTES / best(self._read) / 1e9,
        )


def _operator(
    name: str, arrays: Sequence[Any], shape: tuple[int, ...], device: Device, threads: int | None
) -> Callable[[], object]:
    """Return a function that runs one float32 operator, whose inputs and output stay on the device."""
    import onnx_ir as ir

    inputs = [ir.val(f"x{index}", ir.DataType.FLOAT, array.shape) for index, array in enumerate(arrays)]
    result = ir.val("y", ir.DataType.FLOAT, shape)
    node = ir.Node("", name, inputs, outputs=[result])
    graph = ir.Graph(inputs, [result], nodes=[node], opset_imports={"": 20}, name=name)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "operator.onnx")
        ir.save(ir.Model(graph, ir_version=10), path)
        session = open_session(path, device, threads)
    binding = session.io_binding()
    # Bound values, and on the CPU their arrays, must stay alive until the run ends.
    tensors = [*arrays, np.zeros(shape, np.float32)]
    values = [device_value(array, device) for array in tensors]
    for entry, bound in zip(inputs, values, strict=False):
        binding.bind_ortvalue_input(entry.name, bound)
    binding.bind_ortvalue_output("y", values[-1])

    def run() -> object:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return tensors, values

    return run
