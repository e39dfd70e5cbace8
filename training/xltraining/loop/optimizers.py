"""The optimizers that a run may choose, from torch, and the schedule of the learning rate."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from xltraining.training_config import TrainingConfig

__all__ = ["Optimizers", "learning_rate", "make_optimizers"]


class Optimizers:
    """One optimizer, or several that share the weights."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next update."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Update the weights by their gradients."""
        with torch.no_grad():
            for part in self.parts:
                part.step()

    def state_dict(self) -> Any:
        """Return the state of the only optimizer, or a list with the state of each."""
        states = [part.state_dict() for part in self.parts]
        return states[0] if len(states) == 1 else states

    def load_state_dict(self, state: Any) -> None:
        """Take the state that `state_dict` returned."""
        for part, own in zip(self.parts, state if isinstance(state, list) else [state], strict=True):
            part.load_state_dict(own)


def make_optimizers(config: TrainingConfig, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizers:
    """Make the optimizer that the settings name.

    - `adam`: Adam (Kingma and Ba 2015).
    - `adamw`: AdamW (Loshchilov and Hutter 2019). Vectors, such as biases and norms, do not decay.
    - `adafactor`: Adafactor (Shazeer and Stern 2018), with second moments by row and column and without momentum. Its
      step is min(learning rate, 1 / sqrt(step number)) times the size of the weight.
    - `muon`: Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for embeddings, output layer and vectors.
      Muon's updates are scaled to the size of AdamW's (Liu et al. 2025), so both use one learning rate.

    Args:
        parameters: the weights by name, each once.
    """
    named = list(parameters)
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adafactor":
        return Optimizers([_light(torch.optim.Adafactor)([one for _, one in named], rate, weight_decay=decay)])
    if config.optimizer == "adam":
        every = [one for _, one in named]
        return Optimizers([_light(torch.optim.Adam)(every, rate, config.betas, weight_decay=decay, fused=True)])
    inner = set()
    if config.optimizer == "muon":  # matrices between hidden states; biases of heads (H,h) are none
        weights = [name for name, one in named if one.ndim == 2 and name.endswith(".weight")]
        inner = {name for name in weights if name.startswith("layers.")}
    rest = [(name, one) for name, one in named if name not in inner]
    groups = [
        {"params": [one for _, one in rest if one.ndim > 1], "weight_decay": decay},
        {"params": [one for _, one in rest if one.ndim <= 1], "weight_decay": 0.0},
    ]
    parts: list[torch.optim.Optimizer] = [_light(torch.optim.AdamW)(groups, rate, config.betas, fused=True)]
    if inner:
        matrices = [one for name, one in named if name in inner]
        parts.append(_light(torch.optim.Muon)(matrices, rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return Optimizers(parts)


def _light(kind: Callable[..., torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a class of optimizers whose methods do not load torch's compiler.

    These methods load it only to switch it off while they run, which takes 100 MB and seconds. Without that, the caller
    of `step` must switch gradients off.
    """
    assert isinstance(kind, type)
    methods = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
    return type(kind.__name__, (kind,), {name: inspect.unwrap(getattr(kind, name)) for name in methods})


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of an update (from 0): a linear warm-up, then the rate of the schedule.

    `inverse_sqrt` is that of Vaswani et al. 2017 (arXiv:1706.03762), section 5.3: it continues the warm-up with the
    highest rate × sqrt(warm-up / number of the update).
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "inverse_sqrt":
        falling = math.sqrt(max(1, config.warmup_steps) / (step + 1))
        return config.learning_rate * max(config.min_lr_ratio, falling)
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
