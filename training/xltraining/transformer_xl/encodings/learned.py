"""A learned vector for each place, added in every layer (Al-Rfou et al. 2018, arXiv:1808.04444): `attn_type` 3."""

import torch
from torch import Tensor, nn

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.absolute import AttentionByContent

__all__ = ["LearnedAttention"]


class LearnedAttention(AttentionByContent):
    """Attention of a layer that adds its own vectors to its input. The last row belongs to the last place of a part."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__(config, index)
        self.tgt_len = config.tgt_len

    def _add_positions(self, config: TransformerXLConfig) -> None:
        self.places = nn.Parameter(torch.empty(config.n_embedded, config.d_model))

    def encodings(self) -> Tensor:
        """Return what the layer adds at each place of a part, (tgt_len, D)."""
        return self.places[len(self.places) - self.tgt_len :]

    def place(self, hidden: Tensor, M: int) -> Tensor:
        """Return the layer's input (B,S,D) with its places; see `Attention.place`."""
        return hidden + self.encodings()[M : M + hidden.shape[1]]
