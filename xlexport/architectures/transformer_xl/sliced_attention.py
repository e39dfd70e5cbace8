"""The attention of a Transformer-XL step in which slices bring positional scores into the order of slots."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from xlexport.architectures.ring import Ring, reach_mask
from xlexport.architectures.transformer_xl.slot_attention import SlotAttention, StepInputs

__all__ = ["SlicedAttention", "size_of"]


class SlicedAttention(SlotAttention):
    """The attention for steps of any offset.

    By age, the newest `near` rows have positional keys. The older rows are far: their positional score is zero.
    """

    def __init__(self, inputs: StepInputs) -> None:
        B, H, S, C, near = inputs.sizes
        far = C - near
        self.near = near
        self.ring = Ring(S, C, inputs.offset)
        steps = torch.arange(S)
        # Distance of each row, by age, from each query; negative for tokens after the query.
        distance = (C - S) + steps.view(S, 1) - torch.arange(C).view(1, C)  # (S, C)
        mask = reach_mask(distance, steps, inputs.memory_length, inputs.window)
        self.near_mask = mask[..., far:]  # (B, 1, S, near)

        # Slots below `cut` hold the newest rows, the others the oldest.
        cut = torch.remainder(inputs.offset + S, self.ring.capacity)
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
