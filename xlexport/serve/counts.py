"""The counters of one scheduler, which its thread writes and others read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass
class Counts:
    """Numbers since the scheduler started.

    Attributes:
        jobs: jobs submitted; finished, failed, cancelled: jobs that ended, by how they ended.
        read: tokens read, without padding; drawn: tokens drawn.
        steps: steps run; row_steps: rows of all steps together; busy_row_steps: those of them with a document.
    """

    jobs: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    read: int = 0
    drawn: int = 0
    steps: int = 0
    row_steps: int = 0
    busy_row_steps: int = 0

    def step(self, rows: int, busy: int) -> None:
        """Count a step."""
        self.steps += 1
        self.row_steps += rows
        self.busy_row_steps += busy
