"""The settings files of recipes train models whose runs have all their settings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from xltraining.checkpoint import load_checkpoint
from xltraining.loop.saved_run import saved_run

RECIPES = sorted((ROOT / "experiments/recipes").glob("*.toml"))
# The recipes' own sizes take days.
SMALLER = {
    "model": {"n_layer": 2, "n_head": 2, "d_model": 16, "d_head": 8, "d_inner": 16, "tgt_len": 8, "mem_len": 8},
    "training": {"steps": 4, "batch_size": 2},
}


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_trains_with_every_setting(recipe: Path, invoke: Invoke, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    text = tmp_path / "text.txt"
    text.write_text("a few words of a text , with a line for each sentence .\n" * 40, "utf-8")
    invoke("prepare", text, "--valid", text, "--unit", "words", "-o", data).succeeded()
    smaller = [f"--{name.replace('_', '-')}={value}" for values in SMALLER.values() for name, value in values.items()]
    invoke("train", data, "--settings", recipe, *smaller, "-o", out).succeeded()
    run, given = saved_run(out), tomllib.loads(recipe.read_text("utf-8"))
    assert set(given) == {"architecture", *SMALLER}
    for table, config in (("model", run.model_config), ("training", run.training_config)):
        expected = given[table] | SMALLER[table]
        assert {name: getattr(config, name) for name in expected} == expected
    assert load_checkpoint(out / "best.pt").config == run.model_config
