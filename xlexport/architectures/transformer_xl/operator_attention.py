"""The attention of a Transformer-XL step as custom operators, which ONNX graphs hold as one node a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from xlexport.architectures.transformer_xl.slot_attention import StepInputs
from xlexport.ops import relative_attention

__all__ = ["OperatorAttention"]


class OperatorAttention:
    """A replacement for `SlicedAttention` with the same arguments."""

    def __init__(self, inputs: StepInputs) -> None:
        sizes = torch.cat([torch.full((1,), size) for size in inputs.sizes[1:]])  # (4,): H, S, C, near
        self.shared = inputs.offset, inputs.memory_length, inputs.window, sizes

    def attend(self, *layer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute `SlotAttention.attend`."""
        return relative_attention(*layer, *self.shared)
