"""Code that the step modules of all architectures share: the inputs and outputs of a language model, and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from xlexport.families.step import FixedSizes, Form, StepTensor
from xlruntime.bundle import Feed

__all__ = ["TARGETS", "TOKENS", "TOP_K", "StepModule", "describe", "describe_softmax", "log_prob_last", "purposes_of"]

TOP_K = 10  # candidates that the detail graph lists for every position
LEAST = -1e4  # nats in place of -inf, which times a probability of zero is no number; within float16
TARGETS = StepTensor("targets", "int64", ("batch", "segment"), Feed("targets"))  # the token after each of `tokens`
# Tracing reads the segment's length from the last input that has it. So `tokens` must follow `targets`, or the generate
# graph would need targets.
TOKENS = StepTensor("tokens", "int64", ("batch", "segment"), Feed("tokens"))


class StepModule(nn.Module):
    """One module that computes the outputs of all graphs of a bundle; the exporter cuts it by purpose.

    By default its axes are free, it computes every purpose in one form, and a document starts with no memory.
    """

    fixed: FixedSizes | None = None
    inline: bool = False

    @property
    def forms(self) -> Mapping[str, Form]:
        """The purposes that `forward` computes in another form than the rest."""
        return {}

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the content of a slot of each memory for a zero hidden state, by input name."""
        return {}

    def discard(self) -> None:
        """Release all weights, including the trained model's; neither can run afterwards."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = torch.empty(0)


def purposes_of(n_token: int, carried: tuple[StepTensor, ...]) -> dict[str, tuple[StepTensor, ...]]:
    """Return the outputs of the graphs that every language model has; the `carried` ones come last.

    * `log_prob`: log-probability of each target, in nats;
    * `logits`: logits of the last position;
    * `rank`: rank of each target, where 1 is the most probable token;
    * `entropy`: in nats;
    * `top_ids`, `top_log_probs`: the most probable tokens, best first.
    """
    tokens, top = ("batch", "segment"), ("batch", "segment", min(TOP_K, n_token))
    log_prob = StepTensor("log_prob", "float32", tokens)
    detail = (
        StepTensor("rank", "int64", tokens),
        StepTensor("entropy", "float32", tokens),
        StepTensor("top_ids", "int64", top),
        StepTensor("top_log_probs", "float32", top),
    )
    return {
        "score": (log_prob, *carried),
        "generate": (StepTensor("logits", "float32", ("batch", n_token)), *carried),
        "detail": (log_prob, *detail, *carried),
    }


def log_prob_last(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability (B, S) of each target in nats, from logits (B, S, n_token).

    Log-softmax and gathering are the last nodes, unless there are several rows: accelerators of phones lack both, and
    would return to the device behind them.
    """
    B, S, n_token = logits.shape
    log_probs = logits.view(B * S, n_token).t().log_softmax(dim=0)  # (n_token, B*S)
    return log_probs.gather(0, targets) if B == 1 else log_probs.gather(0, targets.view(1, B * S)).view(B, S)


def describe_softmax(log_probs: Tensor, targets: Tensor, n_token: int) -> dict[str, Tensor]:
    """Return `describe` of a plain softmax, from the log-probabilities (B, S, n_token) of all tokens.

    TorchScript traces sizes as tensors, so the caller passes `n_token`.
    """
    return describe([((0, n_token), (torch.zeros(1, 1), log_probs.flatten(0, 1)))], targets)


def describe(clusters: Sequence[tuple[tuple[int, int], tuple[Tensor, Tensor]]], targets: Tensor) -> dict[str, Tensor]:
    """Return rank, entropy and most probable tokens, computed cluster by cluster.

    The log-probabilities of the whole vocabulary are never in one tensor.

    Args:
        clusters: for each cluster of the vocabulary, its ids as (first, end), and two tensors in nats: the
            log-probability of the cluster (B*S, 1), and of its tokens within it (B*S, tokens). A plain softmax is one
            cluster of probability one.
        targets: (B, S).

    Returns:
        `log_prob` (B, S) of each target in nats, its `rank` (1 is the most probable token), `entropy` (B, S) in nats,
        `top_ids` and `top_log_probs` (B, S, k), best first.
    """
    B, S = targets.shape
    n_token = clusters[-1][0][1]
    target = targets.reshape(B * S, 1)
    # The probability of a token is P · p, for P of its cluster and p of the token within it; shift = log P.
    own = clusters[0][1][0]  # the first cluster replaces it
    for (first, end), (shift, within) in clusters:
        place = (target - first).clamp(0, end - first - 1)
        log_prob = within.gather(1, place) + shift  # (B*S, 1)
        own = torch.where(target >= first, log_prob, own) if first else log_prob
    better, entropies, values, ids = [], [], [], []
    for (first, end), (shift, within) in clusters:
        # Counts in float32 are exact for any real vocabulary; an int64 table would be the step's largest tensor.
        better.append((within + shift > own).float().sum(dim=1))
        # -Σ P·p log(P·p); the p of a tail sum to one, and the shortlist's shift is zero.
        plogp = (within.exp() * within.clamp(min=LEAST)).sum(dim=1, keepdim=True)  # (B*S, 1)
        entropies.append(-shift.exp() * (plogp + shift))
        best, places = torch.topk(within, min(TOP_K, end - first), dim=1)
        values.append(best + shift)
        ids.append(places + first)
    top_log_probs, top_ids = values[0], ids[0]
    if len(clusters) > 1:
        top_log_probs, order = torch.topk(torch.cat(values, dim=1), min(TOP_K, n_token), dim=1)
        top_ids = torch.cat(ids, dim=1).gather(1, order)
    return {
        "log_prob": own.view(B, S),
        "rank": 1 + torch.stack(better).sum(dim=0).long().view(B, S),
        "entropy": torch.stack(entropies).sum(dim=0).view(B, S),
        "top_ids": top_ids.view(B, S, top_ids.shape[1]),
        "top_log_probs": top_log_probs.view(B, S, top_ids.shape[1]),
    }
