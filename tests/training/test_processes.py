"""Several processes train as one does: the same groups of rows give the same weights, bit for bit."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import quiet
from xltraining.architectures import new_model
from xltraining.checkpoint import load_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.errors import ConfigError
from xltraining.language_model import LanguageModel
from xltraining.loop.processes import Processes
from xltraining.loop.train import TrainingConfig, train
from xltraining.loop.updates import Updates
from xltraining.reformer import ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

SIZE: dict[str, Any] = {"n_head": 2, "d_model": 16, "d_head": 8, "d_inner": 32, "tgt_len": 8, "mem_len": 8}
MODEL = TransformerXLConfig(n_layer=2, dropout=0.1, cutoffs=(64,), **SIZE)
MODELS: dict[str, ModelConfig] = {
    "transformer_xl": MODEL,
    "reformer": ReformerConfig(
        attn_layers=("local", "lsh"), n_buckets=(4,), chunk_length=4, local_chunk_length=4, position="rotary",
        max_positions=0, dropout=0.1, **SIZE,
    ),
}  # fmt: skip
SHARDED = ("transformer_xl",)
STEPS = 30
PROGRAM = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
import torch.distributed as dist
from tests.training.test_processes import MODELS, SHARDED, STEPS, training
from xltraining.loop.processes import leave
from xltraining.loop.train import train

text, out, model = Path(sys.argv[1]), Path(sys.argv[2]), MODELS[sys.argv[3]]

def run(name, resume=False, stop=None, **changes):
    def on_step(step):
        if step == stop and dist.get_rank() == 1:  # Ctrl-C in one process stops all of them
            os.kill(os.getpid(), signal.SIGINT)
    train(model, replace(training(), **changes), [text], [], out / name, resume=resume,
          report=lambda line: None, on_step=on_step)

dist.init_process_group("gloo")
run("two")
run("stopped in two", stop=10)
run("stopped in two", resume=True)
run("two, then one", stop=10, micro_batches=None)
run("one, then two", resume=True)
if sys.argv[3] in SHARDED:
    run("sharded, then one", sharded=True, stop=10)
    run("one, then sharded", resume=True, sharded=True)
dist.destroy_process_group()
leave(0)
"""


def training() -> TrainingConfig:
    return TrainingConfig(
        steps=STEPS, batch_size=4, micro_batches=2, warmup_steps=5, log_every=10, checkpoint_every=1000, threads=1
    )


def difference(left: Path, right: Path) -> float:
    weights, others = (load_checkpoint(folder / "checkpoint.pt").state_dict for folder in (left, right))
    return max((tensor - others[name]).abs().max().item() for name, tensor in weights.items())


@pytest.mark.release
@pytest.mark.parametrize("architecture", MODELS)
def test_two_processes_train_as_one(tmp_path: Path, text: Path, architecture: str) -> None:
    model = MODELS[architecture]

    def run(name: str, resume: bool = False) -> None:
        train(model, training(), [text], [], tmp_path / name, resume=resume, report=quiet)

    run("one")
    _stopped(model, text, tmp_path / "one, then two")
    _stopped(model, text, tmp_path / "one, then sharded")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-W", "error::FutureWarning", "-c", PROGRAM, str(text), str(tmp_path), architecture]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    run("two, then one", resume=True)
    if architecture in SHARDED:
        run("sharded, then one", resume=True)

    for name in ("two", "stopped in two", "two, then one", "one, then two"):
        assert difference(tmp_path / name, tmp_path / "one") == 0, name
    if architecture in SHARDED:
        for name in ("sharded, then one", "one, then sharded"):  # the gradient's norm is summed in another order
            assert difference(tmp_path / name, tmp_path / "one") < 1e-6, name
    logs = [
        [json.loads(line)["bits_per_byte"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two", "stopped in two")
    ]
    assert logs[0] == pytest.approx(logs[1], abs=1e-6)
    assert logs[1] == logs[2]


def _stopped(model: ModelConfig, text: Path, out: Path) -> None:
    """Stop a run after 10 updates."""

    def on_step(step: int) -> None:
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    train(model, training(), [text], [], out, report=quiet, on_step=on_step)


def test_groups_of_rows_give_the_update_of_the_whole_batch(tmp_path: Path, text: Path) -> None:
    for groups in (1, 2, 4):
        config = replace(training(), steps=3, micro_batches=groups, warmup_steps=0)
        train(replace(MODEL, dropout=0.0), config, [text], [], tmp_path / str(groups), report=quiet)
    for name in ("2", "4"):
        assert difference(tmp_path / "1", tmp_path / name) < 1e-5  # Adam's first updates magnify rounding


def test_rows_and_weights_that_processes_cannot_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"those of a Reformer run in parts\. Train without sharded"):
        Updates(new_model(MODELS["reformer"]), replace(training(), sharded=True), Processes(0, 2))
    model: LanguageModel = TransformerXL(MODEL)
    with pytest.raises(ConfigError, match="3 processes must divide micro_batches 2, which must divide batch_size 4"):
        Updates(model, training(), Processes(0, 3))
