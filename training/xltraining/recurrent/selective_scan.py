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
    # A part of the channels at a time: the large tensors (B,S,E,N) stay in the cache, which takes half the time.
    in_parts = dt.is_cpu and not torch.compiler.is_exporting()
    parts = math.ceil(dt.numel() * first.shape[2] / _CACHED) if in_parts else 1
    outputs, last = [], []
    channels = (dt.chunk(parts, dim=2), x.chunk(parts, dim=2), A.chunk(parts), first.chunk(parts, dim=1))
    for dt_part, x_part, A_part, first_part in zip(*channels, strict=True):
        decays = (dt_part.unsqueeze(-1) * A_part).exp()  # (B,S,E,N)
        inputs = (dt_part * x_part).unsqueeze(-1) * B.unsqueeze(2)
        states = linear_recurrence(decays, inputs, first_part)
        outputs.append((states @ C.unsqueeze(-1)).squeeze(-1))
        last.append(states[:, -1])
    return torch.cat(outputs, dim=2), torch.cat(last, dim=1)


def linear_recurrence(decays: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """Return the states (B,S,…) after each token.

    Args:
        decays: a (B,S,…), of the type of `inputs`.
        inputs: b (B,S,…).
        first: the state (B,…) before the first token.
    """
    if torch.compiler.is_exporting():
        return _scanned(decays, inputs, first)
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


def _scanned(decays: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    def step(state: Tensor, token: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        state = token[0] * state + token[1]
        return state, state.clone()

    by_token = (decays.transpose(0, 1), inputs.transpose(0, 1))  # (S,B,…)
    states: Tensor = scan(step, first.clone(), by_token)[1]
    return states.transpose(0, 1)  # (B,S,…)
