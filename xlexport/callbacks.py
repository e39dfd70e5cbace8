"""The common signatures of callbacks that show the progress of long work."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "Tell", "no_progress", "silent"]

Progress = Callable[[int, int], None]
"""Called with the amount done and the total amount."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


Tell = Callable[[str], None]
"""Called with a line for people."""


def silent(line: str) -> None:
    """Show nothing."""
