"""Runs of all models and optimizers that were stopped and resumed have the numbers of an unbroken run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from tests.helpers.tiers import thinned
from tests.helpers.tiny import ENCODER_DECODER
from tests.training.conftest import SMALL
from tests.training.runs import REFORMER, TEXT, resumed_like_whole
from xltraining.checkpoint import load_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.layers import swapping
from xltraining.loop.train import TrainingConfig

TRANSFORMER_XL = replace(SMALL, n_token=256, n_layer=2, dropout=0.1)
ROTARY = replace(REFORMER, position="rotary", max_positions=0)
TRAINING = TrainingConfig(
    steps=9, batch_size=3, learning_rate=1e-2, warmup_steps=3, log_every=1, eval_every=3, checkpoint_every=5, threads=1
)
Optimizer = Literal["adam", "adamw", "adafactor", "muon"]


class Case(NamedTuple):
    """A model, the settings of its training, and a name for the files that it trains on."""

    model: ModelConfig
    settings: dict[str, Any]
    files: str = "text"


CASES: dict[str, Case] = {
    "adamw": Case(TRANSFORMER_XL, {"optimizer": "adamw", "weight_decay": 0.01}),
    "adafactor": Case(TRANSFORMER_XL, {"optimizer": "adafactor", "weight_decay": 0.01}),
    "muon": Case(TRANSFORMER_XL, {"optimizer": "muon", "weight_decay": 0.01}),
    "averaged": Case(TRANSFORMER_XL, {"average_from": 0.2, "loss": "half", "auxiliary": True}),
    "Reformer": Case(REFORMER, {}),
    "redrawn": Case(replace(REFORMER, redraw_hashes=True), {}),
    "rotary": Case(ROTARY, {"optimizer": "adafactor", "learning_rate": 0.05}),
    "not reversible": Case(replace(REFORMER, ff_chunk=5), {"reversible": False}),
    "pairs": Case(replace(ENCODER_DECODER, dropout=0.2), {"batch_size": 2}, "pairs"),
}
SWAPPED: dict[str, Case] = {
    "groups": Case(replace(REFORMER, dropatt=0.1), {"micro_batches": 3}),
    "adafactor": Case(replace(REFORMER, redraw_hashes=True), {"optimizer": "adafactor", "learning_rate": 0.05}),
    "muon in bfloat16": Case(replace(REFORMER, ff_chunk=5, full_chunk=7), {"optimizer": "muon", "bf16": True}),
    "adamw": Case(REFORMER, {"optimizer": "adamw", "weight_decay": 0.1, "best": True}),
}


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], list[Path]]:
    """Write the files of a case."""

    def written(name: str) -> list[Path]:
        contents = {"text": TEXT, "pairs": b"ab\tba\nabc\tcba\n\tx\nlonger one!\tlonger!!\n"}
        (tmp_path / name).write_bytes(contents[name])
        return [tmp_path / name]

    return written


@pytest.mark.parametrize("name", thinned(list(CASES), ["muon", "averaged", "redrawn", "rotary", "pairs"]))
@pytest.mark.full
def test_a_resumed_run_is_bit_identical(name: str, tmp_path: Path, files: Callable[[str], list[Path]]) -> None:
    case = CASES[name]
    training, texts = replace(TRAINING, **case.settings), files(case.files)
    content = resumed_like_whole(case.model, training, tmp_path, texts, stop=7)
    assert load_checkpoint(tmp_path / "parts" / "checkpoint.pt").config == case.model
    if name == "averaged":
        assert content["training"]["averaging"]["averaged"] == 8


@pytest.mark.parametrize("name", thinned(list(SWAPPED), ["groups"]))
@pytest.mark.release
def test_swapped_layers_change_no_number(
    name: str, tmp_path: Path, files: Callable[[str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare a run with a store, which is stopped and resumed, with a run without one."""
    monkeypatch.setattr(swapping, "_give_back_freed_blocks", lambda: None)  # other tests use this process's allocator
    case = SWAPPED[name]
    training = replace(TRAINING, **case.settings)
    resumed_like_whole(case.model, training, tmp_path, files("text"), 7, replace(training, swap_layers=True))
