"""What the parts of the trial share: their settings, how they report, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["NEEDS_CUDA", "Outcome", "Part", "PartError", "Record", "Settings", "Status"]

NEEDS_CUDA = "needs CUDA"

Record = Callable[[Mapping[str, Any]], None]  # keeps figures (plain JSON), even if the part fails later
Status = Literal["passed", "failed", "skipped"]


class PartError(Exception):
    """A part found something wrong; the message is one line."""


@dataclass(frozen=True)
class Settings:
    """What every part is given.

    Attributes:
        device: `cpu`, `cuda` or `cuda:N`; a CPU rehearses.
        tiny: small sizes, to try the program out.
        folder: where checkpoints and bundles are.
    """

    device: str
    tiny: bool
    folder: str

    @property
    def on_cuda(self) -> bool:
        """Whether this is no rehearsal."""
        return self.device != "cpu"

    @property
    def index(self) -> int:
        """Return the number of the CUDA device."""
        return int(self.device.partition(":")[2] or 0)


@dataclass(frozen=True)
class Part:
    """One part of the trial.

    Attributes:
        seconds: it is ended after so many.
        run: does it; raises `PartError`, or anything else, if something is wrong.
        needs_cuda: on a CPU its code is rehearsed, but shows nothing about a GPU, so it never counts as passed there.
    """

    name: str
    title: str
    seconds: int
    run: Callable[[Settings, Record], None]
    needs_cuda: bool = False


@dataclass
class Outcome:
    """What became of a part.

    Attributes:
        reason: of a failure or of being skipped, one line.
        figures: what was measured, also before a failure.
    """

    name: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name:10} {self.status}{reason} ({self.seconds:.0f} s)"
