"""The one shape of callbacks that are called while something long goes on."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "no_progress"]

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much in all."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""
