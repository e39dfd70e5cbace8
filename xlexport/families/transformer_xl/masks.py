"""Masks: which keys a query sees by its distance, the rows in memory, and the window of `same_length`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["reach_mask", "window_mask"]

HIDDEN = -3e4  # added to hidden scores: after the softmax it is exactly zero, and float16 can hold it


def reach_mask(distance: Tensor, steps: Tensor, memory_length: Tensor, window: Tensor) -> Tensor:
    """Return the mask to add to scores: zero for each key that a query sees, minus infinity for all others.

    Args:
        distance: (S, C) of each key from each query; negative for keys after the query.
        steps: S places of the queries in the step, from 0.
        memory_length: (B,) rows that each batch row has before the step.
        window: (1,) the largest number of keys that a query sees, itself included.

    Returns:
        (B, 1, S, C)
    """
    (B,), (S, _) = memory_length.shape, distance.shape
    reach = torch.minimum(memory_length.view(B, 1, 1) + steps.view(1, S, 1), window.view(1, 1, 1) - 1)
    seen = torch.logical_and((distance >= 0).unsqueeze(0), distance.unsqueeze(0) <= reach)  # (B, S, C)
    return torch.where(seen, 0.0, -math.inf).unsqueeze(1)


def window_mask(S: int, R: int, memory_length: Tensor, window: Tensor | None = None) -> Tensor:
    """Return what `reach_mask` says for S queries on R rows of memory and themselves: (B, 1, S, R + S).

    The sizes are numbers, so distances are a constant. Comparisons are sums and limits of numbers in float32, which
    more accelerators have than comparisons.

    Args:
        memory_length: (B,) rows that each batch row has before the step.
        window: (1,) the largest number of keys that a query sees, itself included; None: any number.
    """
    (B,), steps = memory_length.shape, torch.arange(S, dtype=torch.float32).unsqueeze(1)
    distance = R + steps - torch.arange(R + S, dtype=torch.float32)  # (S, R + S), negative for later rows
    reach = memory_length.to(torch.float32).view(B, 1, 1, 1)
    seen = (reach + (steps - distance + 1)).clamp(0, 1) * (distance + 1).clamp(0, 1)
    if window is not None:
        seen = seen * (window.to(torch.float32).view(1, 1, 1, 1) - distance).clamp(0, 1)
    return (seen - 1) * -HIDDEN
