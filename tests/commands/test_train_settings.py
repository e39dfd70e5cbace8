"""The settings of `train` from a file, `--set` and the command line, and the curves that it writes."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest

from tests.helpers.invoking import Invoke
from xlexport.commands.train import curve_writers, train
from xltraining.checkpoint import load_checkpoint
from xltraining.config_fields import options_of
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.reformer import ReformerConfig
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXLConfig


def test_the_command_line_takes_the_place_of_a_recipe(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(prose.read_bytes() * 9)
    recipe = tmp_path / "run.toml"
    recipe.write_text(
        'data = ["data"]\n[model]\nn_layer = 2\nd_model = 8\nclamp_len = 5\nuntie_r = false\n'
        "[training]\nsteps = 0\nbest = true\nclip = 2\n"
    )
    chosen = ("--n-layer", "1", "--no-best", "--set=model.clamp_len=6", "--n-head", "2")
    invoke("train", "-o", tmp_path / "run", "--settings", recipe, *chosen).succeeded()
    config = load_checkpoint(tmp_path / "run" / "checkpoint.pt").config
    assert isinstance(config, TransformerXLConfig)
    assert (config.n_layer, config.d_model, config.clamp_len, config.untie_r) == (1, 8, 6, False)


def test_every_setting_is_offered_once() -> None:
    options = [option for option in train.get_params(click.Context(train)) if isinstance(option, click.Option)]
    assert len([option for option in options if not option.hidden]) <= 40
    names = [option.name for option in options]
    assert len(names) == len(set(names))
    for kind in (TrainingConfig, TransformerXLConfig, ReformerConfig, EncoderDecoderConfig):
        assert {option.name for option in options_of(kind).values() if option.help} <= set(names)


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
    monkeypatch.setattr("xlexport.extras.packages_of", lambda extra: [])
    with curve_writers(tmp_path) as write:
        write({"step": 5, "loss": 2.5, "learning_rate": 0.1})
    assert written == [(str(tmp_path),), ("loss", 2.5, 5), ("learning_rate", 0.1, 5), ("closed",)]

    monkeypatch.setenv("RANK", "1")  # one process of a run writes
    with curve_writers(tmp_path) as write:
        write({"step": 6, "loss": 2.4})
    assert len(written) == 4
