"""The interface of models of any architecture, for training, evaluation and checkpoints.

The defaults of methods that are not abstract suit a model whose memory is a list of tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.layers.swapping import LayerStore
from xltraining.training_config import TrainingConfig

__all__ = ["IGNORED", "LanguageModel", "placed", "plain"]

IGNORED = -100  # a target that is not scored: the `ignore_index` of torch's cross_entropy


class LanguageModel(nn.Module, ABC):
    """A model without state between calls: the caller passes memory in and gets new memory back.

    `forward(tokens, memory)` runs one segment: tokens (B,S) int64 and the memory of the previous segment, or None for a
    new document. It returns hidden states (B,S,D) and the new memory, detached. A memory consists of tensors, numbers
    and None, in lists and dicts; a model with another type overrides `plain_memory` and `memory_from_plain`.
    """

    config: Any
    """The model's `ModelConfig`."""
    SWAPS: ClassVar[bool] = False
    """Whether the constructor also takes a store."""
    store: LayerStore | None = None
    """Where layers are while others compute; None: where the model is."""

    @abstractmethod
    def first_memory(self, batch_size: int) -> Any:
        """Return the memory at the start of a document."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V), or log-probabilities, from hidden states (B,S,D)."""

    def all_log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every token in nats, (B,S,V), from hidden states (B,S,D)."""
        return self.logits(hidden).log_softmax(dim=-1)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats, (B,S), from hidden (B,S,D) and targets (B,S) int64."""
        return self.all_log_probs(hidden).gather(-1, targets.unsqueeze(-1)).squeeze(-1)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the mean negative log-probability of the targets in nats; targets of -100 do not count.

        Args:
            smoothing: share of the loss that is the mean over all tokens, instead of the target's.
        """
        logits = self.logits(hidden).flatten(0, 1)
        exact = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(exact, targets.flatten(), label_smoothing=smoothing)

    def prepare_training(self, training: TrainingConfig) -> None:
        """Apply the settings of a run that change how this model computes its gradients."""

    def memory_before(self, memory: Any, length: int) -> Any:
        """Return the memory for a segment of `length` tokens: `memory`, or None if a new document must start."""
        return memory

    def plain_memory(self, memory: Any) -> Any:
        """Return a memory as lists, dicts, numbers and copied tensors, for a checkpoint."""
        return plain(memory)

    def memory_from_plain(self, plain: Any, device: torch.device) -> Any:
        """Return the memory that `plain_memory` made plain, on a device."""
        return placed(plain, device)

    def tie(self) -> None:
        """Let tied names share one parameter again, after tensors were assigned to them."""

    def _initialise(self, std: Callable[[str, Tensor], float]) -> None:
        """Set norms that change nothing, zero biases, and normal weights with the standard deviation of each."""
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue  # it has no numbers, and drawing them would load torch's compiler: 100 MB
            if "norm" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            elif name.endswith((".bias", "cluster_bias")):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=std(name, parameter))
            if self.store is not None:
                self.store.release()

    @classmethod
    def tied_names(cls, config: Any) -> dict[str, str]:
        """Return the second names of tied tensors, each with the name that owns the tensor."""
        return {}

    @classmethod
    def is_drawn(cls, name: str) -> bool:
        """Return whether a tensor is drawn at random, not trained. Such tensors are neither rounded nor counted."""
        return False


def plain(value: Any) -> Any:
    """Return nested values with copies of their tensors: views would store longer tensors in a file."""
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
