"""Weights for tests: random, and large enough that every one of them shows in the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

__all__ = ["random_model", "randomize"]

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def randomize(model: Model) -> Model:
    """Add noise to every weight, so that none is zero and none is negligible."""
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def random_model(build: Callable[[], Model], seed: int = 0) -> Model:
    """Return a model in evaluation mode whose initial weights and noise follow `seed`; torch's own state stays."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return randomize(build().eval())
