"""Random weights for tests, large enough that each of them affects the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def randomize(model: Model) -> Model:
    """Add noise to every weight, so that none is zero or negligible."""
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def random_model(build: Callable[[], Model], seed: int = 0) -> Model:
    """Return a model in eval mode whose initial weights and noise depend on `seed`; torch's state is unchanged."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return randomize(build().eval())
