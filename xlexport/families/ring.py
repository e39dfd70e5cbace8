"""Carried rows: rings with the slots that a step writes and the age of each slot, and windows in order of age."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RingStep", "add_to_window"]


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


def add_to_window(window: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Add rows (…, S, d) to a window (…, R, d), oldest first; return all R + S rows, and the newest R of them."""
    joined = torch.cat([window, rows], dim=-2)
    return joined, joined[..., rows.shape[-2] :, :]


def _along(values: Tensor, axis: int, last: int) -> Tensor:
    """Return `values` (n,) in a shape that broadcasts along `axis` of `last + 1` axes."""
    shape: Sequence[int] = [1] * axis + [-1] + [1] * (last - axis)
    return values.view(shape)
