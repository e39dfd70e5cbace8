"""Sinusoids of distances (Dai et al. 2019, Section 3.3): the encoding of Transformer-XL."""

import torch
from torch import Tensor, nn

from xltraining.layers.sinusoids import sinusoids
from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.by_distance import AttentionByDistance, distances_to_keys

__all__ = ["RelativeAttention"]


class RelativeAttention(AttentionByDistance):
    """Attention whose scores have four terms; u is `content_bias`, v is `position_bias`, R the sinusoids.

    (q_i + u) . k_j  +  (q_i + v) . W_kR R[i + M - j],  all scaled by 1/sqrt(h).
    """

    def _add_positions(self, config: TransformerXLConfig) -> None:
        D, H, h = config.d_model, config.n_head, config.d_head
        self.position = nn.Linear(D, H * h, bias=False)
        self.content_bias = nn.Parameter(torch.empty(H, h))
        self.position_bias = nn.Parameter(torch.empty(H, h))

    def shared(self, config: TransformerXLConfig, M: int, S: int) -> Tensor:
        """Return encodings (K+1,D) of the distances K..0."""
        like = self.content_bias
        encodings: Tensor = self.dropout(
            sinusoids(distances_to_keys(M + S, config.clamp_len, like.device), config.d_model, like.dtype)
        )
        return encodings

    def scores(self, query: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query for content, and scores by distance; see `AttentionByDistance.scores`."""
        H, h = self.n_head, self.d_head
        position_key = self.position(shared).view(len(shared), H, h).permute(1, 2, 0)  # (H,h,K+1)
        scale = h**-0.5
        by_content = (query + self.content_bias[:, None, None]) * scale  # (H,B,S,h)
        by_position = (query + self.position_bias[:, None, None]) * scale  # (H,B,S,h)
        return by_content, torch.bmm(by_position.flatten(1, 2), position_key)
