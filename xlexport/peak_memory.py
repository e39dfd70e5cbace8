"""The largest memory of this process in each phase of long work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

__all__ = ["PEAKS", "phase"]

PEAKS: ContextVar[dict[str, int | None] | None] = ContextVar("PEAKS", default=None)
"""Peaks in bytes by phase: on Linux of the phase alone, elsewhere of all before its end, or None. None: not wanted."""


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Measure a phase, if `PEAKS` is a dict; one that comes again keeps its largest peak."""
    if (peaks := PEAKS.get()) is None:
        yield
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the largest memory is now the present one
    try:
        yield
    finally:
        peak = _peak()
        peaks[name] = None if peak is None else max(peak, peaks.get(name) or 0)


def _peak() -> int | None:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None
