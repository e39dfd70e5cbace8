"""The attention of a Transformer-XL step in which all shapes follow from the inputs' shapes alone, not from `offset`.

A captured CUDA graph replays kernels with the sizes recorded at capture. A kernel whose sizes depend on a value would
keep the first value's sizes. So here one gather, at an index computed from `offset`, puts positional scores in ring
order. On a CPU it takes longer than the slices of `SlicedAttention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlexport.architectures.ring import Ring, reach_mask
from xlexport.architectures.transformer_xl.slot_attention import SlotAttention, StepInputs

__all__ = ["GatheredAttention"]


class GatheredAttention(SlotAttention):
    """A replacement for `SlicedAttention` with the same arguments."""

    def __init__(self, inputs: StepInputs) -> None:
        _, _, S, C, near = inputs.sizes
        self.ring = Ring(S, C, inputs.offset)
        age = self.ring.newest_first  # (C,) age of each slot's row; the newest is 0
        steps = torch.arange(S).view(S, 1)
        distance = age.view(1, C) + steps - (S - 1)  # (S, C), negative for tokens after the query
        self.mask = reach_mask(distance, steps, inputs.memory_length, inputs.window)

        # Index into the flat scores (S · (1 + near)): the near distances of row i, oldest first, begin at
        # S + i · near (see `SlicedAttention.by_slot`). Far rows take entry 0, which is in the zero column.
        count = torch.full((1,), near)  # a tensor: comparisons with a SymInt do not convert
        place = S + steps * count + (count - 1 - age.view(1, C))  # (S, C)
        self.place = torch.where(age.view(1, C) < count, place, 0).view(S * C)

    def by_slot(self, scores: Tensor) -> Tensor:
        """Shift the scores (B, H, S, 1 + near) of distances, reorder them by slot, and add the mask.

        Column 0 is the zero column.

        Returns:
            (B, H, S, C)
        """
        B, H, S, _ = scores.shape
        return scores.flatten(2).index_select(2, self.place).view(B, H, S, self.ring.C) + self.mask
