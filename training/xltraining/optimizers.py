"""The optimizers that a run may choose, from torch."""

from collections.abc import Iterable

import torch
from torch import nn

from xltraining.training_config import TrainingConfig

__all__ = ["make_optimizer"]


def make_optimizer(config: TrainingConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make Adam (Kingma and Ba 2015), or Adafactor (Shazeer and Stern 2018) with second moments by row and column.

    Adafactor's step is min(learning rate, 1 / sqrt(step number)) times the size of the weight. It has no momentum.
    """
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.Adam(
        parameters, config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
    )
