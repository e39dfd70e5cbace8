"""The LSTM and Mamba: other code for them, any cut of a document, training, and bundles of their checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.weights import random_model
from tests.training.runs import read_log, resumed_like_whole
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xltraining.architectures import new_model
from xltraining.checkpoint import build_model, load_checkpoint, save_checkpoint
from xltraining.loop.train import TrainingConfig
from xltraining.recurrent import LSTMConfig, MambaConfig, selective_scan
from xltraining.recurrent.config import RecurrentModelConfig

SIZES: dict[str, Any] = {"n_token": 20, "n_layer": 2, "d_model": 6, "tie_weight": False, "dropout": 0.0}
CONFIGS = [LSTMConfig(**SIZES), MambaConfig(**SIZES, d_state=3, d_conv=3)]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])


def model_of(config: RecurrentModelConfig) -> Any:
    return random_model(lambda: new_model(config))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
@pytest.mark.parametrize("length", [1, 2, 4, 10])
def test_any_cut_gives_the_same(config: RecurrentModelConfig, length: int) -> None:
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
def test_gradients_end_at_the_start_of_the_segment(config: RecurrentModelConfig) -> None:
    model = model_of(config)
    _, memory = model(torch.tensor([[1, 2, 3]]))
    hidden, _ = model(torch.tensor([[4, 5, 6]]), memory)
    hidden[:, -1].sum().backward()
    moved = model.word_emb.weight.grad.abs().sum(dim=1)
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]


@torch.inference_mode()
def test_mamba_is_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import MambaConfig as TheirConfig
    from transformers import MambaModel

    monkeypatch.setattr(selective_scan, "_CACHED", 1)  # channel by channel
    model, sizes = model_of(CONFIGS[1]), {"vocab_size": 20, "hidden_size": 6, "num_hidden_layers": 2}
    theirs = MambaModel(TheirConfig(**sizes, state_size=3, conv_kernel=3, time_step_rank=1))
    weights = {re.sub(r"(layers\.\d\.)(?!norm)", r"\1mixer.", name): one for name, one in model.state_dict().items()}
    weights["embeddings.weight"] = weights.pop("word_emb.weight")
    theirs.load_state_dict({name: one for name, one in weights.items() if not name.startswith("head")})
    torch.testing.assert_close(model(TOKENS)[0], theirs(TOKENS).last_hidden_state, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_the_lstm_is_that_of_torch() -> None:
    model, other = model_of(CONFIGS[0]), nn.LSTM(6, 6, 2)
    other.load_state_dict(model.lstm.state_dict())
    expected, (h, c) = other(model.word_emb(TOKENS).transpose(0, 1))
    hidden, memory = model(TOKENS)
    torch.testing.assert_close(hidden, expected.transpose(0, 1))
    torch.testing.assert_close(memory, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)})


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
@pytest.mark.full
def test_training_learns_and_resumes_bit_for_bit(config: RecurrentModelConfig, tmp_path: Path, text: Path) -> None:
    tied = replace(config, n_token=256, d_model=32, tgt_len=16, tie_weight=True, dropout=0.1)
    settings: dict[str, Any] = {"batch_size": 3, "learning_rate": 2e-2, "warmup_steps": 3, "threads": 1}
    training = TrainingConfig(steps=40, log_every=5, eval_every=20, checkpoint_every=5, **settings)
    resumed_like_whole(tied, training, tmp_path, [text], stop=7)
    log = read_log(tmp_path / "whole")
    assert log[0]["bits_per_byte"] > 5 and log[-1]["valid_bits_per_byte"] < 3.3  # single bytes have an entropy of 3.46
    model = build_model(load_checkpoint(tmp_path / "whole" / "checkpoint.pt"))
    assert model.head.weight is model.word_emb.weight


@pytest.mark.full(cases=1)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.NAME)
def test_checkpoints_convert(config: RecurrentModelConfig, tmp_path: Path, cached_exports: None) -> None:
    model = model_of(replace(config, tgt_len=5))
    save_checkpoint(tmp_path / "model.pt", model.config, model.state_dict(), tokenizer=None)
    source = load(tmp_path / "model.pt")
    assert (source.architecture, source.config["model"]) == ("recurrent", config.NAME)
    options = ConversionOptions.of(tokenizer="none", threads=1, segments=50)
    assert convert(source, tmp_path / "bundle", options).report.max_abs_log_prob_diff < 1e-5
