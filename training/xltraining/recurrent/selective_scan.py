"""The selective state space of Mamba (Gu and Dao 2023, arXiv:2312.00752, algorithm 2), for a segment with a state.

Its recurrence h_t = a_t h_(t-1) + b_t is one of each number by itself. Training and evaluation compute it in chunks of
about √S tokens: first all chunks together, token by token, then chunk after chunk. So 2 √S operations on large tensors
replace S on small ones. `torch.export` gets a scan over the tokens, whose number may vary.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["linear_recurrence", "selective_scan"]

_CACHED = 1 << 18  # numbers of a tensor that stays in a processor's cache


def selective_scan(dt: Tensor, x: Tensor, A: Tensor, B: Tensor, C: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (B,S,E) and the state (B,E,N) after the last token.

    It is eq. 2, with the discretisation of eq. 4 for A. B has its first-order form Δ B, as in the authors' code.

    Args:
        dt: step sizes Δ, (B,S,E).
        x: inputs (B,S,E).
        A: the negative rates (E,N) at which the state decays.
        B, C: the maps of each token into the state and out of it, (B,S,N).
        first: the state (B,E,N) before the first token.
    """
    if torch.compiler.is_exporting():
        return _scanned(dt, x, A, B, C, first)
    parts = min(math.ceil(dt.numel() * first.shape[2] / _CACHED), dt.shape[2]) if dt.is_cpu else 1
    if parts > 1:  # groups of channels, whose large tensors stay in the cache: that takes half the time
        groups = zip(*(one.chunk(parts, dim) for one, dim in ((dt, 2), (x, 2), (A, 0), (first, 1))), strict=True)
        outputs, last = zip(*(selective_scan(dt, x, A, B, C, first) for dt, x, A, first in groups), strict=True)
        return torch.cat(outputs, dim=2), torch.cat(last, dim=1)
    decays = (dt.unsqueeze(-1) * A).exp()  # (B,S,E,N)
    states = linear_recurrence(decays, (dt * x).unsqueeze(-1) * B.unsqueeze(2), first)
    return (states @ C.unsqueeze(-1)).squeeze(-1), states[:, -1]


def linear_recurrence(decays: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """Return the states (B,S,…) after each token.

    Args:
        decays: a (B,S,…), of the type of `inputs`.
        inputs: b (B,S,…).
        first: the state (B,…) before the first token.
    """
    states: Tensor = _LinearRecurrence.apply(decays, inputs, first)
    return states


class _LinearRecurrence(torch.autograd.Function):
    """The chunked form, which keeps decays and states for its backward pass, and nothing else."""

    @staticmethod
    def forward(ctx: Any, decays: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
        """Return the states."""
        states = _chunked(decays, inputs, first)
        ctx.save_for_backward(decays, states, first)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence from the last token to the first: g_t = (gradient of h_t) + a_(t+1) g_(t+1)."""
        decays, states, first = ctx.saved_tensors
        later = torch.cat([decays[:, 1:], torch.zeros_like(decays[:, :1])], dim=1)
        flow = _chunked(later, gradients[0], torch.zeros_like(first), backwards=True)
        before = torch.cat([first.unsqueeze(1), states[:, :-1]], dim=1)
        return flow * before, flow, flow[:, 0] * decays[:, 0]


def _chunked(decays: Tensor, inputs: Tensor, first: Tensor, backwards: bool = False) -> Tensor:
    """Return the states (B,S,…); `backwards` begins with the last token."""
    B, S, *rest = inputs.shape
    Q = math.isqrt(S - 1) + 1  # tokens of a chunk
    C = -(-S // Q)  # chunks
    padding = (0, 0) * len(rest) + (0, C * Q - S)
    kept = F.pad(decays, padding, value=1.0).view(B, C, Q, *rest)  # becomes the product of decays since a chunk's start
    states = F.pad(inputs, padding).view(B, C, Q, *rest)
    if C * Q == S:  # there was no padding, which would have copied
        kept, states = kept.clone(), states.clone()
    places, chunks = (range(Q), range(C)) if not backwards else (range(Q)[::-1], range(C)[::-1])
    for before, place in itertools.pairwise(places):
        states[:, :, place].addcmul_(kept[:, :, place], states[:, :, before])
        kept[:, :, place].mul_(kept[:, :, before])
    for chunk in chunks:
        states[:, chunk].addcmul_(kept[:, chunk], first.unsqueeze(1))
        first = states[:, chunk, places[-1]]
    return states.view(B, C * Q, *rest)[:, :S]


def _scanned(dt: Tensor, x: Tensor, A: Tensor, B: Tensor, C: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    from torch._higher_order_ops.scan import scan

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        dt, x, B, C = token
        state = (dt.unsqueeze(2) * A).exp() * state + (dt * x).unsqueeze(2) * B.unsqueeze(1)
        return state, (state @ C.unsqueeze(2)).squeeze(2)

    by_token = tuple(one.transpose(0, 1) for one in (dt, x, B, C))  # (S,B,…)
    last, outputs = scan(step, first.clone(), by_token)
    return outputs.transpose(0, 1), last
