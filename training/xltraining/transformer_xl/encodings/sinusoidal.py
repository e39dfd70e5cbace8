"""Sinusoids of places that are added to the embeddings (Vaswani et al. 2017, arXiv:1706.03762): `attn_type` 2."""

import torch
from torch import Tensor

from xltraining.layers.sinusoids import sinusoids
from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.absolute import AttentionByContent

__all__ = ["SinusoidalAttention"]


class SinusoidalAttention(AttentionByContent):
    """Attention of a layer; the first layer adds the places to its input.

    The authors number the places backwards, from the last token of the part, which is 0. A positive `clamp_len` is the
    largest number.
    """

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__(config, index)
        self.tgt_len, self.clamp_len, self.d_model = config.tgt_len, config.clamp_len, config.d_model

    def _add_positions(self, config: TransformerXLConfig) -> None:
        """Add nothing: sinusoids are computed."""

    def encodings(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor | None:
        """Return what the layer adds at each place of a part, (tgt_len, D), or None if it adds nothing."""
        if self.index:
            return None
        numbers = torch.arange(self.tgt_len - 1, -1, -1, device=device)
        numbers = numbers.clamp(max=self.clamp_len) if self.clamp_len > 0 else numbers
        return sinusoids(numbers, self.d_model, dtype)

    def place(self, hidden: Tensor, M: int) -> Tensor:
        """Return the layer's input (B,S,D) with its places; see `Attention.place`."""
        encodings = self.encodings(hidden.dtype, hidden.device)
        placed: Tensor = hidden if encodings is None else hidden + self.dropout(encodings[M : M + hidden.shape[1]])
        return placed
