"""The log of a run: one JSON object a line, and the latest values in words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from xltraining import atomic_output
from xltraining.data.tasks import Task
from xltraining.loop.processes import Processes

__all__ = ["LOG_NAME", "Log"]

LOG_NAME = "log.jsonl"


class Log:
    """The file of a log, and the latest value of each name in it."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.path, self._task = folder / LOG_NAME, task
        self.last: dict[str, Any] = {}

    def open(self, begun: bool) -> IO[str]:
        """Open the file for further lines; a new run starts a new log, even if a killed run left one."""
        return self.path.open("a" if begun else "w", encoding="utf-8")

    def line(self, step: int, bits: float, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the line of a step with its training loss, in bits per unit of the task, and other values."""
        line: dict[str, Any] = {"step": step, f"bits_per_{self._task.unit}": bits}
        if self._task.bytes_per_target is not None:
            line |= {"bits_per_byte": bits / self._task.bytes_per_target, "perplexity": 2 ** min(bits, 1000.0)}
        line |= values
        self.last |= line
        return line

    def restore(self, step: int, processes: Processes) -> None:
        """Drop the lines after a step; every process must call this."""
        if not self.path.exists():
            return
        lines = [line for line in self.path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        earlier = [line for line in lines if json.loads(line)["step"] <= step]
        processes.wait()  # until every process has read it
        if processes.is_first:
            with atomic_output.file(self.path) as temporary:
                temporary.write_text("".join(line + "\n" for line in earlier), encoding="utf-8")
        for line in earlier:
            self.last |= json.loads(line)

    @property
    def train_bits(self) -> float | None:
        """Training loss in bits per unit of the task; None before the first line."""
        return self.last.get(f"bits_per_{self._task.unit}")

    @property
    def valid_bits(self) -> float | None:
        """Bits per unit of the task on held-out text; None before the first evaluation."""
        return self.last.get(f"valid_bits_per_{self._task.unit}")

    def scores_in_words(self) -> str:
        """Return the loss in training and on held-out text, and the share of right answers if the task has one."""
        if self._task.bytes_per_target is not None:  # of the units in the log, those that fit a line of 80 characters
            train, valid = (
                (self.last[f"{prefix}bits_per_byte"], self.last[f"{prefix}perplexity"]) for prefix in ("", "valid_")
            )
            return f"{train[0]:.4f} bits/byte, perplexity {train[1]:,.1f}; held out {valid[0]:.4f}, {valid[1]:,.1f}"
        words = f"{self.train_bits:.4f} bits/{self._task.unit}, held out {self.valid_bits:.4f}"
        accuracy = self.last.get("valid_accuracy")
        return words if accuracy is None else f"{words}, {accuracy:.1%} right"
