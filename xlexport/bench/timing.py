"""Time and memory that this process uses, and whether other programs disturbed a measurement."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

__all__ = ["PRECISION", "Clock", "compared", "disturbance", "peak_rss_mb", "seconds", "waited"]

PAUSE = 0.05  # seconds; threads of PyTorch wait for work in a loop, for some milliseconds after their last
PRECISION = 0.03  # threads that run before all other programs wait for less than 0.01 of the time


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
