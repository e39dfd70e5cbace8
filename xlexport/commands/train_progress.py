"""What `train` shows while it runs: its progress, and curves for TensorBoard."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xlexport.extras import require
from xlexport.progress_bar import progress_bar

__all__ = ["curve_writers", "training_progress"]

Line = Mapping[str, Any]


@contextlib.contextmanager
def training_progress(steps: int) -> Iterator[tuple[Callable[[int], None], Callable[[Line], None]]]:
    """Yield a callback for each update and one for each line of the log; only the first of several processes shows."""
    with progress_bar("training", visible=_is_first()) as progress:
        done = 0

        def on_step(step: int) -> None:
            nonlocal done
            if not done:
                progress.skip(step - 1)
            done = step
            progress(step, steps)

        def on_line(line: Line) -> None:
            names = [name for name in ("bits_per_byte", *line) if name in line and name.startswith("bits_per_")]
            if names:
                bits = f"{line[names[0]]:.3f} bits/{names[0].removeprefix('bits_per_')}"
                progress.note(f"{bits}, {line['tokens_per_second']:,.0f} tokens/s")

        yield on_step, on_line


@contextlib.contextmanager
def curve_writers(folder: Path | None) -> Iterator[Callable[[Line], None]]:
    """Yield a callback that writes the numbers of a line of the log for TensorBoard; without a folder it does nothing.

    Raises:
        MissingDependencyError: the package tensorboard is not installed.
    """
    if folder is None or not _is_first():
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


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
