"""Layers in a store: the numbers of a run without one, and memory of one layer at a time."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.reformers import SMALL, layers_of, make, tokens_of
from tests.training.runs import REFORMER, equal
from xltraining.errors import CheckpointWriteError, ConfigError
from xltraining.layers import swapping
from xltraining.layers.swapping import LayerStore
from xltraining.loop.optimizers import make_optimizers
from xltraining.loop.train import TrainingConfig, train
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXLConfig

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the allocator of this process as it is, because other tests use it, too."""
    monkeypatch.setattr(swapping, "_give_back_freed_blocks", lambda: None)


def updated(model: Reformer, store: LayerStore | None) -> dict[str, Tensor]:
    """Return the weights after two updates, each by the gradients of two segments."""
    optimizers = make_optimizers(TrainingConfig(learning_rate=0.01), model.train().named_parameters())
    tokens = tokens_of(2, 60)
    torch.manual_seed(3)
    for _ in range(2):
        optimizers.zero_grad()
        for part in tokens.split(30, dim=1):
            model.loss(model(part)[0], part).backward()
        if store is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizers.step()
        else:
            store.update(model, optimizers.parts, 0.5)
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def test_layers_that_are_copied_to_the_device() -> None:
    """Try what a GPU needs on the CPU: layers rest in one place, and compute with copies in another."""
    changes: dict[str, Any] = {"dropout": 0.2, "redraw_hashes": True}
    expected = updated(make(**changes), None)
    model = make(**changes)
    store = LayerStore(CPU, copies=True)
    model.swap_layers(store)
    assert equal(updated(model, store), expected)


def resident(folder: Path) -> int:
    """Return the bytes of this process's memory that hold pages of files in a folder."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = f" {folder}/" in line
        elif ours and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.full
def test_one_layer_is_in_memory_at_a_time(tmp_path: Path, training: bool) -> None:
    config = replace(SMALL, attn_layers=("local", "lsh") * 4, d_inner=512)
    store = LayerStore(CPU, tmp_path)
    model = Reformer(config, store)
    layer = sum(tensor.nbytes for tensor in layers_of(model)[1].state_dict().values())
    assert layer > 50_000
    assert resident(tmp_path) == 0
    seen: list[int] = []
    for one in layers_of(model):
        one.feed_forward.register_forward_hook(lambda *_: seen.append(resident(tmp_path)))
    model.train(training)
    tokens = tokens_of(2, 30)
    if training:
        model.loss(model(tokens)[0], tokens).backward()
        assert len(seen) == 16
        optimizers = make_optimizers(TrainingConfig(), model.named_parameters())
        store.update(model, optimizers.parts, 1.0)
    else:
        with torch.no_grad():
            model(tokens)
        assert len(seen) == 8
    # The kernel reads some neighbouring pages, too, but none of another file.
    assert all(0.5 * layer < found < 1.5 * layer for found in seen)
    assert resident(tmp_path) == 0


_PEAK = """
import json, sys
from pathlib import Path
from experiments.reformer_table3 import MODELS, cell

print(json.dumps(cell(MODELS[-1], 256, int(sys.argv[1]), 64, Path(sys.argv[2]))))
"""


@pytest.mark.release
def test_memory_of_a_run_does_not_grow_with_its_weights(tmp_path: Path) -> None:
    """Measure it in a process of its own, with the allocator's own settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found = []
    for layers in (4, 12):
        folder = tmp_path / str(layers)
        folder.mkdir()
        command = [sys.executable, "-c", _PEAK, str(layers), str(folder)]
        measured = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
        found.append(json.loads(measured))
    fewer, more = found
    assert more["pages"] == pytest.approx(fewer["pages"], rel=0.02)
    # Weights, gradients and the optimizer's state are four times the weights. The rest are objects of Python.
    assert more["peak"] - fewer["peak"] < 0.03 * 4 * (more["weights"] - fewer["weights"])


@torch.no_grad()
def test_a_trained_model_is_evaluated_from_a_store(tmp_path: Path) -> None:
    model, tokens = make(), tokens_of(2, 30)
    expected, _ = model(tokens)
    fewer, _ = model.with_evaluation(n_hashes=1)(tokens)
    model.swap_layers(LayerStore(CPU, tmp_path))
    assert torch.equal(model(tokens)[0], expected)
    assert torch.equal(model.with_evaluation(n_hashes=1)(tokens)[0], fewer)
    assert model.to("cpu") is model and resident(tmp_path) == 0


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (REFORMER, {"reversible": False, "compile": True}, "swap_layers needs other values of reversible, compile"),
        (REFORMER, {"average_from": 0.5}, "swap_layers needs other values of average_from"),
        (replace(REFORMER, residual="ordinary"), {}, "swap_layers needs reversible layers, found residual 'ordinary'"),
        (TransformerXLConfig(), {}, "swap_layers needs a Reformer, found a Transformer-XL"),
    ],
    ids=["not reversible", "average", "ordinary", "Transformer-XL"],
)
def test_runs_without_layers_to_swap_are_refused(
    tmp_path: Path, text: Path, config: ReformerConfig, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config, TrainingConfig(swap_layers=True, batch_size=2, **settings), [text], [], tmp_path / "run")


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CheckpointWriteError, match=r"no file of [\d,]+ bytes for a layer \(No space left"):
        Reformer(SMALL, LayerStore(CPU, tmp_path))
    assert not list(tmp_path.iterdir())
