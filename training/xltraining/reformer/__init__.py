"""Reformer (Kitaev et al. 2020, arXiv:2001.04451): its configuration and its model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xltraining.reformer.config import ReformerConfig

if TYPE_CHECKING:
    from xltraining.reformer.model import LSHTrace, Reformer, ReformerFeedForward, ReformerMemory

__all__ = ["LSHTrace", "Reformer", "ReformerConfig", "ReformerFeedForward", "ReformerMemory"]


def __getattr__(name: str) -> Any:
    """Import the model on first use: it needs torch, the configuration does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)
