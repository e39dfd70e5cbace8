"""How a model is trained: the settings, validated as a whole, and the schedule of the learning rate."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from xltraining.errors import ConfigError

__all__ = ["TrainingConfig", "learning_rate"]

_CHOICES = {"task": ("bytes", "duplication"), "optimizer": ("adam", "adafactor")}


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Raises:
        ConfigError: lists every value that is wrong.
    """

    task: Literal["bytes", "duplication"] = "bytes"
    """Text as bytes, or the synthetic task of `xltraining.duplication`."""
    word_length: int = 255
    """Symbols that the duplication task repeats."""
    steps: int = 10_000
    """Updates in all; the learning rate's schedule ends there. 0 writes a freshly initialised model."""
    batch_size: int = 16
    """Parallel streams, or examples of a step."""
    optimizer: Literal["adam", "adafactor"] = "adam"
    learning_rate: float = 2e-3
    """The highest; Adafactor takes it as a part of each weight's size, and wants about 0.1."""
    min_lr_ratio: float = 0.02
    """The learning rate at the end, as a part of the highest."""
    warmup_steps: int = 300
    betas: tuple[float, float] = (0.9, 0.99)
    """Of Adam."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    log_every: int = 50
    eval_every: int = 500
    checkpoint_every: int = 500
    device: str = "cpu"
    bf16: bool | None = None
    """bfloat16 autocast; None: on CUDA where the device can."""
    threads: int | None = None
    """CPU threads; None leaves PyTorch's choice."""
    reversible: bool = True
    """A Reformer's backward pass computes activations anew, which saves memory; without, a step takes less time."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}"
            for name, choices in _CHOICES.items()
            if getattr(self, name) not in choices
        ]
        problems += [f"{name} must be 0 or more" for name in ("steps", "warmup_steps") if getattr(self, name) < 0]
        counts = ("word_length", "batch_size", "log_every", "eval_every", "checkpoint_every")
        problems += [f"{name} must be at least 1" for name in counts if getattr(self, name) < 1]
        problems += [f"{name} must be above 0" for name in ("learning_rate", "clip") if not getattr(self, name) > 0]
        if not 0 <= self.min_lr_ratio <= 1:
            problems.append("min_lr_ratio must be between 0 and 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            problems.append("betas must be in [0, 1)")
        if self.weight_decay < 0:
            problems.append("weight_decay must be 0 or more")
        if self.threads is not None and self.threads < 1:
            problems.append("threads must be at least 1")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            problems.append(f"device must be cpu, cuda or cuda:N, found {self.device!r}")
        elif self.device.startswith("cuda") and not torch.cuda.is_available():
            problems.append(f"device {self.device} is not available: install a CUDA build of PyTorch or use cpu")
        if problems:
            raise ConfigError("invalid training configuration: " + "; ".join(problems))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of an update (from 0): a linear warm-up, then a cosine down to `min_lr_ratio` of the highest."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
