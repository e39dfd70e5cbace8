"""What encodings of distances share: one linear map for query, key and value, and the shift of Appendix B."""

from abc import abstractmethod
from typing import Any

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


class _Weights(torch.autograd.Function):
    """Attention weights of scores by content and by distance.

    The gradient of the scores is written once, behind a pad of S zeros. With the pad, the same numbers are the gradient
    of the scores by distance: the reverse of the shift. Autograd would fill and copy tensors of this size three times.
    """

    @staticmethod
    def forward(context: Any, by_distance: Tensor, query: Tensor, key: Tensor, hiding: Tensor) -> Tensor:
        """Return the weights (N,S,K) from scores by distance (N,S,K+1), query (N,S,h), key (N,K,h) and mask (S,K)."""
        with torch.autocast(query.device.type, enabled=False):
            scores = torch.baddbmm(relative_shift(by_distance), query, key.transpose(1, 2))
        wide = scores.dtype if scores.dtype == torch.float64 else torch.float32
        weights = scores.add_(hiding).softmax(dim=-1, dtype=wide)
        context.save_for_backward(weights, query, key)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of `forward`'s arguments."""
        weights, query, key = context.saved_tensors
        N, S, K = weights.shape
        padded = weights.new_empty(N, (K + 1) * S)
        padded[:, :S] = 0
        score = padded[:, S:].view(N, S, K)
        torch.mul(gradients[0], weights, out=score)
        score.addcmul_(weights, score.sum(dim=-1, keepdim=True), value=-1)
        by_distance, by_content = padded.view(N, S, K + 1).to(query.dtype), score.to(query.dtype)
        return by_distance, torch.bmm(by_content, key), torch.bmm(by_content.transpose(1, 2), query), None


class AttentionByDistance(Attention):
    """Attention whose scores depend on the distance of query and key."""

    def _add_projections(self, config: TransformerXLConfig) -> None:
        self.qkv = nn.Linear(config.d_model, 3 * config.n_head * config.d_head, bias=False)

    def project(self, hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value; see `Attention.project`."""
        # Memory rows need no query. They are projected on their own, so no gradient towards them is computed.
        widths = [self.n_head * self.d_head, 2 * self.n_head * self.d_head]
        own_query, own = F.linear(normed, self.qkv.weight).split(widths, dim=-1)
        remembered = F.linear(memory, self.qkv.weight[widths[0] :])
        key, value = torch.cat([self._by_head(remembered), self._by_head(own)], dim=3)  # 2 x (H,B,K,h)
        return self._by_head(own_query)[0], key, value

    @abstractmethod
    def scores(self, query: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Return two scores, scaled by 1/sqrt(h).

        Args:
            query: (H,B,S,h).
            shared: result of `shared`.

        Returns:
            What a product with the key makes a score by content, (H,B,S,h); the scores by the distances K..0,
            (H,B*S,K+1).
        """

    def weights(self, query: Tensor, key: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the attention weights (H*B,S,K); see `Attention.weights`."""
        assert shared is not None
        H, B, S, _ = query.shape
        content, by_distance = self.scores(query, shared)
        by_distance = by_distance.view(H * B, S, -1)
        alike = (part.flatten(0, 1).to(by_distance.dtype) for part in (content, key))  # types differ under autocast
        weights: Tensor = _Weights.apply(by_distance, *alike, hiding)
        return weights
