"""Time and memory that this process uses."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Clock", "peak_rss_mb", "seconds"]


@dataclass
class Clock:
    """Wall time of every run, in rounds, and processor time of all runs, in seconds."""

    rounds: list[list[float]] = field(default_factory=list)
    user: float = 0.0
    system: float = 0.0

    def round(self, run: Callable[[], object], repeats: int) -> None:
        """Measure one round of `repeats` runs."""
        before = resource.getrusage(resource.RUSAGE_SELF)
        self.rounds.append([seconds(run) for _ in range(repeats)])
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.user += after.ru_utime - before.ru_utime
        self.system += after.ru_stime - before.ru_stime

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


def seconds(run: Callable[[], object]) -> float:
    """Return the wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes, but bytes on macOS
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
