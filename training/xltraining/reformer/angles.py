"""Angles of positions, exact for long documents without floats of 64 bits, which GPUs in browsers lack."""

from __future__ import annotations

import functools
import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor, nn

__all__ = ["Angles"]

BASE, DIGITS = 256, 6  # digits of a position; positions are below 2^48
COARSE = 2**13  # units of a turn; six digits times multiples of one, and their sum, are exact in float32
FINE = 2**60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


class Angles(nn.Module):
    """Angles of positions, with wavelengths from 2π to 10000·2π.

    A product in float32 would be wrong by up to 0.03 at a million radians. So the digits of a position, to base 256,
    are multiplied separately. The turns of each digit's place are the sum of a coarse part, whose products and sums are
    exact, and of a fine part below 2^-13, whose errors are below 2^-27 turns. Whole turns are dropped in between.

    Attributes:
        turns: (2, DIGITS, width/2) int64, the turns that a one at each place is worth: coarse parts in units of
            1 / COARSE, and fine parts in units of 1 / FINE. Integers stay exact if the model's floats become shorter.
    """

    turns: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        # The sizes of a model on the device `meta` may be a stranger's, so they cost nothing before its weights load.
        meta = torch.get_default_device().type == "meta"
        self.register_buffer("turns", torch.empty(0) if meta else _parts(width), persistent=False)
        self.register_load_state_dict_post_hook(_complete)

    def forward(self, positions: Tensor) -> Tensor:
        """Return angles (N, width/2) of positions (N,) in [-π, π], float32."""
        places = BASE ** torch.arange(DIGITS, device=positions.device)
        digits = (positions.unsqueeze(1) // places % BASE).to(torch.float32).unsqueeze(2)  # (N, DIGITS, 1)
        coarse, fine = self.turns.to(torch.float32).unbind()
        turns = _fraction((digits * (coarse / COARSE)).sum(dim=1)) + (digits * (fine / FINE)).sum(dim=1)  # (N, width/2)
        return _fraction(turns) * (2 * math.pi)


def _complete(angles: Angles, _: object) -> None:
    """Compute the constants of a model that was made on the device `meta`."""
    if angles.turns.is_meta:
        angles.turns = _parts(angles.width)


def _fraction(turns: Tensor) -> Tensor:
    """Return turns without whole ones: from -1/2 to 1/2."""
    return turns - torch.floor(turns + 0.5)


def _parts(width: int) -> Tensor:
    """Return `Angles.turns` for a width."""
    turns, unit = torch.tensor(_turns(width)), FINE // COARSE
    coarse = (turns + unit // 2) // unit
    return torch.stack([coarse, turns - coarse * unit])


@functools.cache
def _turns(width: int) -> list[list[int]]:
    """Return the turns that a one at each place is worth, without whole ones, in units of 1 / FINE."""
    with localcontext() as context:
        context.prec = 70
        each = [10000 ** (Decimal(-index) / width) / (2 * PI) for index in range(0, width, 2)]
        return [[round(turn * BASE**place % 1 * FINE) for turn in each] for place in range(DIGITS)]
