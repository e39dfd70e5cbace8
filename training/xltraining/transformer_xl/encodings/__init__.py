"""Encodings of positions, one module each; Tables 6, 7 and 10 of Dai et al. 2019 compare them.

The authors' code numbers them as `attn_type`: 0 `relative`, 1 `shaw`, 2 `sinusoidal`, 3 `learned`.
"""

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.attention import Attention
from xltraining.transformer_xl.encodings.learned import LearnedAttention
from xltraining.transformer_xl.encodings.relative import RelativeAttention
from xltraining.transformer_xl.encodings.shaw import ShawAttention
from xltraining.transformer_xl.encodings.sinusoidal import SinusoidalAttention

__all__ = ["ATTENTIONS", "make_attention"]

ATTENTIONS: dict[str, type[Attention]] = {
    "relative": RelativeAttention,
    "shaw": ShawAttention,
    "sinusoidal": SinusoidalAttention,
    "learned": LearnedAttention,
}


def make_attention(config: TransformerXLConfig, index: int) -> Attention:
    """Make the attention block of layer `index` (from 0) with the configuration's encoding."""
    return ATTENTIONS[config.encoding](config, index)
