"""Segments, memory and settings of the model; test_encodings.py compares it with the formulas of the paper."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.training.conftest import SMALL
from xltraining.errors import ConfigError
from xltraining.transformer_xl import TransformerXL

MakeModel = Callable[..., TransformerXL]


def tokens_of(B: int, S: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 20, (B, S), generator=torch.Generator().manual_seed(seed))


def walk(model: TransformerXL, tokens: Tensor) -> Tensor:
    """Return hidden states (B,S,D) of segments of 10 tokens."""
    memory, parts = model.first_memory(len(tokens)), []
    for segment in tokens.split(10, dim=1):
        hidden, memory = model(segment, memory)
        parts.append(hidden)
    return torch.cat(parts, dim=1)


def test_gradient_stops_at_the_memory(make_model: MakeModel) -> None:
    model = make_model()
    memory = [layer.requires_grad_() for layer in [torch.randn(1, 4, 12) for _ in range(3)]]
    hidden, new_memory = model(tokens_of(1, 6), memory)
    assert hidden.requires_grad
    assert not any(layer.requires_grad for layer in new_memory)


@torch.no_grad()
def test_evaluation_settings_leave_the_model_as_it_was(make_model: MakeModel) -> None:
    model = make_model()
    tokens = tokens_of(1, 30)
    before = walk(model, tokens)
    longer = model.with_evaluation(mem_len=20, clamp_len=5, same_length=True)
    assert (longer.config.mem_len, longer.config.clamp_len, longer.config.window) == (20, 5, 20)
    assert longer.word_emb is model.word_emb
    expected = make_model(mem_len=20, clamp_len=5, same_length=True)
    assert torch.equal(walk(longer, tokens), walk(expected, tokens))
    assert torch.equal(walk(model, tokens), before)
    with pytest.raises(ConfigError):
        model.with_evaluation(mem_len=-1)


def test_dropout_acts_in_training_only() -> None:
    model = TransformerXL(replace(SMALL, dropout=0.5, dropatt=0.5))
    tokens = tokens_of(1, 6)
    assert not torch.equal(model.train()(tokens)[0], model(tokens)[0])
    assert torch.equal(model.eval()(tokens)[0], model(tokens)[0])
