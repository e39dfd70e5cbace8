"""Encoder-decoder (Vaswani et al. 2017) with reversible layers (Kitaev et al. 2020): configuration and model."""

from xltraining.encoder_decoder.config import EncoderDecoderConfig
from xltraining.encoder_decoder.model import DecoderMemory, EncoderDecoder

__all__ = ["DecoderMemory", "EncoderDecoder", "EncoderDecoderConfig"]
