"""A learned key and a learned bias for each distance (after Shaw et al. 2018, arXiv:1803.02155): `attn_type` 1."""

import torch
from torch import Tensor, nn

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.by_distance import AttentionByDistance, distances_to_keys, relative_shift

__all__ = ["ShawAttention"]


class ShawAttention(AttentionByDistance):
    """Attention with scores ((q_i + u) . k_j  +  q_i . E[d]  +  b[d]) / sqrt(h) at the distance d = i + M - j.

    u is `content_bias`. The last rows of E = `distance_key` and b = `distance_bias` belong to distance 0, the first to
    all distances from `max_klen` - 1 on. A positive `clamp_len` leaves only the last `clamp_len` rows, as in the
    authors' code. So distances of `clamp_len` - 1 and more are one, while `relative` treats `clamp_len` as distinct.
    """

    def _add_positions(self, config: TransformerXLConfig) -> None:
        H, h, n = config.n_head, config.d_head, config.n_embedded
        self.content_bias = nn.Parameter(torch.empty(H, h))
        self.distance_key = nn.Parameter(torch.empty(n, H, h))
        self.distance_bias = nn.Parameter(torch.empty(n, H))

    def shared(self, config: TransformerXLConfig, M: int, S: int) -> Tensor:
        """Return the row of each of the distances K..0, (K+1,) int64."""
        rows = len(self.distance_key)  # the configuration's memory may be longer or shorter than in training
        distinct = min(rows, config.clamp_len) if config.clamp_len > 0 else rows
        return rows - 1 - distances_to_keys(M + S, 0, self.distance_key.device).clamp(max=distinct - 1)

    def scores(self, query: Tensor, key: Tensor, shared: Tensor | None) -> Tensor:
        """Return the scores (B*H,S,K); see `Attention.scores`."""
        assert shared is not None
        scale = self.d_head**-0.5
        by_content = ((query + self.content_bias) * scale).transpose(1, 2)  # (B,H,S,h)
        position_key = self.distance_key[shared].permute(1, 2, 0)  # (H,h,K+1)
        bias = self.distance_bias[shared].t().unsqueeze(1)  # (H,1,K+1)
        by_distance = ((query.transpose(1, 2) @ position_key) + bias) * scale  # (B,H,S,K+1)
        return torch.baddbmm(
            relative_shift(by_distance.contiguous()).flatten(0, 1),  # (B*H,S,K)
            by_content.flatten(0, 1),
            key.flatten(0, 1).transpose(1, 2),
        )
