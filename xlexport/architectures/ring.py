"""Rings of carried rows: where a step writes, and how old each slot is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Ring"]


class Ring:
    """One step of S tokens on rings of C slots: rows go to slot `offset` modulo C and those behind it.

    Attributes:
        slots: (S,) where the step's rows go.
        newest_first: (C,) how many rows were written after that of each slot, this step's included.
    """

    def __init__(self, S: int, C: int, offset: Tensor) -> None:
        capacity = torch.full((1,), C)  # a tensor: `tensor % SymInt` does not convert
        self.S, self.C, self.offset, self.capacity = S, C, offset, capacity
        self.slots = torch.remainder(offset + torch.arange(S), capacity)
        self.newest_first = torch.remainder(offset + (S - 1) - torch.arange(C), capacity)
        self._index: dict[int, tuple[Tensor, ...]] = {}  # of `write`, by axis: one for all layers

    def slots_of(self, ages: Tensor) -> Tensor:
        """The slots of rows that are counted from the oldest, 0, to the newest, C - 1."""
        return torch.remainder(self.offset + self.S + ages, self.capacity)

    def by_age(self, memory: Tensor) -> Tensor:
        """A ring along the last axis, (…, C), oldest row first."""
        return memory.index_select(-1, self.slots_of(torch.arange(self.C)))

    def write(self, memory: Tensor, rows: Tensor, axis: int) -> Tensor:
        """Put `rows`, S along `axis`, into the ring of C slots along it; in place if both are one buffer.

        Memories that are written along the same axis have the same sizes before it.
        """
        if axis not in self._index:
            before = [_along(torch.arange(size), place, axis) for place, size in enumerate(memory.shape[:axis])]
            self._index[axis] = (*before, _along(self.slots, axis, axis))
        return torch.index_put(memory, self._index[axis], rows)


def _along(values: Tensor, axis: int, last: int) -> Tensor:
    """(n,) shaped to broadcast along `axis` of `last + 1` axes."""
    shape: Sequence[int] = [1] * axis + [-1] + [1] * (last - axis)
    return values.view(shape)
