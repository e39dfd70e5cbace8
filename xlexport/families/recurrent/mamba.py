"""Mamba (Gu and Dao 2023, arXiv:2312.00752) and Falcon-Mamba (Zuo et al. 2024, arXiv:2410.05355)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xlexport.families.recurrent.config_values import ConfigValues
from xlexport.families.recurrent.state_space import StateSpaceModel, StateSpaceSizes, convolution
from xlexport.families.scan import Chunks, scan
from xltraining.messages import renamed

__all__ = ["Mamba1", "Mamba1Sizes"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Mamba": "Mamba1"})

FALCON = "falcon_mamba"


@dataclass(frozen=True)
class Mamba1Sizes(StateSpaceSizes):
    """The sizes of a model.

    Attributes:
        dt_rank: rank of the projection that makes step sizes.
        mixer_epsilon: of the normalization of step sizes, B and C in Falcon-Mamba; None: Mamba has none.
    """

    DEFAULTS: ClassVar = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16}
    IS_TIED: ClassVar = True
    dt_rank: int
    mixer_epsilon: float | None

    @classmethod
    def further_shown(
        cls, mixer: Mapping[str, tuple[int, ...]], channels: int, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the keys that only Mamba and Falcon-Mamba have."""
        shapes = mixer["A_log"], mixer["dt_proj.weight"]
        if [*map(len, shapes)] != [2, 2]:
            return {}
        return {"state_size": shapes[0][1], "time_step_rank": shapes[1][1]}

    @classmethod
    def further(cls, values: ConfigValues, d_model: int, d_inner: int) -> dict[str, Any]:
        """Return the fields that only Mamba and Falcon-Mamba have."""
        rank = math.ceil(d_model / 16)
        if values.config.get("time_step_rank") != "auto":
            rank = values.size("time_step_rank", rank)
        is_falcon = values.config.get("model_type") == FALCON
        return {"dt_rank": rank, "mixer_epsilon": values.positive("mixer_rms_eps", 1e-6) if is_falcon else None}


class _MambaMixer(nn.Module):
    """The selective state space of section 3: each of N states of each input decays by itself.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t (equation 2a) and y_t = C_t h_t + D x_t (2b). The discretization of B is
    Euler's, as in the authors' code.
    """

    def __init__(self, sizes: Mamba1Sizes) -> None:
        super().__init__()
        D, N, K, R = sizes.d_inner, sizes.d_state, sizes.d_conv, sizes.dt_rank
        self.shapes = (K - 1, D), (N, D)
        self.parts, self.epsilon = (R, N, N), sizes.mixer_epsilon
        self.in_proj = nn.Linear(sizes.d_model, 2 * D, bias=sizes.bias)
        self.conv1d = nn.Conv1d(D, D, K, groups=D, bias=sizes.conv_bias)
        self.x_proj = nn.Linear(D, sum(self.parts), bias=False)
        self.dt_proj = nn.Linear(R, D)
        self.A_log, self.D = nn.Parameter(torch.zeros(D, N)), nn.Parameter(torch.zeros(D))
        self.out_proj = nn.Linear(D, sizes.d_model, bias=sizes.bias)

    def forward(self, x: Tensor, conv: Tensor, ssm: Tensor, chunks: Chunks | None) -> tuple[Tensor, Tensor, Tensor]:
        inputs, gate = self.in_proj(x).chunk(2, dim=2)  # (B, S, D) each
        u, conv = convolution(self.conv1d, inputs, conv)
        u = u.transpose(0, 1).contiguous()  # (S, B, D): the recurrence reads token by token
        selected = self.x_proj(u).split(self.parts, dim=2)
        if self.epsilon is not None:
            selected = tuple(F.rms_norm(part, part.shape[2:], eps=self.epsilon) for part in selected)
        dt, B, C = selected  # (S, B, R), (S, B, N), (S, B, N)
        dt = F.softplus(self.dt_proj(dt.contiguous()))  # (S, B, D); views of sizes one would fix S
        rates = -self.A_log.exp().T.contiguous()  # (N, D)

        def advance(carry: tuple[Tensor, ...], row: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
            (h,), (dt, drive, B, C) = carry, row  # (B, N, D), (B, 1, D), (B, 1, D), (B, N, 1), (B, 1, N)
            after = torch.exp(dt * rates) * h + drive * B
            if rates.numel() == 1:  # torch loses the sizes of a carry of one number
                after = after.view_as(h)
            return (after,), C @ after  # (B, 1, D)

        rows = dt.unsqueeze(2), (dt * u).unsqueeze(2), B.unsqueeze(3), C.unsqueeze(2)
        (ssm,), y = scan(advance, (ssm,), rows)
        y = (y.view(u.shape) + u * self.D).transpose(0, 1)  # (B, S, D)
        return self.out_proj(y * F.silu(gate)), conv, ssm


class Mamba1(StateSpaceModel):
    """Mamba or Falcon-Mamba. Its state has the inputs `conv` (L, K - 1, d_inner) and `ssm` (L, d_state, d_inner)."""

    mixer = _MambaMixer
