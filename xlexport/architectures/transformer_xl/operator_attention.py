"""The attention of a Transformer-XL step as custom operators, which ONNX graphs hold as one node a layer."""

from __future__ import annotations

from torch import Tensor

from xlexport.ops import relative_attention, relative_attention_plan

__all__ = ["OperatorAttention"]


class OperatorAttention:
    """A replacement for `SlicedAttention` with the same arguments."""

    def __init__(
        self,
        tokens: Tensor,
        memory_key: Tensor,
        position_key: Tensor,
        offset: Tensor,
        memory_length: Tensor,
        window: Tensor,
    ) -> None:
        counters = offset, memory_length, window
        self.shared = (*counters, *relative_attention_plan(tokens, memory_key, position_key, *counters))

    def attend(self, *layer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute `SlotAttention.attend`."""
        return relative_attention(*layer, *self.shared)
