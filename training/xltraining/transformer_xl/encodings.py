"""Attention over memory and segment, by encoding of positions; Tables 6, 7 and 10 of Dai et al. 2019 compare them.

The authors' code numbers the encodings as `attn_type`: 0 `relative`, 1 `shaw`, 2 `sinusoidal`, 3 `learned`.

Axes: B batch, S tokens of the segment, M memory rows, K = M + S keys, D `d_model`, H heads, h `d_head`.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.layers.sinusoids import sinusoids
from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.dropout import make_dropout

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionByContent",
    "AttentionByDistance",
    "LearnedAttention",
    "RelativeAttention",
    "ShawAttention",
    "SinusoidalAttention",
    "distances_to_keys",
    "make_attention",
    "relative_shift",
]


class Attention(nn.Module, ABC):
    """Multi-head attention of layer `index` (from 0), with its residual connection and layer normalisation.

    Subclasses know where positions enter.
    """

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        self.index = index
        D, H, h = config.d_model, config.n_head, config.d_head
        self.n_head, self.d_head, self.pre_lnorm = H, h, config.pre_lnorm
        self._add_projections(config)
        self._add_positions(config)
        self.output = nn.Linear(H * h, D, bias=False)
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.dropout = make_dropout(config.dropout, config.variational)
        self.dropatt = make_dropout(config.dropatt, config.variational)

    @abstractmethod
    def _add_projections(self, config: TransformerXLConfig) -> None:
        """Make the linear maps of `project`."""

    @abstractmethod
    def _add_positions(self, config: TransformerXLConfig) -> None:
        """Make the parameters that depend on positions."""

    def shared(self, config: TransformerXLConfig, M: int, S: int) -> Tensor | None:
        """Return what all layers share in one pass, for `scores`; the configuration may have other evaluation settings.

        None: scores do not depend on positions.
        """
        return None

    def place(self, hidden: Tensor, M: int) -> Tensor:
        """Return the layer's input (B,S,D) with its positions; `M` tokens of the document come before it."""
        return hidden

    @abstractmethod
    def project(self, hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (H,B,S,h), key and value (H,B,K,h).

        Args:
            hidden: the layer's input (B,S,D).
            normed: the same, normalised under `pre_lnorm`.
            memory: (B,M,D), normalised under `pre_lnorm`.
        """

    @abstractmethod
    def weights(self, query: Tensor, key: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the attention weights (H*B,S,K): the softmax of scores that are scaled by 1/sqrt(h)."""

    def forward(self, hidden: Tensor, memory: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the block's output (B,S,D).

        Args:
            hidden: (B,S,D).
            memory: (B,M,D).
            shared: result of `shared`.
            hiding: (S,K), minus infinity for keys that a query does not see, otherwise 0.
        """
        B, S, _ = hidden.shape
        normed = (self.norm(hidden), self.norm(memory)) if self.pre_lnorm else (hidden, memory)
        query, key, value = self.project(hidden, *normed)
        attention = self.dropatt(self.weights(query, key, shared, hiding))
        mixed = torch.bmm(attention, value.flatten(0, 1))  # (H*B,S,h)
        mixed = mixed.view(self.n_head, B, S, self.d_head).permute(1, 2, 0, 3).flatten(2)  # (B,S,H*h)

        result: Tensor = hidden + self.dropout(self.output(mixed))
        return result if self.pre_lnorm else self.norm(result)

    def _by_head(self, rows: Tensor) -> Tensor:
        """Return rows (B,L,n*H*h) as (n,H,B,L,h)."""
        B, L, width = rows.shape
        parts = width // (self.n_head * self.d_head)
        return rows.view(B, L, parts, self.n_head, self.d_head).permute(2, 3, 0, 1, 4)


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
    """Attention whose scores depend on the distance of query and key: one linear map for both and for values."""

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


class RelativeAttention(AttentionByDistance):
    """Sinusoids of distances: scores have four terms (Dai et al. 2019, Section 3.3); the encoding of Transformer-XL.

    u is `content_bias`, v is `position_bias`, R the sinusoids:

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


class ShawAttention(AttentionByDistance):
    """A learned key and a learned bias for each distance (after Shaw et al. 2018, arXiv:1803.02155).

    Scores are ((q_i + u) . k_j  +  q_i . E[d]  +  b[d]) / sqrt(h) at the distance d = i + M - j. Without `shaw_biases`
    there is neither u nor b, as Dai et al. 2019 describe the encoding (section 3.3): q_i . k_j + q_i . E[d].

    u is `content_bias`. The last rows of E = `distance_key` and b = `distance_bias` belong to distance 0, the first to
    all distances from `max_klen` - 1 on. A positive `clamp_len` leaves only the last `clamp_len` rows, as in the
    authors' code. So distances of `clamp_len` - 1 and more are one, while `relative` treats `clamp_len` as distinct.
    """

    def _add_positions(self, config: TransformerXLConfig) -> None:
        H, h, n = config.n_head, config.d_head, config.n_embedded
        self.content_bias = nn.Parameter(torch.empty(H, h)) if config.shaw_biases else None
        self.distance_key = nn.Parameter(torch.empty(n, H, h))
        self.distance_bias = nn.Parameter(torch.empty(n, H)) if config.shaw_biases else None

    def shared(self, config: TransformerXLConfig, M: int, S: int) -> Tensor:
        """Return the row of each of the distances K..0, (K+1,) int64."""
        rows = len(self.distance_key)  # the configuration's memory may be longer or shorter than in training
        distinct = min(rows, config.clamp_len) if config.clamp_len > 0 else rows
        return rows - 1 - distances_to_keys(M + S, 0, self.distance_key.device).clamp(max=distinct - 1)

    def scores(self, query: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query for content, and scores by distance; see `AttentionByDistance.scores`."""
        scale = self.d_head**-0.5
        position_key = self.distance_key[shared].permute(1, 2, 0)  # (H,h,K+1)
        by_distance = torch.bmm(query.flatten(1, 2), position_key)  # (H,B*S,K+1)
        if self.content_bias is None or self.distance_bias is None:
            return query * scale, by_distance * scale
        bias = self.distance_bias[shared].t().unsqueeze(1)  # (H,1,K+1)
        return (query + self.content_bias[:, None, None]) * scale, (by_distance + bias) * scale


class AttentionByContent(Attention):
    """Absolute places: attention with scores q_i . k_j / sqrt(h), of inputs that hold their places.

    A document is read in parts of `tgt_len` tokens, the segments of training. A token sees only its own part, and its
    place is counted from the part's beginning. Within a part, the model may read any number of tokens at a time: memory
    holds the part's earlier tokens, and its length is the place of the next one.

    Under `pre_lnorm` keys and values come from normalised inputs, but queries from inputs before normalisation, as in
    the authors' code for absolute places.
    """

    def _add_projections(self, config: TransformerXLConfig) -> None:
        width = config.n_head * config.d_head
        self.query = nn.Linear(config.d_model, width, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * width, bias=False)

    def project(self, hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value; see `Attention.project`."""
        key, value = self._by_head(self.key_value(torch.cat([memory, normed], dim=1)))  # 2 x (H,B,K,h)
        return self._by_head(self.query(hidden))[0], key, value

    def weights(self, query: Tensor, key: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the attention weights (H*B,S,K); see `Attention.weights`."""
        scaled = (query * self.d_head**-0.5).flatten(0, 1)  # (H*B,S,h)
        return torch.baddbmm(hiding, scaled, key.flatten(0, 1).transpose(1, 2)).softmax(dim=-1)


class SinusoidalAttention(AttentionByContent):
    """Sinusoids of places (Vaswani et al. 2017, arXiv:1706.03762), which the first layer adds to its input.

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


class LearnedAttention(AttentionByContent):
    """A learned vector for each place, added in every layer (Al-Rfou et al. 2018, arXiv:1808.04444).

    The last row belongs to the last place of a part.
    """

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


ATTENTIONS: dict[str, type[Attention]] = {
    "relative": RelativeAttention,
    "shaw": ShawAttention,
    "sinusoidal": SinusoidalAttention,
    "learned": LearnedAttention,
}


def make_attention(config: TransformerXLConfig, index: int) -> Attention:
    """Make the attention block of layer `index` (from 0) with the configuration's encoding."""
    return ATTENTIONS[config.encoding](config, index)
