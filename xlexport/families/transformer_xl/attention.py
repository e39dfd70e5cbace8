"""The attention of a Transformer-XL step, in all its forms: over rings, in the order of their slots.

Positional scores depend on the distance. The forms differ in how they bring them into the order of slots:

* `SlicedAttention` shifts and slices them. The sizes of its slices depend on the offset of the ring.
* `GatheredAttention` gathers them at an index. All its shapes follow from the inputs' shapes alone. On a CPU it takes
  longer than slices.
* `WindowAttention` has no rings: memories are windows, oldest row first, so positional scores are in order already. It
  computes with operators that accelerators for phones have, and with constants in place of `offset`.
* `OperatorAttention` is a custom operator, which ONNX graphs hold as one node a layer.
* `BiasedAttention` (encoding `shaw`) has positional keys that end in a bias.
* `PartAttention` (encodings `sinusoidal` and `learned`) has no positional scores: places are in the hidden states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from xlexport.families.ring import RingStep, add_to_window
from xlexport.families.transformer_xl.masks import reach_mask, window_mask

__all__ = [
    "BiasedAttention",
    "BiasedWindowAttention",
    "GatheredAttention",
    "OperatorAttention",
    "PartAttention",
    "SlicedAttention",
    "SlotAttention",
    "StepInputs",
    "WindowAttention",
    "size_of",
]


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step that decide what its queries see, in all layers.

    Attributes:
        tokens: (B, S) int64; only its sizes count.
        memory_key: (B, H, C, d_head), a ring of the first layer, or a window; only its sizes count.
        position_key: (H, d_head, 1 + near), of the first layer; only its sizes count.
        memory_length: (B,) int64, rows that each batch row may see before the step.
        window: (1,) int64, the largest number of keys that a query sees, itself included.
        offset: (1,) int64, rows written to the rings before the step; None: there are no rings.
    """

    tokens: Tensor
    memory_key: Tensor
    position_key: Tensor
    memory_length: Tensor
    window: Tensor
    offset: Tensor | None

    @property
    def ring(self) -> RingStep:
        """The step on the rings."""
        assert self.offset is not None
        return RingStep(self.tokens.shape[1], self.memory_key.shape[2], self.offset)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """B, H, S, C and near."""
        (B, H, C, _), near = self.memory_key.shape, self.position_key.shape[2] - 1
        return B, H, self.tokens.shape[1], C, near


