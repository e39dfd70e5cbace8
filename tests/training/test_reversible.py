"""Reversible layers: the gradients of ordinary backpropagation, without its activations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.reformers import make, tokens_of
from tests.training.runs import saved_bytes
from xltraining.reformer import Reformer, attention, lsh

DROPPING: dict[str, Any] = {"dropout": 0.2, "dropatt": 0.1}


def gradients(model: Reformer, reversible: bool, dtype: torch.dtype | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """Return the gradients of a second segment's loss in training mode, by name, and the next random numbers."""
    model.train().zero_grad()
    model.reversible = reversible
    device = model.word_emb.weight.device
    tokens = tokens_of(2, 41).to(device)
    torch.manual_seed(3)
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        memory = None if model.config.whole_document else model(tokens[:, :17])[1]
        hidden, _ = model(tokens[:, 17:], memory)
        loss = model.loss(hidden, tokens[:, 17:], chunk=10)
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, torch.rand(4, device=device)


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the largest difference between gradients, relative to each gradient's norm."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).norm() / first[name].norm()) for name in first)


VARIANTS: list[dict[str, Any]] = [
    {},
    DROPPING,
    {**DROPPING, "redraw_hashes": True},
    {**DROPPING, "ff_chunk": 5, "streams": "mean"},
    {**DROPPING, "rule": "chunk", "attn_layers": ("lsh", "local"), "chunk_length": 4, "local_chunk_length": 8},
    {**DROPPING, "attn_layers": ("lsh",) * 8, "position": "rotary", "max_positions": 0},
    {"rule": "paper"},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_gradients_equal_ordinary_backpropagation(changes: dict[str, Any]) -> None:
    model = make(**changes)
    (ordinary, number), (recomputed, other) = gradients(model, False), gradients(model, True)
    assert len(recomputed) == len(list(model.parameters()))
    assert largest_difference(ordinary, recomputed) < 1e-11  # float64, through inputs computed back from outputs
    assert torch.equal(number, other)  # random numbers continue as if nothing had been computed twice


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_gradients_on_cuda(changes: dict[str, Any]) -> None:
    """Compare on CUDA, which has its own random generator."""
    model = make(**changes).cuda()
    (ordinary, number), (recomputed, other) = gradients(model, False), gradients(model, True)
    assert largest_difference(ordinary, recomputed) < 1e-11
    assert torch.equal(number, other)


@pytest.mark.parametrize("changes", [DROPPING, {**DROPPING, "attn_layers": ("local", "lsh") * 6}], ids=str)
def test_gradients_in_float32(changes: dict[str, Any]) -> None:
    """Compare in the precision of training: through 12 layers, rounding errors of the inputs stay below 1e-5."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Reformer(make(**changes).config)
    assert largest_difference(gradients(model, False)[0], gradients(model, True)[0]) < 1e-5


def test_gradients_in_bfloat16_autocast() -> None:
    """Check that recomputation uses the forward pass's precision: rounding errors differ, no gradient is lost."""
    model = make(**DROPPING).float()
    ordinary, _ = gradients(model, False, torch.bfloat16)
    recomputed, _ = gradients(model, True, torch.bfloat16)
    # bfloat16 has 8 bits: a number that rounds the other way is off by 4e-3, relative to itself.
    assert largest_difference(ordinary, recomputed) < 2e-2
    single, _ = gradients(model, True)
    assert largest_difference(single, recomputed) > 1e-3  # it did run in bfloat16


def test_nothing_is_hashed_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = make(**DROPPING).train(), []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return lsh.hash_vectors(*args)

    monkeypatch.setattr(attention, "hash_vectors", counted)
    tokens = tokens_of(1, 30)
    loss = model.loss(model(tokens)[0], tokens)
    assert len(calls) == 2  # one for each LSH layer
    loss.backward()
    assert len(calls) == 2


def test_frozen_parameters_get_no_gradient() -> None:
    model = make()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" not in name and "value" not in name)
    ordinary, recomputed = gradients(model, False)[0], gradients(model, True)[0]
    assert not any("layers.1" in name or "value" in name for name in recomputed)
    assert largest_difference(ordinary, recomputed) < 1e-11


def test_no_activations_wait_for_the_backward_pass() -> None:
    """Check this for any number of layers."""
    tokens, sizes = tokens_of(2, 30), {}
    for reversible in (True, False):
        for layers in (2, 8):
            model = make(attn_layers=("local", "lsh") * (layers // 2)).train()
            model.reversible = reversible
            sizes[reversible, layers] = saved_bytes(model, tokens, tokens)
    assert sizes[True, 8] == sizes[True, 2] > 0
    assert sizes[False, 8] > 3 * sizes[False, 2]


def test_without_gradients_nothing_is_kept() -> None:
    model, tokens = make().train(), tokens_of(1, 30)
    with torch.no_grad():
        hidden, _ = model(tokens)
    assert not hidden.requires_grad
    torch.testing.assert_close(hidden, model.eval()(tokens)[0])  # dropout 0: training and evaluation are one
