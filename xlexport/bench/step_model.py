"""Measure the time of a step model's calls: single steps, as a control loop makes them, and whole segments."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from xlexport.families.step_model.inputs import input_specs
from xlruntime.step_model import StepModel

__all__ = ["StepTimes", "time_steps"]

WARM_UP = 100  # calls before those that count
CALLS = 5000


@dataclass(frozen=True)
class StepTimes:
    """Times of one row or more.

    Attributes:
        rows, segment_len: rows, and steps of a segment.
        median, most, longest: of calls of one step, in microseconds; `most` is the time that 99.9 % stay below.
        segment_steps_per_second: in calls of `segment_len` steps, all rows together.
        memory: bytes that the stream carries.
    """

    rows: int
    segment_len: int
    median: float
    most: float
    longest: float
    segment_steps_per_second: float
    memory: int

    def table(self) -> list[tuple[str, str]]:
        """Return the rows of a table for people."""
        return [
            ("one step", f"median {self.median:,.1f} µs, 99.9 % {self.most:,.1f} µs, longest {self.longest:,.1f} µs"),
            (f"segments of {self.segment_len}", f"{self.segment_steps_per_second:,.0f} steps per second"),
            ("rows", str(self.rows)),
            ("memory of the stream", f"{self.memory:,} bytes"),
        ]


def time_steps(model: StepModel, rows: int = 1) -> StepTimes:
    """Run random inputs step by step, and in segments."""
    import torch

    length, random = model.bundle.settings.segment_len, torch.Generator().manual_seed(0)
    specs = input_specs(model.bundle.config["inputs"])
    series = {name: spec.random(rows, length, random).numpy() for name, spec in specs.items()}
    single = {name: array[:, :1] for name, array in series.items()}
    stream, times = model.stream(rows), []
    for _ in range(WARM_UP + CALLS):
        begin = time.perf_counter()
        stream.run(single)
        times.append(time.perf_counter() - begin)
        if stream.position[0] == model.bundle.evaluation.max_positions:
            stream.reset()
    micros = 1e6 * np.array(times[WARM_UP:])
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < 1:
        stream.reset()
        stream.run(series)
        count += rows * length
    rate = count / (time.perf_counter() - begin)
    median, most = np.quantile(micros, (0.5, 0.999)).tolist()
    return StepTimes(rows, length, median, most, float(micros.max()), rate, stream.memory.nbytes)
