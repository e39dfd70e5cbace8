"""What a step of each architecture computes and reads, and the memory from which it is measured.

A family whose folder has no `workload.py` gets the defaults of `Workload`: its arithmetic is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Config", "StepSize", "Workload"]

Config = Mapping[str, Any]


@dataclass(frozen=True)
class StepSize:
    """The sizes that decide how much one step computes.

    Attributes:
        capacity: slots of the rings.
        few: the graph is made for a few tokens.
        last_only: the step computes the logits of the last position, not the scores of all targets.
        constants: shapes of the tensors that are computed once for a memory, such as positional keys, by input name.
        targets: (B, S), which decide the cost of a vocabulary in clusters; None: all are in the first cluster.
    """

    batch_size: int
    segment_len: int
    capacity: int
    few: bool = False
    last_only: bool = False
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    targets: npt.NDArray[np.int64] | None = None


class Workload:
    """The work of one step, with defaults that suit a plain recurrent model."""

    def flops(self, config: Config, size: StepSize) -> int | None:
        """Return the multiplications and additions in a step's matrix products; None if they are not counted."""
        return None

    def rows_read(self, config: Config, memory: str, size: StepSize) -> int:
        """Return the least number of ring rows that a step reads; a row that it reads twice counts twice."""
        return size.capacity

    def integer_values(self, config: Config) -> int:
        """Return how many different values an integer memory holds; measurements fill it with that many values."""
        return 1

    def eager_start(self, model: Any, position: int, batch_size: int) -> tuple[Any, bool]:
        """Return a full memory to measure the eager model's step, and whether successive steps may carry it."""
        return model.first_memory(batch_size), True
