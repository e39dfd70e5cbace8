"""Training with torch.compile, which needs a C++ compiler: the updates and checkpoints of a run without it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.invoking import Invoke
from tests.training.runs import read_log, run
from xltraining.checkpoint import load_checkpoint
from xltraining.loop.train import TrainingConfig
from xltraining.transformer_xl import TransformerXLConfig

pytestmark = [
    pytest.mark.native,
    # torch warns of what its own compiler does.
    pytest.mark.filterwarnings("ignore"),
]

# Without dropout, whose random numbers come from another generator in translated code.
MODEL = TransformerXLConfig(
    n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, tgt_len=8, mem_len=8, dropout=0.0, dropatt=0.0
)
TRAINING = TrainingConfig(
    steps=8, batch_size=2, learning_rate=1e-3, warmup_steps=2, log_every=1, checkpoint_every=4, threads=1
)


def test_updates_are_those_without_it_and_the_run_goes_on_without_it(
    prose: Path, tmp_path: Path, invoke: Invoke
) -> None:
    """Sums in another order differ by float32's rounding, 6e-8 of their terms, which eight updates make larger."""
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    run(MODEL, TRAINING, plain, [prose])
    run(MODEL, replace(TRAINING, compile=True), whole, [prose])
    losses, expected = ([line["bits_per_byte"] for line in read_log(out)] for out in (whole, plain))
    assert losses == pytest.approx(expected, rel=1e-5)
    weights, compiled = (load_checkpoint(out / "checkpoint.pt").state_dict for out in (plain, whole))
    assert list(compiled) == list(weights)  # no name of a wrapper
    for name, weight in weights.items():
        torch.testing.assert_close(compiled[name], weight, atol=1e-5, rtol=0)  # eight steps move one by up to 5e-3

    resumed = run(MODEL, replace(TRAINING, steps=9), whole, [prose], resume=True)
    assert resumed.step == 9 and not resumed.interrupted
    bundle = tmp_path / "model.bundle"
    invoke("convert", resumed.checkpoint, "-o", bundle).succeeded()
    invoke("verify", bundle, resumed.checkpoint).succeeded()


def test_a_machine_without_a_compiler_is_an_error(prose: Path, tmp_path: Path) -> None:
    options = ("--set=training.compile=true", "--steps", "1")
    command = [sys.executable, "-m", "xlexport", "train", prose, "-o", tmp_path / "run", *options]
    environment = os.environ | {"CXX": str(tmp_path / "missing"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    finished = subprocess.run([*map(str, command)], check=False, env=environment, stderr=subprocess.PIPE, text=True)
    assert finished.returncode != 0 and not (tmp_path / "run").exists()
    (line,) = finished.stderr.splitlines()
    assert "torch.compile does not work on this machine (" in line
    assert line.endswith("Install a C++ compiler such as g++, or train without compile.")
