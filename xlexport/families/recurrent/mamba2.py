"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), as its authors' code trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xlexport.families.recurrent.config_values import ConfigValues, is_number
from xlexport.families.recurrent.state_space import StateSpaceModel, StateSpaceSizes, convolution
from xlexport.families.scan import Chunks

__all__ = ["Mamba2", "Mamba2Sizes"]


@dataclass(frozen=True)
class Mamba2Sizes(StateSpaceSizes):
    """The sizes of a model.

    Attributes:
        n_head: heads; each has d_inner / n_head inputs, and one decay for all of its states.
        n_group: groups of heads that share B and C.
        dt_least, dt_most: the smallest and the largest step size; None: no limit.
    """

    DEFAULTS: ClassVar = {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128}
    IS_TIED: ClassVar = False
    n_head: int
    n_group: int
    dt_least: float
    dt_most: float | None

    @classmethod
    def further_shown(
        cls, mixer: Mapping[str, tuple[int, ...]], channels: int, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the keys that only Mamba-2 has. The number of groups must be in the configuration."""
        heads, groups = (mixer["A_log"] or (0,))[0], config.get("n_groups")
        inner = mixer["out_proj.weight"][1]
        shown = {"num_heads": heads, "head_dim": inner // heads} if heads and inner % heads == 0 else {}
        if type(groups) is int and groups > 0 and channels % (2 * groups) == 0:
            shown["state_size"] = channels // (2 * groups)
        return shown

    @classmethod
    def further(cls, values: ConfigValues, d_model: int, d_inner: int) -> dict[str, Any]:
        """Return the fields that only Mamba-2 has."""
        heads, width = values.size("num_heads", 128), values.size("head_dim", 64)
        groups = values.size("n_groups", 8)

        def is_range(value: Any) -> bool:
            is_pair = isinstance(value, list | tuple) and len(value) == 2
            return is_pair and all(map(is_number, value)) and value[0] <= value[1]

        low, high = values.value("time_step_limit", (0.0, math.inf), "two numbers, the smaller one first", is_range)
        if not values.problems and heads * width != d_inner:
            values.problems.append(
                f"num_heads × head_dim is {heads * width:,}, expected expand × hidden_size {d_inner:,}"
            )
        if not values.problems and heads % groups:
            values.problems.append(f"num_heads is {heads:,}, expected a multiple of n_groups {groups:,}")
        dt_most = None if high == math.inf else float(high)
        return {"n_head": heads, "n_group": groups, "dt_least": float(low), "dt_most": dt_most}


class _GroupNorm(nn.RMSNorm):
    """Normalize the inputs of the output projection (B, S, D) within each group, as the authors' `RMSNormGated`."""

    def __init__(self, sizes: Mamba2Sizes) -> None:
        super().__init__(sizes.d_inner, eps=sizes.norm_epsilon)
        self.groups = sizes.n_group

    def forward(self, x: Tensor) -> Tensor:
        B, S, D = x.shape
        width = D // self.groups
        return F.rms_norm(x.view(B, S, self.groups, width), (width,), eps=self.eps).view(B, S, D) * self.weight


class _Mamba2Mixer(nn.Module):
    """The layer of section 7 (figure 6, on the right: all projections at once), with section 6's chunks.

    For each head, h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t and y_t = C_t h_t + D x_t, with a number A.
    """

    def __init__(self, sizes: Mamba2Sizes) -> None:
        super().__init__()
        D, N, K, H, G = sizes.d_inner, sizes.d_state, sizes.d_conv, sizes.n_head, sizes.n_group
        C = D + 2 * G * N
        self.shapes = (K - 1, C), (H, N, D // H)
        self.groups, self.limits = (G, H // G), (sizes.dt_least, sizes.dt_most)
        self.in_parts, self.conv_parts = (D, C, H), (D, G * N, G * N)
        self.in_proj = nn.Linear(sizes.d_model, sum(self.in_parts), bias=sizes.bias)
        self.conv1d = nn.Conv1d(C, C, K, groups=C, bias=sizes.conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.zeros(H)) for _ in range(3))
        self.norm = _GroupNorm(sizes)
        self.out_proj = nn.Linear(D, sizes.d_model, bias=sizes.bias)

    def forward(self, x: Tensor, conv: Tensor, ssm: Tensor, chunks: Chunks | None) -> tuple[Tensor, Tensor, Tensor]:
        Q, S, _ = x.shape  # Q rows of the batch
        (G, R), (H, N, P) = self.groups, self.shapes[1]  # R heads in each group
        gate, inputs, dt = self.in_proj(x).split(self.in_parts, dim=2)
        inputs, conv = convolution(self.conv1d, inputs, conv)
        u, B, C = inputs.split(self.conv_parts, dim=2)
        dt = F.softplus(dt + self.dt_bias).clamp(*self.limits).view(Q, S, G, R)
        decay = dt * -self.A_log.exp().view(G, R)  # logarithms (Q, S, G, R)
        u, B, C = u.view(Q, S, G, R, P), B.view(Q, S, G, N), C.view(Q, S, G, N)
        x, h = u * dt.unsqueeze(4), ssm.view(Q, G, R, N, P)
        y, h = _one_token(x, B, C, decay, h) if chunks is None else _chunked(x, B, C, decay, h, chunks)
        y = (y + u * self.D.view(G, R, 1)).reshape(Q, S, H * P)
        return self.out_proj(self.norm(y * F.silu(gate))), conv, h.reshape(Q, H, N, P)


class Mamba2(StateSpaceModel):
    """Mamba-2. Its state has the inputs `conv` (L, K - 1, C) and `ssm` (L, n_head, d_state, d_inner / n_head)."""

    mixer, chunk = _Mamba2Mixer, 64


def _one_token(x: Tensor, B: Tensor, C: Tensor, decay: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and the next state as `_chunked` does, for S = 1: the recurrence as it is written."""
    h = decay.exp()[:, 0, ..., None, None] * h + B[:, 0, :, None, :, None] * x[:, 0, ..., None, :]
    return (C[:, 0, :, None, None] @ h).squeeze(3).unsqueeze(1), h


def _chunked(x: Tensor, B: Tensor, C: Tensor, decay: Tensor, h: Tensor, sizes: Chunks) -> tuple[Tensor, Tensor]:
    """Run the recurrence h_t = exp(decay_t) h_{t-1} + B_t x_t, y_t = C_t h_t over a segment.

    Within a chunk, outputs are those of an attention whose scores decay; from chunk to chunk, states are carried
    (section 6 and listing 1).

    Args:
        x: inputs (Q, S, G, R, P) of R heads in G groups.
        B, C: (Q, S, G, N).
        decay: logarithms (Q, S, G, R), at most 0.
        h: the state (Q, G, R, N, P).

    Returns:
        The outputs (Q, S, G, R, P), and the state after the segment.
    """
    Q, S, G, R, P = x.shape
    chunks, T = sizes
    missing = chunks * T - S  # tokens at the end that neither decay nor add

    def cut(values: Tensor) -> Tensor:
        padded = F.pad(values, (*(0, 0) * (values.dim() - 2), 0, missing))
        return padded.unflatten(1, (chunks, T)).movedim((1, 2), (-3, -2))

    x, decay = cut(x), cut(decay.unsqueeze(4)).squeeze(5)  # (Q, G, R, chunks, T, P), (Q, G, R, chunks, T)
    B, C = (cut(part.unsqueeze(3)) for part in (B, C))  # (Q, G, 1, chunks, T, N)
    between, since_start = _decays(decay), decay.cumsum(dim=4)
    to_end = between[..., -1, :].unsqueeze(5)  # (Q, G, R, chunks, T, 1)
    added = (B.transpose(4, 5) @ (x * to_end)).flatten(4)  # (Q, G, R, chunks, N * P)
    states = torch.cat([h.flatten(3).unsqueeze(3), added], dim=3)
    states = _decays(F.pad(since_start[..., -1], (1, 0))) @ states  # at the start, and at each chunk's end
    states = states.unflatten(4, h.shape[3:])  # (Q, G, R, chunks + 1, N, P)
    y = (C @ B.transpose(4, 5) * between) @ x + since_start.exp().unsqueeze(5) * (C @ states[:, :, :, :-1])
    y = y.movedim((3, 4), (1, 2)).reshape(Q, chunks * T, G, R, P)
    return y.narrow(1, 0, S), states[:, :, :, -1]


def _decays(decay: Tensor) -> Tensor:
    """Return how much each place t keeps of each place s: exp of the sum of decay (..., T) from s + 1 to t.

    The sums (..., T, T) are computed one by one, as differences of cumulative sums would lose small decays after large
    ones. Later places keep nothing of earlier ones, and are left out before exp could overflow.
    """
    place = torch.arange(decay.shape[-1])
    later = place.unsqueeze(1) - place  # t - s
    sums = torch.where(later > 0, decay.unsqueeze(-1), 0.0).cumsum(dim=-2)
    return torch.where(later >= 0, sums, -torch.inf).exp()
