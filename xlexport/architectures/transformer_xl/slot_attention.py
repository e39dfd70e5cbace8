"""Attention over rings in the order of slots, in plain PyTorch; subclasses bring positional scores into that order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from xlexport.architectures.ring import Ring

__all__ = ["SlotAttention", "StepInputs"]


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step that decide what its queries see, in all layers.

    Attributes:
        tokens: (B, S) int64; only its sizes count.
        memory_key: (B, H, C, d_head), a ring of the first layer; only its sizes count.
        position_key: (H, d_head, 1 + near), of the first layer; only its sizes count.
        offset: (1,) int64, rows written to the rings before the step.
        memory_length: (B,) int64, rows that each batch row may see before the step.
        window: (1,) int64, the largest number of keys that a query sees, itself included.
    """

    tokens: Tensor
    memory_key: Tensor
    position_key: Tensor
    offset: Tensor
    memory_length: Tensor
    window: Tensor

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

    ring: Ring

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
        memory_key = self.ring.write(memory_key, key, axis=2)
        memory_value = self.ring.write(memory_value, value, axis=2)
        content = torch.matmul(query + content_bias, memory_key.transpose(2, 3))  # (B, H, S, C)
        query = self.position_query(query, position_bias)
        position = self.by_slot(torch.matmul(query, position_key))  # (B, H, S, C)
        weights = torch.softmax(content + position, dim=-1)
        attended = torch.matmul(weights, memory_value).transpose(1, 2).reshape(B, S, H * d_head)
        return attended, memory_key, memory_value
