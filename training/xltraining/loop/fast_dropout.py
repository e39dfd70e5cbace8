"""Dropout on CPUs whose random numbers cost little.

Torch draws a number of 32 bits for each element, on one thread: 15 % of the time of training a small model. Here
numpy's SFC64 draws 64 bits for four elements. Its seed comes from torch's generator, so a seed or a restored state of
that generator decides all elements. The probability is rounded to a multiple of 2^-16.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["FastDropout", "use_fast_dropout"]

_LEVELS = 1 << 16
_SMALL = 1 << 14  # elements below which making a generator costs more than it saves


class FastDropout(nn.Dropout):
    """Dropout of single elements, as `nn.Dropout`; on other devices and for small tensors it is that."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with elements dropped and the others scaled, or unchanged in evaluation mode."""
        if not self.training or self.p == 0 or input.numel() < _SMALL or input.device.type != "cpu":
            return super().forward(input)
        return _Dropped.apply(input, self.p)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, input: Tensor, p: float) -> Tensor:
        kept, scale = _kept(input, p)
        context.save_for_backward(kept)
        context.scale = scale
        return torch.where(kept, input, 0.0).mul_(scale)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = context.saved_tensors
        return torch.where(kept, gradients[0], 0.0).mul_(context.scale), None


def _kept(input: Tensor, p: float) -> tuple[Tensor, float]:
    """Return which elements are kept, and 1 / the probability of that."""
    dropped = round(p * _LEVELS)
    seed = int(torch.randint(1 << 62, ()).item())
    count = input.numel()
    words = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.uint16)[:count]
    kept = torch.from_numpy(words >= dropped).view(input.shape)
    return kept, _LEVELS / (_LEVELS - dropped)


def use_fast_dropout(model: nn.Module) -> None:
    """Let every `nn.Dropout` of a model draw its numbers fast. A module that the model has in two places stays one."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
