"""The settings of `train` from a file, `--set` and the command line, and the curves that it writes."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from xlexport.architectures import Option
from xlexport.commands import train_progress
from xlexport.commands.train_settings import read_run_settings

MODEL = {name: Option(name, "integer", "") for name in ("n_layer", "d_model")}
TRAINING = {"steps": Option("steps", "integer", ""), "best": Option("best", "boolean", "")}


def test_overrides_take_the_place_of_the_values_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('data = ["data"]\n[model]\nn_layer = 2\nd_model = 64\n[training]\nsteps = 9\n')
    found = read_run_settings(file, ["model.n_layer=6", "training.best=true"], MODEL, TRAINING)
    assert (found.data, found.model) == ((tmp_path / "data",), {"n_layer": 6, "d_model": 64})
    assert found.training == {"steps": 9, "best": True}


def test_curves_of_tensorboard_are_the_numbers_of_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            written.append((folder,))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed",))

    package = types.ModuleType("torch.utils.tensorboard")
    package.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    monkeypatch.setattr(train_progress, "require", lambda name: None)
    with train_progress.curve_writers(tmp_path) as write:
        write({"step": 5, "loss": 2.5, "learning_rate": 0.1})
    assert written == [(str(tmp_path),), ("loss", 2.5, 5), ("learning_rate", 0.1, 5), ("closed",)]

    monkeypatch.setenv("RANK", "1")  # one process of a run writes
    with train_progress.curve_writers(tmp_path) as write:
        write({"step": 6, "loss": 2.4})
    assert len(written) == 4
