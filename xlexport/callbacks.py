"""The common signature of callbacks that show the progress of long work."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "no_progress"]

Progress = Callable[[int, int], None]
"""Called with the amount done and the total amount."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""
