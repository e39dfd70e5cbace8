"""Sines and cosines of positions or distances (Vaswani et al. 2017)."""

import torch
from torch import Tensor

__all__ = ["sinusoids"]


def sinusoids(numbers: Tensor, d_model: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return encodings (N, D) of positions or distances (N,): D/2 sines, then D/2 cosines.

    They are computed in float32, or in float64 for a model in float64. Less precise types lack numbers beyond 2,048.
    """
    exact = dtype if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, d_model, 2, dtype=exact, device=numbers.device) / d_model
    angles = numbers.to(exact)[:, None] / 10000**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
