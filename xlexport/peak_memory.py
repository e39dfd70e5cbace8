"""The largest memory that this process had in each phase of long work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PeakMemory"]

PROCESS = Path("/proc/self")


class PeakMemory:
    """Peaks in bytes by phase: on Linux those of the phase itself, elsewhere those from the beginning to its end.

    None where the system counts neither.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int | None] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase; one that comes again keeps its largest peak."""
        with contextlib.suppress(OSError):
            (PROCESS / "clear_refs").write_text("5")  # the peak is now what is used now
        try:
            yield
        finally:
            peak = _peak()
            self.peaks[name] = None if peak is None else max(peak, self.peaks.get(name) or 0)


def _peak() -> int | None:
    """Return the largest resident memory in bytes."""
    with contextlib.suppress(OSError, StopIteration):
        status = (PROCESS / "status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
