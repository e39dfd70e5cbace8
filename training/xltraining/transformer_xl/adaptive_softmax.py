"""Word embeddings and output layer for a vocabulary that is cut into clusters of ever rarer tokens.

Adaptive softmax (Grave et al. 2017, arXiv:1609.04309) predicts a token of the shortlist (cluster 0) directly. The
probability of another token is P(cluster) P(token | cluster). Adaptive input (Baevski and Auli 2019, arXiv:1809.10853)
gives rare clusters narrower embeddings. An uncut vocabulary is one cluster, and its output layer is a plain softmax.

Axes: N positions, D `d_model`, c_i tokens and E_i width of cluster i, V vocabulary. No branch depends on data, so the
modules can be exported unchanged.
"""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.language_model import IGNORED
from xltraining.transformer_xl.config import TransformerXLConfig

__all__ = ["AdaptiveEmbedding", "AdaptiveSoftmax", "EmbeddingCluster", "SoftmaxCluster"]


class EmbeddingCluster(nn.Module):
    """The embeddings of one cluster: `table` (c_i, E_i), and `projection` (D, E_i) or None."""

    projection: nn.Parameter | None

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        first, end = config.cluster_bounds[index]
        width = config.cluster_widths[index]
        self.size = end - first
        self.table = nn.Parameter(torch.empty(self.size, width))
        projection = nn.Parameter(torch.empty(config.d_model, width)) if config.has_projection(index) else None
        self.register_parameter("projection", projection)

    def forward(self, places: Tensor) -> Tensor:
        """Return embeddings (…, D) of places (…) int64 within the cluster."""
        rows = F.embedding(places, self.table)
        return rows if self.projection is None else F.linear(rows, self.projection)


class AdaptiveEmbedding(nn.Module):
    """The embedding layer: token ids to vectors of the model's width."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.firsts = [first for first, _ in config.cluster_bounds]
        self.clusters = nn.ModuleList(EmbeddingCluster(config, index) for index in range(len(self.firsts)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return embeddings (B, S, D) of token ids (B, S) int64. Every cluster embeds every token; one counts."""
        shortlist, *tails = (cast(EmbeddingCluster, cluster) for cluster in self.clusters)
        embedded = shortlist(tokens.clamp(max=shortlist.size - 1) if tails else tokens)  # (B, S, D)
        for first, cluster in zip(self.firsts[1:], tails, strict=True):
            rows = cluster((tokens - first).clamp(0, cluster.size - 1))  # (B, S, D)
            embedded = torch.where((tokens >= first).unsqueeze(-1), rows, embedded)
        return embedded


