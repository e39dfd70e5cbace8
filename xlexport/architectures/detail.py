"""What the detail graph says of every position, whatever the architecture: rank, entropy and likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from xlruntime import spec

__all__ = ["TOP_K", "describe", "described"]

TOP_K = 10  # candidates that the detail graph lists for every position


def described(n_token: int) -> tuple[spec.Tensor, ...]:
    """Return the outputs that `describe` gives: ranks, entropies in nats, and the top tokens, best first."""
    tokens, top = ("batch", "segment"), ("batch", "segment", min(TOP_K, n_token))
    return (
        spec.Tensor("rank", "int64", tokens),
        spec.Tensor("entropy", "float32", tokens),
        spec.Tensor("top_ids", "int64", top),
        spec.Tensor("top_log_probs", "float32", top),
    )


def describe(clusters: Sequence[tuple[tuple[int, int], tuple[Tensor, Tensor]]], targets: Tensor) -> dict[str, Tensor]:
    """Rank, entropy and likeliest tokens, cluster by cluster: the log-probabilities are never whole.

    Args:
        clusters: for each cluster of the vocabulary, the ids from which and up to which it goes, and (log-probability
            of the cluster (B*S, 1), of its tokens within it (B*S, tokens)), in nats. A plain softmax is one cluster
            of probability one.
        targets: (B, S).

    Returns:
        `rank` (B, S) of each target, 1 is the likeliest; `entropy` (B, S) in nats; `top_ids` and `top_log_probs`
        (B, S, k), best first.
    """
    B, S = targets.shape
    n_token = clusters[-1][0][1]
    target = targets.reshape(B * S, 1)
    # A token of a tail has the probability P of its cluster times its own within it, p: log P = shift.
    own = torch.zeros(0)
    for (first, end), (shift, within) in clusters:
        place = (target - first).clamp(0, end - first - 1)
        log_prob = within.gather(1, place) + shift  # (B*S, 1)
        own = torch.where(target >= first, log_prob, own) if first else log_prob
    better, entropies, values, ids = [], [], [], []
    for (first, end), (shift, within) in clusters:
        # Counted in float32, exact far beyond any vocabulary: a table of int64 would be the largest of all.
        better.append((within + shift > own).float().sum(dim=1))
        # -Σ P·p log(P·p); a tail's p add up to one, and the shortlist's shift is zero.
        plogp = (within.exp() * within).sum(dim=1, keepdim=True)  # (B*S, 1)
        entropies.append(-shift.exp() * (plogp + shift))
        best, places = torch.topk(within, min(TOP_K, end - first), dim=1)
        values.append(best + shift)
        ids.append(places + first)
    top_log_probs, top_ids = values[0], ids[0]
    if len(clusters) > 1:
        top_log_probs, order = torch.topk(torch.cat(values, dim=1), min(TOP_K, n_token), dim=1)
        top_ids = torch.cat(ids, dim=1).gather(1, order)
    return {
        "rank": 1 + torch.stack(better).sum(dim=0).long().view(B, S),
        "entropy": torch.stack(entropies).sum(dim=0).view(B, S),
        "top_ids": top_ids.view(B, S, -1),
        "top_log_probs": top_log_probs.view(B, S, -1),
    }
