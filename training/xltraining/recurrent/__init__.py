"""Recurrent language models, the baselines of Transformer-XL: an LSTM and Mamba, their configurations and models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xltraining.recurrent.config import LSTMConfig, MambaConfig

if TYPE_CHECKING:
    from xltraining.recurrent.model import LSTM, Mamba

__all__ = ["LSTM", "LSTMConfig", "Mamba", "MambaConfig"]


def __getattr__(name: str) -> Any:
    """Import the models on first use: they need torch, the configurations do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)
