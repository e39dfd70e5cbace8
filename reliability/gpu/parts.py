"""Types that the parts of the trial share: settings, reports and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["NEEDS_CUDA", "Outcome", "Part", "PartError", "Record", "Settings", "Status"]

NEEDS_CUDA = "needs CUDA"

Record = Callable[[Mapping[str, Any]], None]  # stores figures (plain JSON), even if the part fails later
Status = Literal["passed", "failed", "skipped"]


class PartError(Exception):
    """A part found an error; the message is one line."""


@dataclass(frozen=True)
class Settings:
    """The settings that every part gets.

    Attributes:
        device: `cpu`, `cuda` or `cuda:N`; with a CPU the trial is only rehearsed.
        tiny: whether to use small sizes, to try the program.
        folder: the folder of checkpoints and bundles.
    """

    device: str
    tiny: bool
    folder: str

    @property
    def on_cuda(self) -> bool:
        """Whether the device is a GPU, so that this is not a rehearsal."""
        return self.device != "cpu"

    @property
    def index(self) -> int:
        """Return the number of the CUDA device."""
        return int(self.device.partition(":")[2] or 0)


@dataclass(frozen=True)
class Part:
    """One part of the trial.

    Attributes:
        seconds: time limit, after which the part is ended.
        run: runs the part; raises `PartError` or any other error if something is wrong.
        needs_cuda: whether the part never counts as passed on a CPU, where its code is only rehearsed.
    """

    name: str
    title: str
    seconds: int
    run: Callable[[Settings, Record], None]
    needs_cuda: bool = False


@dataclass
class Outcome:
    """The outcome of a part.

    Attributes:
        reason: why it failed or was skipped, in one line.
        figures: all measurements, also those before a failure.
    """

    name: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name:10} {self.status}{reason} ({self.seconds:.0f} s)"
