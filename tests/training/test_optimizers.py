"""Optimizers and schedules: their formulas, the weights that decay, and runs that resume bit for bit."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from tests.training.conftest import SMALL
from xltraining.data.tasks import text_task
from xltraining.loop.optimizers import Optimizers, learning_rate, make_optimizers
from xltraining.loop.processes import Processes
from xltraining.loop.train import TrainingConfig
from xltraining.loop.updates import Updates
from xltraining.transformer_xl import TransformerXL

MODEL = replace(SMALL, n_token=256, n_layer=1)
TRAINING = TrainingConfig(steps=6, batch_size=2, warmup_steps=2, log_every=1, checkpoint_every=100, threads=1)
RATE, DECAY = 0.01, 0.3
Optimizer = Literal["adam", "adamw", "adafactor", "muon"]
Schedule = Literal["cosine", "inverse_sqrt", "constant"]


def model_and_optimizers(optimizer: Optimizer) -> tuple[TransformerXL, Optimizers]:
    config = replace(TRAINING, optimizer=optimizer, learning_rate=RATE, weight_decay=DECAY)
    model = TransformerXL(MODEL)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model, make_optimizers(config, model.named_parameters())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {0: 0.1, 4: 0.5, 9: 1, 10: 1, 60: 1, 110: 1}),
        ("cosine", {0: 0.1, 9: 1, 10: 1, 35: 0.1 + 0.9 * (1 + 0.5**0.5) / 2, 60: 0.55, 110: 0.1, 500: 0.1}),
        ("inverse_sqrt", {0: 0.1, 9: 1, 39: 0.5, 89: 1 / 3, 999: 0.1, 10_000: 0.1}),
    ],
)
def test_schedules_against_their_formulas(schedule: Schedule, expected: dict[int, float]) -> None:
    config = replace(TRAINING, schedule=schedule, steps=110, warmup_steps=10, learning_rate=0.2, min_lr_ratio=0.1)
    found = {step: learning_rate(config, step) / 0.2 for step in expected}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adafactor", "muon"])
def test_all_weights_follow_the_schedule(optimizer: Optimizer) -> None:
    """Make the first update of an endless warm-up, whose learning rate is almost nothing."""
    config = replace(TRAINING, optimizer=optimizer, learning_rate=RATE, weight_decay=DECAY, warmup_steps=10**9)
    updates = Updates(TransformerXL(MODEL).train(), config, Processes())
    before = {name: weight.clone() for name, weight in updates.model.state_dict().items()}
    text = torch.arange(256).repeat(4).to(torch.uint8)
    updates.do(text_task(text, text[:0], config, MODEL.tgt_len), 0)
    for name, weight in updates.model.state_dict().items():
        torch.testing.assert_close(weight, before[name], atol=1e-7, rtol=0, msg=name)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_matrices_decay_and_vectors_do_not(optimizer: Optimizer) -> None:
    model, optimizers = model_and_optimizers(optimizer)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.step()
    for name, parameter in model.named_parameters():
        factor = 1 - RATE * DECAY if parameter.ndim > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)
    assert {parameter.ndim for parameter in model.parameters()} == {1, 2}


def test_muon_has_the_matrices_of_the_layers_and_adamw_the_rest() -> None:
    model, optimizers = model_and_optimizers("muon")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    adamw, muon = (
        {names[id(parameter)] for group in part.param_groups for parameter in group["params"]}
        for part in optimizers.parts
    )
    assert adamw | muon == set(names.values()) and not adamw & muon
    assert {"layers.0.attention.qkv.weight", "layers.0.feed_forward.inner.weight"} <= muon
    assert all(name.startswith("layers.0.") and name.endswith(".weight") for name in muon)
    assert {"layers.0.attention.content_bias", "layers.0.attention.norm.weight", "word_emb.clusters.0.table"} <= adamw


def test_muon_makes_an_update_as_large_as_that_of_adamw() -> None:
    model, optimizers = model_and_optimizers("muon")
    weight = model.get_parameter("layers.0.feed_forward.inner.weight")
    before = weight.detach() * (1 - RATE * DECAY)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    optimizers.step()
    values = torch.linalg.svdvals((weight.detach() - before) / RATE)
    # Liu et al. 2025: an orthogonal matrix times 0.2 sqrt(its longer side); Muon's iteration is exact to a third.
    assert ((values / (0.2 * math.sqrt(max(weight.shape))) - 1).abs() < 1 / 3).all()


def test_adafactor_steps_in_proportion_to_the_weight() -> None:
    model, optimizers = model_and_optimizers("adafactor")
    weight = model.get_parameter("layers.0.feed_forward.inner.weight")
    before = weight.detach().clone()
    rows, columns = (torch.arange(1.0, 1 + size) * (-1) ** torch.arange(size) for size in weight.shape)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    weight.grad = torch.outer(rows, columns)  # of rank 1: the factored second moment is exact
    optimizers.step()
    expected = before * (1 - RATE * DECAY) - RATE * before.square().mean().sqrt() * weight.grad.sign()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_training_does_not_load_the_compiler_of_torch(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.training.test_optimizers import MODEL, model_and_optimizers
from xltraining.checkpoint import build_model, load_checkpoint, save_checkpoint
for optimizer in ("adam", "adamw", "adafactor", "muon"):
    model, optimizers = model_and_optimizers(optimizer)
    hidden, _ = model(sys.modules["torch"].ones(1, 3, dtype=int))
    optimizers.zero_grad()
    hidden.sum().backward()
    optimizers.step()
    optimizers.load_state_dict(optimizers.state_dict())
    save_checkpoint(Path(sys.argv[1]), MODEL, model.state_dict())
    build_model(load_checkpoint(Path(sys.argv[1])))
    assert "torch._dynamo" not in sys.modules, optimizer
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "checkpoint.pt")], check=True, timeout=240)
