"""The optimizers that a run may choose, from torch."""

from collections.abc import Iterable

import torch
from torch import nn

from xltraining.training_config import TrainingConfig

__all__ = ["make_optimizer"]


def make_optimizer(config: TrainingConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015), or Adafactor (Shazeer and Stern 2018), which keeps rows and columns of second moments.

    Adafactor's step is the learning rate times the size of the weight, and at most one over the root of the step's
    number; it has no momentum.
    """
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.Adam(
        parameters, config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
    )
