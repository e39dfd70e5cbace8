"""The selective state space of Mamba (Gu and Dao 2023, arXiv:2312.00752, algorithm 2), for a segment with a state."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["selective_scan"]

_CACHED = 1 << 20  # numbers of a tensor that stays in a processor's cache


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
    states = _recurrence(decays, (dt * x).unsqueeze(-1) * B.unsqueeze(2), first)
    return (states @ C.unsqueeze(-1)).squeeze(-1), states[:, -1]


def _recurrence(decays: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """Return all states (B,S,E,N) of h_t = decay_t h_(t-1) + input_t, in chunks of about √S tokens.

    It runs through all chunks together, token by token, and then from chunk to chunk: 2 √S operations on large tensors
    instead of S on small ones.
    """
    B, S, E, N = inputs.shape
    Q = math.isqrt(S - 1) + 1  # tokens of a chunk
    padding = (0, 0, 0, 0, 0, -S % Q)
    within = F.pad(decays, padding, value=1.0).view(B, -1, Q, E, N).unbind(2)
    added = F.pad(inputs, padding).view(B, -1, Q, E, N).unbind(2)
    kept, states = [within[0]], [added[0]]  # products of decays, and states, since the start of a chunk
    for decay, value in zip(within[1:], added[1:], strict=True):
        kept.append(decay * kept[-1])
        states.append(torch.addcmul(value, decay, states[-1]))
    before = [first]  # of each chunk
    for decay, value in zip(kept[-1].unbind(1), states[-1].unbind(1), strict=True):
        before.append(torch.addcmul(value, decay, before[-1]))
    carried = torch.stack(before[:-1], dim=1)  # (B,C,E,N)
    every = [torch.addcmul(value, decay, carried) for decay, value in zip(kept, states, strict=True)]
    return torch.stack(every, dim=2).flatten(1, 2)[:, :S]


def _scanned(dt: Tensor, x: Tensor, A: Tensor, B: Tensor, C: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    from torch._higher_order_ops.scan import scan

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        dt, x, B, C = token
        state = (dt.unsqueeze(2) * A).exp() * state + (dt * x).unsqueeze(2) * B.unsqueeze(1)
        return state, (state @ C.unsqueeze(2)).squeeze(2)

    by_token = tuple(one.transpose(0, 1) for one in (dt, x, B, C))  # (S,B,…)
    last, outputs = scan(step, first.clone(), by_token)
    return outputs.transpose(0, 1), last
