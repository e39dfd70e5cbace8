"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860): its configuration and its model."""

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.model import FeedForward, TransformerXL, TransformerXLLayer

__all__ = ["FeedForward", "TransformerXL", "TransformerXLConfig", "TransformerXLLayer"]
