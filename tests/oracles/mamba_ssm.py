"""The equations of mamba_ssm, the code that trains Mamba and Mamba-2, as loops over tokens in float64.

Names of tensors are mamba_ssm's, which Hugging Face's folders share but for `embedding`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["log_probs"]


def log_probs(tensors: Mapping[str, Tensor], ids: Tensor, epsilon: float = 1e-5, **options: Any) -> Tensor:
    """Return the log-probabilities (S, V) of all tokens after each of ids (S,).

    Args:
        epsilon: of all normalizations.
        options: of the mixers of Mamba-2: `groups`, `head_dim` and `limits` of its steps.
    """
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    embedding = weights.get("backbone.embedding.weight", weights.get("backbone.embeddings.weight"))
    assert embedding is not None
    x, layer = embedding[ids], 0
    while f"backbone.layers.{layer}.norm.weight" in weights:
        prefix = f"backbone.layers.{layer}."
        own = {name.removeprefix(f"{prefix}mixer."): one for name, one in weights.items() if name.startswith(prefix)}
        mix = _mamba if "x_proj.weight" in own else _mamba2
        x = x + mix(_normalized(x, weights[f"{prefix}norm.weight"], epsilon), own, epsilon=epsilon, **options)
        layer += 1
    x = _normalized(x, weights["backbone.norm_f.weight"], epsilon)
    return (x @ weights.get("lm_head.weight", embedding).T).log_softmax(dim=1)


def _normalized(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt() * weight


def _project(x: Tensor, own: Mapping[str, Tensor], name: str) -> Tensor:
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0)


def _convolved(x: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    weight = own["conv1d.weight"].squeeze(1)  # (C, K)
    padded = F.pad(x, (0, 0, weight.shape[1] - 1, 0))
    rows = [(padded[t : t + weight.shape[1]] * weight.T).sum(dim=0) for t in range(len(x))]
    return F.silu(torch.stack(rows) + own.get("conv1d.bias", 0))


def _mamba(x: Tensor, own: Mapping[str, Tensor], *, epsilon: float) -> Tensor:
    D, N = own["A_log"].shape
    u, gate = _project(x, own, "in_proj").chunk(2, dim=1)
    u = _convolved(u, own)
    dt, B, C = (u @ own["x_proj.weight"].T).split((own["dt_proj.weight"].shape[1], N, N), dim=1)
    dt = F.softplus(_project(dt, own, "dt_proj"))  # (S, D)
    h, rows = torch.zeros(D, N, dtype=x.dtype), []
    for t in range(len(x)):
        h = (dt[t].unsqueeze(1) * -own["A_log"].exp()).exp() * h + (dt[t] * u[t]).unsqueeze(1) * B[t]
        rows.append(h @ C[t] + own["D"] * u[t])
    return _project(torch.stack(rows) * F.silu(gate), own, "out_proj")


def _mamba2(
    x: Tensor,
    own: Mapping[str, Tensor],
    *,
    epsilon: float,
    groups: int,
    head_dim: int,
    limits: tuple[float, float] = (0.0, math.inf),
) -> Tensor:
    (H,), P, G = own["A_log"].shape, head_dim, groups
    D = H * P
    N = (own["conv1d.weight"].shape[0] - D) // (2 * G)
    gate, inputs, dt = _project(x, own, "in_proj").split((D, D + 2 * G * N, H), dim=1)
    u, B, C = _convolved(inputs, own).split((D, G * N, G * N), dim=1)
    dt = F.softplus(dt + own["dt_bias"]).clamp(*limits)  # (S, H)
    h, rows = torch.zeros(H, P, N, dtype=x.dtype), []
    for t in range(len(x)):
        of_heads = [part[t].view(G, N).repeat_interleave(H // G, dim=0) for part in (B, C)]  # (H, N) each
        decay, u_t = (dt[t] * -own["A_log"].exp()).exp(), u[t].view(H, P)
        h = decay.view(H, 1, 1) * h + (dt[t].unsqueeze(1) * u_t).unsqueeze(2) * of_heads[0].unsqueeze(1)
        rows.append((h * of_heads[1].unsqueeze(1)).sum(dim=2) + own["D"].unsqueeze(1) * u_t)
    gated = torch.stack(rows).view(-1, D) * F.silu(gate)
    # `RMSNormGated` with `norm_before_gate` off: each of G groups by itself.
    grouped = _normalized(gated.view(-1, G, D // G), own["norm.weight"].view(G, D // G), epsilon)
    return _project(grouped.view(-1, D), own, "out_proj")
