"""The policies of `samples/models` against loops over all steps, written from the papers, in float64."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.paths import ROOT

STEPS = 150  # more than twice the memory


def gate(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Compute g(x, y) of a vector each: equations of section 3.2 for GRU-type gating (Parisotto et al. 2020)."""
    D = len(x)
    W_r, W_z, W_g = module.of_y.weight.split(D)
    U_r, U_z = module.of_x.weight.split(D)
    r = torch.sigmoid(W_r @ y + U_r @ x)
    z = torch.sigmoid(W_z @ y + U_z @ x - module.bias)
    h = torch.tanh(W_g @ y + module.of_state.weight @ (r * x))
    return (1 - z) * x + z * h


def attend(module: Any, rows: list[Tensor]) -> Tensor:
    """Attend from the last of the newest rows to all of them: equations of section 3.3 of Dai et al. 2019."""
    rows, d = rows[-module.M - 1 :], module.d
    W_q, W_k, W_v = module.qkv.weight.split(module.H * d)
    heads = []
    for head in range(module.H):
        part = slice(head * d, (head + 1) * d)
        query, scores = W_q[part] @ rows[-1], []
        u, v = module.content_bias[head, 0], module.position_bias[head, 0]
        for age, row in enumerate(reversed(rows)):
            angles = age * module.frequencies
            position = module.position.weight[part] @ torch.cat([angles.sin(), angles.cos()])
            scores.append(((query + u) @ (W_k[part] @ row) + (query + v) @ position) / d**0.5)
        weights = torch.stack(scores).softmax(dim=0)
        heads.append(sum(weight * (W_v[part] @ row) for weight, row in zip(weights, reversed(rows), strict=True)))
    return module.out.weight @ torch.cat(heads)


@pytest.mark.full
@torch.no_grad()
def test_gated_transformer_xl_policy_against_the_equations() -> None:
    torch.manual_seed(1)
    kind = runpy.run_path(str(ROOT / "samples/models/gated_transformer_xl_policy.py"))["GatedTransformerXLPolicy"]
    policy: Any = kind(O=3, A=2, D=8, L=2, H=2, M=16).double()
    observations = torch.randn(1, STEPS, 3, dtype=torch.float64)
    state = {name: value[None] for name, value in policy.first_state().items()}
    state = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
    logits: list[Tensor] = []
    for length in (1, 7, 40, STEPS - 48):  # cuts
        part = observations[:, sum(len(one) for one in logits) :][:, :length]
        outputs, state = policy.segment({"observation": part}, state)
        logits.append(outputs["logits"][0])
    inputs: list[list[Tensor]] = [[] for _ in policy.layers]  # normalised rows of each layer
    for step in range(STEPS):
        x = policy.encoder(observations[0, step])
        for rows, layer in zip(inputs, policy.layers, strict=True):
            rows.append(layer.norms[0](x))
            x = gate(layer.gates[0], x, attend(layer.attention, rows).relu())
            x = gate(layer.gates[1], x, layer.mlp(layer.norms[1](x)).relu())
        torch.testing.assert_close(torch.cat(logits)[step], policy.actor(x), rtol=0, atol=1e-12)
