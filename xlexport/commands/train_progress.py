"""What `train` shows while it runs: lines of progress, and curves for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xlexport.extras import require
from xlexport.progress_bar import Clock, StatusLine, duration

__all__ = ["curve_writers", "training_progress"]

Line = Mapping[str, Any]


def training_progress(
    steps: int, clock: Clock = time.monotonic
) -> tuple[Callable[[int], None], Callable[[Line], None]]:
    """Return a callback for each update and one for each line of the log.

    They print lines with the time that is left where no bar can be drawn, and nothing on a terminal, which has a bar.
    Of several processes only the first one prints.
    """
    line, began = StatusLine(clock=clock), clock()
    first: list[int] = []
    latest: dict[str, str] = {}

    def on_step(step: int) -> None:
        if not first:
            first.append(step - 1)
        line.draw(lambda: _progress_text(step, steps, first[0], clock() - began, latest.get("bits", "")))

    def on_line(values: Line) -> None:
        named = [name for name in ("bits_per_byte", *values) if name in values and name.startswith("bits_per_")]
        latest["bits"] = f", {values[named[0]]:.3f} bits/{named[0].removeprefix('bits_per_')}" if named else ""

    if line.redraws or os.environ.get("RANK", "0") != "0":
        return lambda step: None, on_line
    return on_step, on_line


def _progress_text(step: int, steps: int, first: int, seconds: float, bits: str) -> str:
    left = seconds / (step - first) * (steps - step)
    return f"training: {step:,} of {steps:,} ({step / max(steps, 1):.0%}){bits}, {duration(left)} left"


@contextlib.contextmanager
def curve_writers(folder: Path | None) -> Iterator[Callable[[Line], None]]:
    """Yield a callback that writes the numbers of a line of the log for TensorBoard; without a folder it does nothing.

    Raises:
        MissingDependencyError: the package tensorboard is not installed.
    """
    if folder is None or os.environ.get("RANK", "0") != "0":
        yield lambda line: None
        return
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with contextlib.closing(SummaryWriter(str(folder))) as writer:

        def write(line: Line) -> None:
            for name, value in line.items():
                if name != "step":
                    writer.add_scalar(name, value, line["step"])

        yield write
