"""Encoder-decoder (Vaswani et al. 2017) with reversible layers (Kitaev et al. 2020): configuration and model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xltraining.encoder_decoder.config import EncoderDecoderConfig

if TYPE_CHECKING:
    from xltraining.encoder_decoder.model import DecoderMemory, EncoderDecoder

__all__ = ["DecoderMemory", "EncoderDecoder", "EncoderDecoderConfig"]


def __getattr__(name: str) -> Any:
    """Import the model on first use: it needs torch, the configuration does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)
