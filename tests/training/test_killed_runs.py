"""Training in a folder in which an earlier run was killed, and numbers that no configuration has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.errors import CheckpointWriteError, ConfigError
from xltraining.train import TrainingConfig, train
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

SMALL = TransformerXLConfig(
    n_token=256, n_layer=1, n_head=1, d_model=8, d_head=4, d_inner=8, tgt_len=8, mem_len=8, dropout=0.0
)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[int]]:
    """Train this many steps in the folder `run`; return the steps in its log."""
    text = tmp_path / "text"
    text.write_bytes(b"It was the best of times, it was the worst of times. " * 20)

    def go(steps: int, resume: bool = False) -> list[int]:
        config = TrainingConfig(steps=steps, batch_size=2, log_every=1, checkpoint_every=2, warmup_steps=1, threads=1)
        train(SMALL, config, [text], [], tmp_path / "run", resume=resume, report=lambda line: None)
        return [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]

    return go


def test_run_without_a_checkpoint_starts_a_new_log(run: Callable[..., list[int]], tmp_path: Path) -> None:
    assert run(3) == [1, 2, 3]
    (tmp_path / "run" / "checkpoint.pt").unlink()
    assert run(3) == [1, 2, 3]


def test_folder_that_a_killed_save_set_aside_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = TransformerXL(SMALL), tmp_path / "checkpoint"
    save_checkpoint(path, SMALL, model.state_dict())
    path.rename(tmp_path / ".checkpoint.old")
    with pytest.raises(CheckpointWriteError, match=r"left by a killed run: rename it to checkpoint, or remove it"):
        save_checkpoint(path, SMALL, model.state_dict())
    (tmp_path / ".checkpoint.old").rename(path)
    load_checkpoint(path)


@pytest.mark.parametrize("number", [10**400, float("nan"), True, "0.1", None])
def test_numbers_that_no_float_holds_are_refused(number: object) -> None:
    with pytest.raises(ConfigError, match="dropout must be a finite number, found"):
        TransformerXLConfig.from_dict({**SMALL.to_dict(), "dropout": number})
