"""Rank, entropy and most probable tokens of every position: the detail graph's outputs in all architectures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from xlexport.architectures.step import StepTensor

__all__ = ["TOP_K", "describe", "described"]

TOP_K = 10  # candidates that the detail graph lists for every position


def described(n_token: int) -> tuple[StepTensor, ...]:
    """Return the specs of the outputs of `describe`: ranks, entropies in nats, and top tokens, best first."""
    tokens, top = ("batch", "segment"), ("batch", "segment", min(TOP_K, n_token))
    return (
        StepTensor("rank", "int64", tokens),
        StepTensor("entropy", "float32", tokens),
        StepTensor("top_ids", "int64", top),
        StepTensor("top_log_probs", "float32", top),
    )


def describe(clusters: Sequence[tuple[tuple[int, int], tuple[Tensor, Tensor]]], targets: Tensor) -> dict[str, Tensor]:
    """Return rank, entropy and most probable tokens, computed cluster by cluster.

    The log-probabilities of the whole vocabulary are never in one tensor.

    Args:
        clusters: for each cluster of the vocabulary, its ids as (first, end), and two tensors in nats: the
            log-probability of the cluster (B*S, 1), and of its tokens within it (B*S, tokens). A plain softmax is one
            cluster of probability one.
        targets: (B, S).

    Returns:
        `rank` (B, S) of each target (1 is the most probable token), `entropy` (B, S) in nats, `top_ids` and
        `top_log_probs` (B, S, k), best first.
    """
    B, S = targets.shape
    n_token = clusters[-1][0][1]
    target = targets.reshape(B * S, 1)
    # The probability of a token is P · p, for P of its cluster and p of the token within it; shift = log P.
    own = torch.zeros(0)
    for (first, end), (shift, within) in clusters:
        place = (target - first).clamp(0, end - first - 1)
        log_prob = within.gather(1, place) + shift  # (B*S, 1)
        own = torch.where(target >= first, log_prob, own) if first else log_prob
    better, entropies, values, ids = [], [], [], []
    for (first, end), (shift, within) in clusters:
        # Counts in float32 are exact for any real vocabulary; an int64 table would be the step's largest tensor.
        better.append((within + shift > own).float().sum(dim=1))
        # -Σ P·p log(P·p); the p of a tail sum to one, and the shortlist's shift is zero.
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
