"""The ring of a Transformer-XL step whose every shape follows from the inputs' shapes, whatever `offset` is.

A captured CUDA graph replays kernels with the sizes that they were captured with, so one whose sizes depend on a number
would go on with the first one. Here one gather puts positional scores in ring order, at an index that is computed from
`offset`; on a CPU it takes longer than the slices of `RingStep`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlexport.architectures.ring import Ring, reach_mask

__all__ = ["GatheredRing"]


class GatheredRing:
    """What `xlexport.architectures.transformer_xl.step.RingStep` is, for the same arguments."""

    def __init__(
        self,
        tokens: Tensor,
        memory_key: Tensor,
        position_key: Tensor,
        offset: Tensor,
        memory_length: Tensor,
        window: Tensor,
    ) -> None:
        _, S = tokens.shape
        C, near = memory_key.shape[2], position_key.shape[2] - 1
        self.ring = Ring(S, C, offset)
        age = self.ring.newest_first  # (C,) of each slot's row, the newest 0
        steps = torch.arange(S).view(S, 1)
        distance = age.view(1, C) + steps - (S - 1)  # (S, C), negative for tokens that come after the query
        self.mask = reach_mask(distance, steps, memory_length, window)

        # Of flat scores (S · (1 + near)): without the first S, row i has its near distances, oldest first, from
        # S + i · near on (see `RingStep.by_slot`). A far row takes the first of all, which stands in the zero column.
        count = torch.full((1,), near)  # a tensor: comparisons with a SymInt do not convert
        place = S + steps * count + (count - 1 - age.view(1, C))  # (S, C)
        self.place = torch.where(age.view(1, C) < count, place, 0).view(S * C)

    def write(self, memory: Tensor, rows: Tensor) -> Tensor:
        """Put `rows` (B, H, S, d_head) into the ring (B, H, C, d_head) at this step's slots."""
        return self.ring.write(memory, rows, axis=2)

    def by_slot(self, scores: Tensor) -> Tensor:
        """Shift scores of (B, H, S, 1 + near) distances (a zero column first), turn them to ring order, mask them.

        Returns:
            (B, H, S, C)
        """
        B, H, S, _ = scores.shape
        return scores.flatten(2).index_select(2, self.place).view(B, H, S, self.ring.C) + self.mask
