"""The common signatures of callbacks that show the progress of long work, or measure its phases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

__all__ = ["Phase", "Progress", "no_phase", "no_progress"]

Progress = Callable[[int, int], None]
"""Called with the amount done and the total amount."""


Phase = Callable[[str], contextlib.AbstractContextManager[None]]
"""Called with the name of a phase; returns the context of its work."""


def no_phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Measure nothing."""
    return contextlib.nullcontext()


def no_progress(done: int, total: int) -> None:
    """Show nothing."""
