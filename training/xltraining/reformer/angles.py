"""Angles of positions, exact for long documents without numbers of 64 bits, which GPUs in browsers lack."""

from __future__ import annotations

import functools
import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor

__all__ = ["angles"]

BASE, DIGITS = 256, 6  # digits of a position; positions are below 2^48
FINE = 2**13  # six digits times multiples of 1 / FINE, and their sum, are exact in float32
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def angles(positions: Tensor, width: int) -> Tensor:
    """Return angles (N, width/2) of positions (N,) in [-π, π], float32, with wavelengths from 2π to 10000·2π.

    A product in float32 would be wrong by up to 0.03 at a million radians. So the digits of a position, to base 256,
    are multiplied separately. The turns of each digit's place are the sum of a coarse part, whose products and sums are
    exact, and of a fine part below 2^-13, whose errors are below 2^-27 turns. Whole turns are dropped in between.
    """
    coarse, fine = (torch.tensor(part, device=positions.device) for part in _turns(width))  # (DIGITS, width/2)
    places = torch.tensor([BASE**place for place in range(DIGITS)], device=positions.device)
    digits = (positions.unsqueeze(1) // places % BASE).to(torch.float32).unsqueeze(2)  # (N, DIGITS, 1)
    turns = _fraction((digits * coarse).sum(dim=1)) + (digits * fine).sum(dim=1)  # (N, width/2)
    return _fraction(turns) * (2 * math.pi)


def _fraction(turns: Tensor) -> Tensor:
    """Return turns without whole ones: from -1/2 to 1/2."""
    return turns - torch.floor(turns + 0.5)


@functools.cache
def _turns(width: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return the turns that a one at each place of a position is worth: coarse and fine parts (DIGITS, width/2)."""
    coarse: list[list[float]] = []
    fine: list[list[float]] = []
    with localcontext() as context:
        context.prec = 70
        each = [10000 ** (Decimal(-index) / width) / (2 * PI) for index in range(0, width, 2)]
        for place in range(DIGITS):
            turns = [one * BASE**place % 1 for one in each]
            turns = [one - 1 if 2 * one > 1 else one for one in turns]
            steps = [int((one * FINE).to_integral_value()) for one in turns]
            coarse.append([step / FINE for step in steps])
            fine.append([float(one - Decimal(step) / FINE) for one, step in zip(turns, steps, strict=True)])
    return coarse, fine
