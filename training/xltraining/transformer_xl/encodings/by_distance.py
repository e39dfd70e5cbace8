"""What encodings of distances share: one linear map for query, key and value, and the shift of Appendix B."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.attention import Attention

__all__ = ["AttentionByDistance", "distances_to_keys", "relative_shift"]


def relative_shift(scores: Tensor) -> Tensor:
    """Align scores by distance with the keys they belong to, without copying (Appendix B).

    Args:
        scores: (..., S, K+1), contiguous; column c of every row belongs to distance K - c.

    Returns:
        A view (..., S, K): column j of row i belongs to distance i + M - j with M = K - S. Columns j > i + M are in the
        future: they hold scores of other rows and must be masked.
    """
    *lead, S, columns = scores.shape
    rotated = scores.view(*lead, columns, S)
    return rotated[..., 1:, :].view(*lead, S, columns - 1)


def distances_to_keys(K: int, largest: int, device: torch.device) -> Tensor:
    """Return the distances K..0 (K+1,) int64, none above `largest`, if that is positive; the first pads the shift."""
    distances = torch.arange(K, -1, -1, device=device)
    return distances.clamp(max=largest) if largest > 0 else distances


class AttentionByDistance(Attention):
    """Attention whose scores depend on the distance of query and key."""

    def _add_projections(self, config: TransformerXLConfig) -> None:
        self.qkv = nn.Linear(config.d_model, 3 * config.n_head * config.d_head, bias=False)

    def project(self, hidden: Tensor, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value; see `Attention.project`."""
        (B, S, _), K, H, h = hidden.shape, normed.shape[1], self.n_head, self.d_head
        # Memory rows need no query, so the rows of the single weight are used separately.
        query_weight, key_value_weight = self.qkv.weight.split([H * h, 2 * H * h])
        query = F.linear(normed[:, K - S :], query_weight).view(B, S, H, h)
        key, value = F.linear(normed, key_value_weight).view(B, K, 2, H, h).permute(2, 0, 3, 1, 4)  # 2 x (B,H,K,h)
        return query, key, value
