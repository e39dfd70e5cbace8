"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860): its configuration and its model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xltraining.transformer_xl.config import TransformerXLConfig

if TYPE_CHECKING:
    from xltraining.transformer_xl.model import FeedForward, TransformerXL, TransformerXLLayer

__all__ = ["FeedForward", "TransformerXL", "TransformerXLConfig", "TransformerXLLayer"]


def __getattr__(name: str) -> Any:
    """Import the model on first use: it needs torch, the configuration does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)
