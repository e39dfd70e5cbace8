"""Settings of training, validated as a whole, and the schedule of the learning rate."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from xltraining.errors import ConfigError

__all__ = ["TrainingConfig", "learning_rate"]

_CHOICES = {
    "task": ("bytes", "duplication", "images", "pairs"),
    "optimizer": ("adam", "adamw", "adafactor", "muon"),
    "schedule": ("cosine", "inverse_sqrt", "constant"),
    "loss": ("full", "half"),
}


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of training.

    Raises:
        ConfigError: values are invalid. The message lists all of them.
    """

    task: Literal["bytes", "duplication", "images", "pairs"] = "bytes"
    """Text as bytes or as prepared tokens, the synthetic task of `xltraining.data.duplication`, photographs, or pairs
    of texts for an encoder-decoder."""
    word_length: int = 255
    """Symbols that the duplication task repeats."""
    image_size: int = 64
    """Width and height of an image of the task `images`, in pixels."""
    steps: int = 10_000
    """Number of updates, and the end of the learning rate's schedule. 0 writes a freshly initialised model."""
    batch_size: int = 16
    """Parallel streams, or examples of a step."""
    micro_batches: int | None = None
    """Groups of streams that are computed one after the other, or by several processes; None: one for each process.
    Dropout depends on them, so runs with equal groups have equal updates, on any number of processes."""
    shuffle: bool = False
    """Whether streams read the documents of prepared data in random orders instead of the order of the data."""
    optimizer: Literal["adam", "adamw", "adafactor", "muon"] = "adam"
    learning_rate: float = 2e-3
    """Highest learning rate. Adafactor's is relative to each weight's size, and should be about 0.1."""
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    """Learning rate after the warm-up: a cosine to the end, 1 / root of the update's number, or constant."""
    min_lr_ratio: float = 0.02
    """Final learning rate / highest learning rate, for the cosine; for the others no rate is lower."""
    warmup_steps: int = 300
    betas: tuple[float, float] = (0.9, 0.99)
    """Adam's decay rates of the first and second moments."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient."""
    loss: Literal["full", "half"] = "full"
    """Positions of a segment that count: all, or the later half (Dai et al. 2019, section 4.2)."""
    auxiliary: bool = False
    """Whether intermediate layers also predict, layer l of n during the first l / 2n of the run (Al-Rfou et al. 2018,
    arXiv:1808.04444). Only for Transformer-XL."""
    average_from: float | None = None
    """Share of the steps after which weights are averaged, with equal parts (Polyak and Juditsky 1992; Merity et al.
    2017, arXiv:1708.02182). The average is evaluated and saved. None: no average."""
    seed: int = 0
    log_every: int = 50
    eval_every: int = 500
    checkpoint_every: int = 500
    best: bool = False
    """Whether `best.pt` keeps the weights with the best score on held-out text."""
    device: str = "cpu"
    bf16: bool | None = None
    """Whether to use bfloat16 autocast; None: on CUDA if the device supports it."""
    compile: bool = False
    """Whether torch.compile translates the model first."""
    sharded: bool = False
    """Whether several processes divide weights and optimizer among them (FSDP2) instead of holding copies (DDP)."""
    threads: int | None = None
    """Number of CPU threads; None keeps PyTorch's choice."""
    reversible: bool = True
    """Whether the backward pass of reversible layers recomputes activations: less memory, but a step takes longer."""
    swap_layers: bool = False
    """Whether a Reformer's layers are in a mapped file, or for a GPU in the host's memory, while others compute."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}"
            for name, choices in _CHOICES.items()
            if getattr(self, name) not in choices
        ]
        problems += [f"{name} must be 0 or more" for name in ("steps", "warmup_steps") if getattr(self, name) < 0]
        counts = ("word_length", "image_size", "batch_size", "log_every", "eval_every", "checkpoint_every")
        problems += [f"{name} must be at least 1" for name in counts if getattr(self, name) < 1]
        problems += [f"{name} must be above 0" for name in ("learning_rate", "clip") if not getattr(self, name) > 0]
        if not 0 <= self.min_lr_ratio <= 1:
            problems.append("min_lr_ratio must be between 0 and 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            problems.append("betas must be in [0, 1)")
        if self.weight_decay < 0:
            problems.append("weight_decay must be 0 or more")
        if self.micro_batches is not None and (self.micro_batches < 1 or self.batch_size % max(self.micro_batches, 1)):
            problems.append(f"micro_batches must divide batch_size {self.batch_size}, found {self.micro_batches}")
        if self.average_from is not None and not 0 <= self.average_from < 1:
            problems.append(f"average_from must be in [0, 1), found {self.average_from}")
        if self.sharded and self.average_from is not None:
            problems.append("average_from needs whole weights, but sharded divides them")
        if self.sharded and self.optimizer not in ("adam", "adamw"):
            problems.append(f"sharded needs the optimizer adam or adamw, found {self.optimizer}")
        unfit = {"reversible": not self.reversible, "compile": self.compile, "sharded": self.sharded}
        unfit["average_from"] = self.average_from is not None
        if self.swap_layers and any(unfit.values()):
            found = ", ".join(name for name, wrong in unfit.items() if wrong)
            problems.append(f"swap_layers needs other values of {found}")
        if self.threads is not None and self.threads < 1:
            problems.append("threads must be at least 1")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            problems.append(f"device must be cpu, cuda or cuda:N, found {self.device!r}")
        elif self.device.startswith("cuda") and not torch.cuda.is_available():
            problems.append(f"device {self.device} is not available: install a CUDA build of PyTorch or use cpu")
        if problems:
            raise ConfigError(f"invalid training configuration: {'; '.join(problems)}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


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