class SoftmaxCluster(nn.Module):
    """The output layer of one cluster: `weight` (c_i, E_i), `bias` (c_i), and `projection` (D, E_i) or None."""

    projection: nn.Parameter | None

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        first, end = config.cluster_bounds[index]
        width = config.cluster_widths[index]
        self.weight = nn.Parameter(torch.empty(end - first, width))
        self.bias = nn.Parameter(torch.empty(end - first))
        projection = nn.Parameter(torch.empty(config.d_model, width)) if config.has_projection(index) else None
        self.register_parameter("projection", projection)

    def project(self, hidden: Tensor) -> Tensor:
        """Return hidden states (N, D) projected to the cluster's width (N, E_i)."""
        return hidden if self.projection is None else hidden @ self.projection

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits (N, c_i) from hidden states (N, D)."""
        return F.linear(self.project(hidden), self.weight, self.bias)


class AdaptiveSoftmax(nn.Module):
    """The output layer: hidden states to log-probabilities.

    With cutoffs, the head scores the shortlist, followed by one slot for each tail cluster. Row i - 1 of
    `cluster_weight` (n_cutoffs, E_0) and `cluster_bias` (n_cutoffs) belongs to cluster i.
    """

    cluster_weight: nn.Parameter | None
    cluster_bias: nn.Parameter | None

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.bounds = config.cluster_bounds
        self.clusters = nn.ModuleList(SoftmaxCluster(config, index) for index in range(len(self.bounds)))
        cut = bool(config.cutoffs)
        self.register_parameter(
            "cluster_weight", nn.Parameter(torch.empty(len(config.cutoffs), config.cluster_widths[0])) if cut else None
        )
        self.register_parameter("cluster_bias", nn.Parameter(torch.empty(len(config.cutoffs))) if cut else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (…, V) from hidden states (…, D). With cutoffs, these are log-probabilities."""
        *lead, D = hidden.shape
        rows = hidden.reshape(-1, D) if len(lead) > 1 else hidden  # (N, D)
        if self.cluster_weight is None:
            scores = self.clusters[0](rows)
        else:
            scores = torch.cat(list(self.log_probs_by_cluster(rows)), dim=1)
        return scores.view(*lead, self.bounds[-1][1])  # (…, V)

    def log_probs_by_cluster(self, hidden: Tensor) -> Iterator[Tensor]:
        """Yield for each cluster its tokens' log-probabilities (N, c_i) in nats, from hidden states (N, D)."""
        for shift, within in self.log_probs_within_clusters(hidden):
            yield shift + within

    def log_probs_within_clusters(self, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the results of `log_probs_by_cluster` as pairs (N, 1) and (N, c_i) of summands."""
        head = self._head(hidden)
        (_, shortlist), *tails = self.bounds
        parts = [(torch.zeros_like(head[:, :1]), head[:, :shortlist])]
        for index in range(1, 1 + len(tails)):
            slot = shortlist + index - 1
            parts.append((head[:, slot : slot + 1], _log_softmax(self.clusters[index](hidden))))
        return parts

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats.

        A tail cluster is computed for its own targets only.

        Args:
            hidden: hidden states (B, S, D).
            targets: (B, S) int64.

        Returns:
            Log-probabilities (B, S).
        """
        B, S, D = hidden.shape
        rows, target = hidden.reshape(B * S, D), targets.reshape(B * S)
        (_, shortlist), *tails = self.bounds
        column = target
        for index, (first, _) in enumerate(tails):
            column = torch.where(target >= first, shortlist + index, column)
        result = self._head(rows).gather(1, column.unsqueeze(1)).squeeze(1)  # (B*S,)
        for index, (first, end) in enumerate(tails, start=1):
            own = ((target >= first) & (target < end)).nonzero().squeeze(1)  # (n,) positions with such a target
            tail = _log_softmax(self.clusters[index](rows.index_select(0, own)))  # (n, c_i)
            place = target.index_select(0, own) - first
            within = tail.gather(1, place.unsqueeze(1)).squeeze(1)  # (n,)
            result = result.index_put((own,), result.index_select(0, own) + within)
        return result.view(B, S)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of the targets in nats, one cluster after the other.

        A tail cluster is computed for its own targets only, also in the backward pass. Without any target of its own,
        its weights get zeros as gradients: with several processes, every weight must get one.

        Args:
            hidden: hidden states (B, S, D).
            targets: (B, S) int64; -100 does not count.

        Returns:
            A scalar.
        """
        target = targets.flatten()
        rows = hidden.flatten(0, 1)  # (B*S, D)
        scored = target != IGNORED
        (_, shortlist), *tails = self.bounds
        column = target
        for index, (first, _) in enumerate(tails):
            column = torch.where(target >= first, shortlist + index, column)
        nats = _cross_entropy(self._head_scores(rows), column)
        for index, (first, end) in enumerate(tails, start=1):
            own = ((target >= first) & (target < end)).nonzero().squeeze(1)  # (n,) positions with such a target
            scores = self.clusters[index](rows.index_select(0, own))  # (n, c_i)
            nats = nats + _cross_entropy(scores, target.index_select(0, own) - first)
        return nats / scored.sum()

    def _head_scores(self, hidden: Tensor) -> Tensor:
        """Return logits (N, c_0 + n_cutoffs) of the head by one product: joined weights are smaller than scores."""
        shortlist = cast(SoftmaxCluster, self.clusters[0])
        if self.cluster_weight is None or self.cluster_bias is None:
            return shortlist(hidden)
        weight = torch.cat([shortlist.weight, self.cluster_weight])
        return F.linear(shortlist.project(hidden), weight, torch.cat([shortlist.bias, self.cluster_bias]))

    def _head(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities (N, c_0 + n_cutoffs) of the shortlist's tokens and of the whole tail clusters."""
        shortlist = cast(SoftmaxCluster, self.clusters[0])
        scores = shortlist(hidden)
        if self.cluster_weight is not None:
            clusters = F.linear(shortlist.project(hidden), self.cluster_weight, self.cluster_bias)
            scores = torch.cat([scores, clusters], dim=1)
        return _log_softmax(scores)


def _log_softmax(scores: Tensor) -> Tensor:
    """Return the log-softmax over the last axis, in float32 even if autocast made the scores bfloat16; float64 stays.

    LogSumExp is not used: ONNX Runtime's is off by 1e-7 nats on average, which adds up.
    """
    return torch.log_softmax(_wide(scores), dim=-1)


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the targets' negative log-probabilities in nats, from scores (N, c); it is 0 without rows."""
    return F.cross_entropy(_wide(scores), targets, ignore_index=IGNORED, reduction="sum")


def _wide(scores: Tensor) -> Tensor:
    """Return scores in float32, or in float64 if they are."""
    return scores if scores.dtype == torch.float64 else scores.float()
