"""The LSTM and Mamba: their equations, any cut of a document, training, and bundles of their checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.helpers.weights import random_model
from tests.training.runs import read_log, resumed_like_whole
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xltraining.architectures import new_model
from xltraining.checkpoint import build_model, load_checkpoint, save_checkpoint
from xltraining.loop.train import TrainingConfig
from xltraining.recurrent import LSTM, LSTMConfig, Mamba, MambaConfig
from xltraining.recurrent import selective_scan as scans

SIZES: dict[str, Any] = {"n_token": 20, "n_layer": 2, "d_model": 6, "tie_weight": False, "dropout": 0.0}
CONFIGS = [LSTMConfig(**SIZES), MambaConfig(**SIZES, d_state=3, d_conv=3)]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])


def model_of(config: LSTMConfig | MambaConfig) -> Any:
    return random_model(lambda: new_model(config))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
@pytest.mark.parametrize("length", [1, 2, 4, 10])
def test_any_cut_gives_the_same(config: LSTMConfig | MambaConfig, length: int) -> None:
    model = model_of(config)
    with torch.inference_mode():
        whole, last = model.segment(TOKENS, model.first_memory(2))
        memory, parts = None, []
        for tokens in TOKENS.split(length, dim=1):
            hidden, memory = model(tokens, memory)
            parts.append(model.logits(hidden))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-6, rtol=1e-5)
    for name, value in last.items():
        torch.testing.assert_close(memory[name], value, atol=2e-6, rtol=1e-5)
        assert value.shape[1:] == model.first_state()[name].shape and bool(value.any())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
def test_gradients_end_at_the_start_of_the_segment(config: LSTMConfig | MambaConfig) -> None:
    model = model_of(config)
    _, memory = model(torch.tensor([[1, 2, 3]]))
    hidden, _ = model(torch.tensor([[4, 5, 6]]), memory)
    hidden[:, -1].sum().backward()
    moved = model.word_emb.weight.grad.abs().sum(dim=1)
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]


def lstm_step(model: LSTM, x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Compute the layers for one row and token by the equations, and change the state."""
    for layer in range(model.config.n_layer):
        weight, recurrent, bias, other = (getattr(model.lstm, f"{name}_l{layer}") for name in
                                          ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))  # fmt: skip
        i, f, g, o = (weight @ x + bias + recurrent @ state["h"][layer] + other).chunk(4)
        state["c"][layer] = f.sigmoid() * state["c"][layer] + i.sigmoid() * g.tanh()
        x = state["h"][layer] = o.sigmoid() * state["c"][layer].tanh()
    return x


def mamba_step(model: Mamba, x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Compute the layers for one row and token by the equations, and change the state."""
    N, R = model.config.d_state, model.config.rank
    for layer, block in enumerate(model.layers):
        u, gate = (block.in_proj.weight @ (block.norm.weight * x / (x.square().mean() + 1e-5).sqrt())).chunk(2)
        rows = torch.cat([state["conv"][layer], u[None]])  # (K, E)
        state["conv"][layer] = rows[1:]
        u = F.silu((rows * block.conv1d.weight[:, 0].T).sum(dim=0) + block.conv1d.bias)
        dt, B, C = (block.x_proj.weight @ u).split([R, N, N])
        dt = (block.dt_proj.weight @ dt + block.dt_proj.bias).exp().log1p()
        h = (dt[:, None] * -block.A_log.exp()).exp() * state["ssm"][layer] + (dt * u)[:, None] * B
        state["ssm"][layer] = h
        x = x + block.out_proj.weight @ ((h @ C + block.D * u) * F.silu(gate))
    return model.norm_f.weight * x / (x.square().mean() + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("config", "step"), [*zip(CONFIGS, (lstm_step, mamba_step), strict=True)], ids=["LSTM", "Mamba"]
)
@torch.inference_mode()
def test_the_models_follow_their_equations(config: LSTMConfig | MambaConfig, step: Any) -> None:
    model = model_of(config).double()
    for row, hidden in zip(TOKENS, model(TOKENS)[0], strict=True):
        state = model.first_state()
        expected = torch.stack([step(model, model.word_emb.weight[token], state) for token in row])
        torch.testing.assert_close(hidden, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("S", [1, 2, 4, 7])
def test_gradients_of_the_recurrence(S: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(S)
    dt, x, B, C = (torch.rand(2, S, 3, dtype=torch.float64, requires_grad=True) for _ in range(4))
    A, first = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3), (2, 3, 3)))
    inputs = (dt, x, A, B, C, first)
    assert torch.autograd.gradcheck(scans.selective_scan, inputs)
    whole = scans.selective_scan(*inputs)
    monkeypatch.setattr(scans, "_CACHED", 1)  # channel by channel
    for part, expected in zip(scans.selective_scan(*inputs), whole, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
def test_training_learns_and_resumes_bit_for_bit(config: LSTMConfig | MambaConfig, tmp_path: Path, text: Path) -> None:
    tied = replace(config, n_token=256, d_model=32, tgt_len=16, tie_weight=True, dropout=0.1)
    settings = {"batch_size": 3, "learning_rate": 2e-2, "warmup_steps": 3, "threads": 1}
    training = TrainingConfig(steps=40, log_every=5, eval_every=20, checkpoint_every=5, **settings)
    resumed_like_whole(tied, training, tmp_path, [text], stop=7)
    log = read_log(tmp_path / "whole")
    assert log[0]["bits_per_byte"] > 5 and log[-1]["valid_bits_per_byte"] < 3.3  # single bytes have an entropy of 3.46
    model = build_model(load_checkpoint(tmp_path / "whole" / "checkpoint.pt"))
    assert model.head.weight is model.word_emb.weight


@pytest.mark.full
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
def test_checkpoints_convert(config: LSTMConfig | MambaConfig, tmp_path: Path, cached_exports: None) -> None:
    model = model_of(replace(config, tgt_len=5))
    save_checkpoint(tmp_path / "model.pt", model.config, model.state_dict(), tokenizer=None)
    source = load(tmp_path / "model.pt")
    assert (source.architecture, source.config["model"]) == ("recurrent", config.NAME)
    options = ConversionOptions.of(tokenizer="none", threads=1, verify_segments=50)
    assert convert(source, tmp_path / "bundle", options).max_abs_log_prob_diff < 1e-5
