"""Memory from segment to segment, whatever the architecture: when a document starts anew, and how a file holds it."""

from typing import Any

import torch
from torch import Tensor

from xltraining.architectures import ModelConfig
from xltraining.reformer import ReformerMemory
from xltraining.reformer_config import ReformerConfig

__all__ = ["memory_before", "memory_from_plain", "plain_memory", "position_limit"]


def position_limit(config: ModelConfig) -> int | None:
    """Tokens after which a document must start anew, because positions have no embedding beyond; None: never."""
    return config.max_positions or None if isinstance(config, ReformerConfig) else None


def memory_before(config: ModelConfig, memory: Any, length: int) -> Any:
    """The memory for a segment of `length` tokens: `memory`, or None, a new document, where it cannot be carried.

    A Reformer starts anew where the segment would pass its last position; rule `chunk` knows no memory.
    """
    if memory is None or not isinstance(config, ReformerConfig):
        return memory
    limit = position_limit(config)
    beyond = limit is not None and memory.position + length > limit
    return None if beyond or config.rule == "chunk" else memory


def plain_memory(memory: Any) -> Any:
    """A memory as dicts, lists and tensors of their own: what a model returns are views of longer tensors."""
    if memory is None:
        return None
    if isinstance(memory, list):
        return [rows.clone() for rows in memory]
    layers = [[rows.clone(), None if buckets is None else buckets.clone()] for rows, buckets in memory.layers]
    return {"position": memory.position, "layers": layers}


def memory_from_plain(plain: Any, device: torch.device) -> Any:
    """The memory that `plain_memory` wrote down, on a device."""
    if plain is None:
        return None
    if isinstance(plain, list):
        return [rows.to(device) for rows in plain]

    def placed(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device)

    return ReformerMemory(plain["position"], [(rows.to(device), placed(buckets)) for rows, buckets in plain["layers"]])
