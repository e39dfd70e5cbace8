"""Carried rows: rings with the slots that a step writes and the age of each slot, and windows in order of age."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RingStep", "add_to_window", "reach_mask", "window_mask"]

HIDDEN = -3e4  # added to hidden scores: after the softmax it is exactly zero, and float16 can hold it


class RingStep:
    """One step of S tokens on rings of C slots: row i of the step goes to slot (offset + i) modulo C.

    Attributes:
        slots: (S,) the slots that the step writes.
        newest_first: (C,) how many rows were written after the row of each slot, including this step's rows.
    """

    def __init__(self, S: int, C: int, offset: Tensor) -> None:
        capacity = torch.full((1,), C)  # a tensor: `tensor % SymInt` does not convert
        self.S, self.C, self.offset, self.capacity = S, C, offset, capacity
        self.slots = torch.remainder(offset + torch.arange(S), capacity)
        # Not negative: tract gives the remainder the sign of the dividend.
        self.newest_first = torch.remainder(offset + (C + S - 1) - torch.arange(C), capacity)
        self._index: dict[int, tuple[Tensor, ...]] = {}  # of `write`, by axis: one for all layers

    def by_age(self, memory: Tensor) -> Tensor:
        """Return a ring (…, C) along the last axis in order of age, oldest row first."""
        slots = torch.remainder(self.offset + self.S + torch.arange(self.C), self.capacity)
        return memory.index_select(-1, slots)

    def write(self, memory: Tensor, rows: Tensor, axis: int) -> Tensor:
        """Write S `rows` into the ring of C slots along `axis`; in place if input and output share a buffer.

        Memories that are written along the same axis must have the same sizes before it.
        """
        if axis not in self._index:
            before = [_along(torch.arange(size), place, axis) for place, size in enumerate(memory.shape[:axis])]
            self._index[axis] = (*before, _along(self.slots, axis, axis))
        return torch.index_put(memory, self._index[axis], rows)


def reach_mask(distance: Tensor, steps: Tensor, memory_length: Tensor, window: Tensor) -> Tensor:
    """Return the mask to add to scores: zero for each key that a query sees, minus infinity for all others.

    Args:
        distance: (S, C) of each key from each query; negative for keys after the query.
        steps: S places of the queries in the step, from 0.
        memory_length: (B,) rows that each batch row has before the step.
        window: (1,) the largest number of keys that a query sees, itself included.

    Returns:
        (B, 1, S, C)
    """
    (B,), (S, _) = memory_length.shape, distance.shape
    reach = torch.minimum(memory_length.view(B, 1, 1) + steps.view(1, S, 1), window.view(1, 1, 1) - 1)
    seen = torch.logical_and((distance >= 0).unsqueeze(0), distance.unsqueeze(0) <= reach)  # (B, S, C)
    return torch.where(seen, 0.0, -math.inf).unsqueeze(1)


def add_to_window(window: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Add rows (…, S, d) to a window (…, R, d), oldest first; return all R + S rows, and the newest R of them."""
    joined = torch.cat([window, rows], dim=-2)
    return joined, joined[..., rows.shape[-2] :, :]


def window_mask(S: int, R: int, memory_length: Tensor, window: Tensor | None = None) -> Tensor:
    """Return what `reach_mask` says for S queries on R rows of memory and themselves: (B, 1, S, R + S).

    The sizes are numbers, so distances are a constant. Comparisons are sums and limits of numbers in float32, which
    more accelerators have than comparisons.

    Args:
        memory_length: (B,) rows that each batch row has before the step.
        window: (1,) the largest number of keys that a query sees, itself included; None: any number.
    """
    (B,), steps = memory_length.shape, torch.arange(S, dtype=torch.float32).unsqueeze(1)
    distance = R + steps - torch.arange(R + S, dtype=torch.float32)  # (S, R + S), negative for later rows
    reach = memory_length.to(torch.float32).view(B, 1, 1, 1)
    seen = (reach + (steps - distance + 1)).clamp(0, 1) * (distance + 1).clamp(0, 1)
    if window is not None:
        seen = seen * (window.to(torch.float32).view(1, 1, 1, 1) - distance).clamp(0, 1)
    return (seen - 1) * -HIDDEN


def _along(values: Tensor, axis: int, last: int) -> Tensor:
    """Return `values` (n,) in a shape that broadcasts along `axis` of `last + 1` axes."""
    shape: Sequence[int] = [1] * axis + [-1] + [1] * (last - axis)
    return values.view(shape)
