"""Short trainings, their logs and their ends, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltraining.config_fields import ModelConfig
from xltraining.data.tasks import Task
from xltraining.language_model import LanguageModel
from xltraining.loop.train import TrainingConfig, TrainingResult, train
from xltraining.reformer import ReformerConfig

TEXT = b"one potato, two potatoes, three potatoes, four; " * 40
REFORMER = ReformerConfig(
    d_model=16,
    n_head=2,
    d_head=8,
    d_inner=32,
    attn_layers=("local", "lsh", "full"),
    n_hashes=2,
    n_buckets=(4,),
    chunk_length=4,
    local_chunk_length=4,
    tgt_len=16,
    mem_len=24,
    axial_shape=(4, 16),
    axial_dims=(4, 12),
    max_positions=64,
    dropout=0.1,
)


def quiet(line: str) -> None:
    """Accept a report without printing it."""


def run(
    config: ModelConfig,
    training: TrainingConfig,
    out: Path,
    files: Sequence[Path] = (),
    valid_files: Sequence[Path] | None = None,
    **options: Any,
) -> TrainingResult:
    """Train in silence; the held-out files are those of training if none are given."""
    held_out = files if valid_files is None else valid_files
    return train(config, training, files, held_out, out, **{"report": quiet, **options})


def read_log(out: Path) -> list[dict[str, float]]:
    """Read the log without the speed, which is never the same twice."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def stop_at(step: int) -> Callable[[int], None]:
    """Stop after an update, as a killed process does."""

    def stop(done: int) -> None:
        if done == step:
            raise InterruptedError

    return stop


def equal(first: Any, second: Any) -> bool:
    """Return whether nested values are equal, tensors bit for bit."""
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def resumed_like_whole(
    config: ModelConfig,
    training: TrainingConfig,
    folder: Path,
    files: Sequence[Path],
    stop: int,
    changed: TrainingConfig | None = None,
    task: Task | None = None,
) -> dict[str, Any]:
    """Check that a run which was stopped and resumed has the log and all numbers of one that was not.

    Args:
        changed: the settings of the run that is stopped; None: `training`.
        task: what the model learns; None: the text of the files.

    Returns:
        The content of the checkpoint.
    """
    whole, parts = folder / "whole", folder / "parts"
    run(config, training, whole, files, task=task)
    try:
        run(config, changed or training, parts, files, on_step=stop_at(stop), task=task)
        raise AssertionError("the run was not stopped")
    except InterruptedError:
        with (parts / "log.jsonl").open("a") as log:
            log.write('{"step": 15, "bits_per')  # cut off in the middle of a line
    run(config, changed or training, parts, files, resume=True, task=task)
    assert read_log(parts) == read_log(whole)
    expected, resumed = (torch.load(out / "checkpoint.pt", weights_only=True) for out in (whole, parts))
    assert equal(resumed["state_dict"], expected["state_dict"])
    for name in ("optimizer", "memory", "random_state", "loss_sum", "averaging"):
        assert equal(resumed["training"][name], expected["training"][name]), name
    assert {path.name for path in parts.iterdir()} == {path.name for path in whole.iterdir()}
    assert abs((parts / "checkpoint.pt").stat().st_size - (whole / "checkpoint.pt").stat().st_size) < 2000
    return dict(resumed)


def saved_bytes(model: LanguageModel, tokens: Tensor, targets: Tensor) -> int:
    """Return the bytes of the distinct tensors that wait for the backward pass of a loss."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.grad_fn is not None:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(model(tokens)[0], targets)
    assert loss.requires_grad
    return sum(kept.values())
