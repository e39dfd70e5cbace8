"""What training, evaluation and checkpoints need of a model and of its configuration, for any architecture.

Every method that is not abstract has a default that suits a model whose memory is a list of tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.config_fields import PlainFields
from xltraining.training_config import TrainingConfig

__all__ = ["LanguageModel", "ModelConfig", "placed", "plain"]


class ModelConfig(PlainFields):
    """A configuration: a frozen dataclass with at least these fields."""

    n_token: int
    """Size of the vocabulary."""
    tgt_len: int
    """Tokens in a training segment."""

    @property
    def position_limit(self) -> int | None:
        """Tokens after which a document must start again, because no further position has an embedding; None: never."""
        return None

    @property
    def position_limit_source(self) -> str:
        """Where the limit comes from, as the end of a message; empty if it is a field of its own."""
        return ""


class LanguageModel(nn.Module, ABC):
    """A model that keeps nothing between calls: memory goes in and comes out.

    `forward(tokens, memory)` runs one segment: tokens (B,S) int64 and the memory that the segment before returned, or
    None for a new document; it returns hidden states (B,S,D) and the new memory, detached. A memory is made of tensors,
    numbers and None, in lists and dicts; another type needs `plain_memory` and `memory_from_plain`.
    """

    config: Any
    """The model's `ModelConfig`."""

    @abstractmethod
    def first_memory(self, batch_size: int) -> Any:
        """Return the memory that a document starts with."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return (B,S,V) from hidden states (B,S,D); log-probabilities will do."""

    def all_log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every token in nats, (B,S,V), from hidden states (B,S,D)."""
        return self.logits(hidden).log_softmax(dim=-1)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats, (B,S), from hidden (B,S,D) and targets (B,S) int64."""
        return self.all_log_probs(hidden).gather(-1, targets.unsqueeze(-1)).squeeze(-1)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of the targets in nats; targets of -100 do not count."""
        return F.cross_entropy(self.logits(hidden).flatten(0, 1).float(), targets.flatten())

    def prepare_training(self, training: TrainingConfig) -> None:
        """Take over the settings of a run that change how this model computes its gradients."""

    def memory_before(self, memory: Any, length: int) -> Any:
        """Return the memory for a segment of `length` tokens: `memory`, or None if a new document must start."""
        return memory

    def plain_memory(self, memory: Any) -> Any:
        """Return a memory as lists, dicts, numbers and tensors of its own, as a checkpoint holds it."""
        return plain(memory)

    def memory_from_plain(self, plain: Any, device: torch.device) -> Any:
        """Return the memory that `plain_memory` wrote down, on a device."""
        return placed(plain, device)

    def tie(self) -> None:
        """Let tied names share one parameter again, after tensors were assigned to them."""

    @classmethod
    def tied_names(cls, config: Any) -> dict[str, str]:
        """Return each tensor that is another one under a second name: that name to the one that owns the tensor."""
        return {}

    @classmethod
    def is_drawn(cls, name: str) -> bool:
        """Return whether a tensor is drawn at random, not trained: it is never rounded, nor counted as a parameter."""
        return False


def plain(value: Any) -> Any:
    """Return nested values with copies of their tensors: views would drag longer tensors into a file."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def placed(value: Any, device: torch.device) -> Any:
    """Return nested values with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: placed(part, device) for name, part in value.items()}
    return [placed(part, device) for part in value] if isinstance(value, list | tuple) else value