class SlotAttention(ABC):
    """The attention of one step: the parts that all layers share, and `attend` for each layer.

    Attributes:
        ring: the slots that the step writes.
    """

    ring: RingStep

    def add(self, memory: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows (B, H, S, d_head) to a memory; return all rows that queries may see, and the next memory."""
        written = self.ring.write(memory, rows, axis=2)
        return written, written

    @abstractmethod
    def by_slot(self, scores: Tensor) -> Tensor:
        """Shift the scores (B, H, S, 1 + near) of distances, reorder them by slot, and add the mask.

        Column 0 is the zero column.

        Returns:
            (B, H, S, C)
        """

    def position_query(self, query: Tensor, position_bias: Tensor) -> Tensor:
        """Return what is multiplied with positional keys, from the query (B, H, S, d_head) and the layer's v."""
        return query + position_bias

    def attend(
        self,
        qkv: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        memory_key: Tensor,
        memory_value: Tensor,
        position_key: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the keys and values of `qkv` (B, S, 3·H·d_head) into the rings, and compute attention to all slots.

        Args:
            content_bias, position_bias: (H, 1, d_head), u and v.
            memory_key, memory_value: (B, H, C, d_head).
            position_key: (H, d_head, 1 + near), or as many rows as `position_query` has columns.

        Returns:
            attended (B, S, H·d_head), and the two rings with this step's rows.
        """
        (B, S, _), (H, _, d_head) = qkv.shape, content_bias.shape
        query, key, value = (
            part.view(B, S, H, d_head).transpose(1, 2)  # (B, H, S, d_head)
            for part in qkv.chunk(3, dim=-1)
        )
        keys, memory_key = self.add(memory_key, key)
        values, memory_value = self.add(memory_value, value)
        content = torch.matmul(query + content_bias, keys.transpose(2, 3))  # (B, H, S, C)
        query = self.position_query(query, position_bias)
        position = self.by_slot(torch.matmul(query, position_key))  # (B, H, S, C)
        weights = torch.softmax(content + position, dim=-1)
        attended = torch.matmul(weights, values).transpose(1, 2).reshape(B, S, H * d_head)
        return attended, memory_key, memory_value


class SlicedAttention(SlotAttention):
    """Attention in which slices bring positional scores into the order of slots, for steps of any offset.

    By age, the newest `near` rows have positional keys. The older rows are far: their positional score is zero.
    """

    def __init__(self, inputs: StepInputs) -> None:
        B, H, S, C, near = inputs.sizes
        far = C - near
        self.near = near
        self.ring = inputs.ring
        steps = torch.arange(S)
        # Distance of each row, by age, from each query; negative for tokens after the query.
        distance = (C - S) + steps.view(S, 1) - torch.arange(C).view(1, C)  # (S, C)
        mask = reach_mask(distance, steps, inputs.memory_length, inputs.window)
        self.near_mask = mask[..., far:]  # (B, 1, S, near)

        # Slots below `cut` hold the newest rows, the others the oldest.
        cut = torch.remainder(self.ring.offset + S, self.ring.capacity)
        newest_near = torch.minimum(cut, torch.full((1,), near))
        self.newest_near = size_of(newest_near, near)
        newest_far = size_of(cut - newest_near, far)
        # One tensor for all layers, because the score of a far row has no positional part.
        far_mask = mask[..., :far].expand(B, H, S, far)
        self.newest_far = far_mask.narrow(3, far - newest_far, newest_far)
        self.oldest_far = far_mask.narrow(3, 0, far - newest_far)

    def by_slot(self, scores: Tensor) -> Tensor:
        """Shift the scores (B, H, S, 1 + near) of distances, add the mask, and reorder them by slot.

        This is the shift of Appendix B without padding: dropping the first S flat scores moves row i left by S - i.
        Then column j of row i has the distance near - S + i - j. The zero column ends up at places that the mask hides.

        Returns:
            (B, H, S, C)
        """
        B, H, S, _ = scores.shape
        by_age = scores.flatten(2)[..., S:].view(B, H, S, self.near) + self.near_mask  # oldest first
        newest = by_age.narrow(3, self.near - self.newest_near, self.newest_near)
        oldest = by_age.narrow(3, 0, self.near - self.newest_near)
        return torch.cat([self.newest_far, newest, self.oldest_far, oldest], dim=3)


class GatheredAttention(SlotAttention):
    """Attention in which one gather, at an index computed from `offset`, puts positional scores in ring order."""

    def __init__(self, inputs: StepInputs) -> None:
        _, _, S, C, near = inputs.sizes
        self.ring = inputs.ring
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
        """Shift the scores of distances, reorder them by slot, and add the mask: see `SlotAttention.by_slot`."""
        B, H, S, _ = scores.shape
        return scores.flatten(2).index_select(2, self.place).view(B, H, S, self.ring.C) + self.mask


class WindowAttention(SlotAttention):
    """Attention over windows, whose rows are in order of age: the newest row of the memory is the last.

    The longest step of a bundle has positional keys for all of its distances; shorter steps use the nearest.
    """

    def __init__(self, inputs: StepInputs) -> None:
        _, _, S, R, _ = inputs.sizes
        self.keys = R + S
        self.mask = window_mask(S, R, inputs.memory_length, inputs.window)

    def add(self, memory: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows (B, H, S, d_head) to a window (B, H, R, d_head): all R + S rows, and the newest R of them."""
        return add_to_window(memory, rows)

    def by_slot(self, scores: Tensor) -> Tensor:
        """Shift the scores (B, H, S, 1 + near) of distances, and add the mask: (B, H, S, R + S).

        See `SlicedAttention.by_slot`. The first column may be any: it ends up at places that the mask hides.
        """
        B, H, S, _ = scores.shape
        shifted = scores[..., -1 - self.keys :].flatten(2)[..., S:]
        return shifted.view(B, H, S, self.keys) + self.mask


class OperatorAttention:
    """Attention as one custom operator a layer."""

    def __init__(self, inputs: StepInputs) -> None:
        sizes = torch.cat([torch.full((1,), size) for size in inputs.sizes[1:]])  # (4,): H, S, C, near
        self.shared = inputs.ring.offset, inputs.memory_length, inputs.window, sizes

    def attend(self, *layer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute `SlotAttention.attend`."""
        from xlexport.ops import relative_attention

        return relative_attention(*layer, *self.shared)


class _Biased:
    """Attention whose positional keys end in a bias."""

    def position_query(self, query: Tensor, position_bias: Tensor) -> Tensor:
        """Return the query (B, H, S, d_head) with the factor of the biases (H, 1, 1) as its last column."""
        B, H, S, _ = query.shape
        return torch.cat([query, position_bias.expand(B, H, S, 1)], dim=3)


class BiasedAttention(_Biased, GatheredAttention):
    """Attention over rings whose positional keys end in a bias."""


class BiasedWindowAttention(_Biased, WindowAttention):
    """Attention over windows whose positional keys end in a bias."""


class PartAttention:
    """Attention to the earlier tokens of a part of a document, by content alone; without `offset` over windows."""

    def __init__(self, tokens: Tensor, memory_key: Tensor, offset: Tensor | None, memory_length: Tensor) -> None:
        S, C = tokens.shape[1], memory_key.shape[2]
        self.ring: RingStep | None = None
        if offset is None:
            self.mask = window_mask(S, C, memory_length)
            return
        self.ring = RingStep(S, C, offset)
        steps = torch.arange(S).view(S, 1)
        distance = self.ring.newest_first.view(1, C) + steps - (S - 1)  # (S, C), negative for tokens after the query
        self.mask = reach_mask(distance, steps, memory_length, torch.full((1,), C + 1))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, memory_key: Tensor, memory_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write key and value (B, H, S, d_head) into the memories (B, H, C, d_head), and compute attention to all rows.

        Returns:
            attended (B, S, H·d_head), and the two memories with this step's rows.
        """
        keys, memory_key = self._add(memory_key, key)
        values, memory_value = self._add(memory_value, value)
        weights = torch.softmax(torch.matmul(query, keys.transpose(2, 3)) + self.mask, dim=-1)
        return torch.matmul(weights, values).transpose(1, 2).flatten(2), memory_key, memory_value

    def _add(self, memory: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.ring is None:
            return add_to_window(memory, rows)
        written = self.ring.write(memory, rows, axis=2)
        return written, written


def size_of(count: Tensor, largest: int | None = None, smallest: int = 0) -> int:
    """Return the number in a tensor as the size of an axis, from `smallest` to `largest`.

    Under `torch.jit.trace` it stays a tensor, so that the trace records it; a Python number would be fixed.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # missing in torch's `__all__`
        return cast(int, count.view(()))
    size = cast(int, count.item())
    torch._check(size >= smallest)
    if largest is not None:
        torch._check(size <= largest)
    return size
