"""The recipes of published models: their numbers of weights, and small runs that have all their settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from experiments.__main__ import main
from experiments.pixels import png
from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from xltraining.architectures import config_class, new_model
from xltraining.checkpoint import load_checkpoint
from xltraining.loop.saved_run import saved_run

RECIPES = sorted((ROOT / "experiments/recipes").glob("*.toml"))
WIKITEXT_103, ONE_BILLION_WORD, SUBWORDS = 267_735, 793_471, 37_000  # sizes of vocabularies
ENWIK8, TEXT8 = 204, 27  # distinct bytes, as in the authors' vocabulary
# Of each recipe: the vocabulary, our millions of weights, and the paper's; None: it prints no number.
WEIGHTS: dict[str, tuple[int, float, float | None]] = {
    "duplication": (128, 0.6, None),
    "enwik8_12_layers": (ENWIK8, 41.1, 41),
    "enwik8_18_layers": (ENWIK8, 88.0, 88),  # widths of ours
    "enwik8_24_layers": (ENWIK8, 277.2, 277),
    "enwik8_64k_reformer": (256, 139.7, None),
    "imagenet64_reformer": (256, 139.4, None),
    "one_billion_word_base": (ONE_BILLION_WORD, 469.1, 460),
    "one_billion_word_large": (ONE_BILLION_WORD, 841.4, 800),  # "0.8B"
    "penn_treebank": (10_000, 26.4, 24),  # sizes of ours
    "photographs": (256, 0.5, None),
    "text8_24_layers": (TEXT8, 277.1, 277),
    "wikitext103_large": (WIKITEXT_103, 285.2, 257),
    "wikitext103_standard": (WIKITEXT_103, 151.1, 151),
    "wmt14_base": (SUBWORDS, 63.0, None),
    "wmt14_base_unshared": (SUBWORDS, 100.9, None),
    "wmt14_big_unshared": (SUBWORDS, 290.0, None),
}
# The recipes' own sizes take days.
SIZES = {"n_head": 2, "d_model": 16, "d_head": 8, "d_inner": 16}
SMALLER: dict[str, dict[str, Any]] = {
    "transformer_xl": {**SIZES, "d_model": 64, "n_layer": 2, "tgt_len": 8, "mem_len": 8},
    "reformer": {**SIZES, "attn_layers": ("lsh",), "n_buckets": (4, 2), "axial_dims": (4, 12)},
    "encoder_decoder": {**SIZES, "n_encoder_layer": 1, "n_decoder_layer": 1, "source_len": 24, "tgt_len": 24},
}
CUTOFFS = (4, 6, 8)  # of a vocabulary of a few words
RUN = {"steps": 4, "batch_size": 2}
TASKS = {"duplication": "duplication", "imagenet64_reformer": "images", "photographs": "images"}  # of experiments


def read(recipe: Path) -> dict[str, Any]:
    return tomllib.loads(recipe.read_text("utf-8"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_has_the_weights_of_the_published_model(recipe: Path) -> None:
    given, (n_token, ours, papers) = read(recipe), WEIGHTS[recipe.stem]
    kind = config_class(given["architecture"])
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in given["model"].items()}
    with torch.device("meta"):
        model = new_model(kind(**kind.for_training(chosen | {"n_token": n_token})))
    weights = sum(weight.numel() for weight in model.parameters())
    assert round(weights / 1e6, 1) == ours
    if papers is not None and abs(ours / papers - 1) > 0.01:
        figure = f"{ours:.1f}" if ours < 400 else f"0.{round(ours)}"  # the recipe says so itself
        assert figure in recipe.read_text("utf-8")


def test_every_recipe_has_a_row() -> None:
    assert [recipe.stem for recipe in RECIPES] == sorted(WEIGHTS)


def data_of(given: dict[str, Any], invoke: Invoke, folder: Path) -> tuple[Path, ...]:
    """Write what a recipe trains on: words, bytes or pairs; return the arguments of `train`."""
    text, data = folder / "text.txt", folder / "data"
    text.write_text("a few words of a text , with a line for each sentence .\n" * 40, "utf-8")
    if given["architecture"] == "encoder_decoder":
        text.write_text("ab\tcd\nefg\thi\n" * 20, "utf-8")
        return (text,)
    if "cutoffs" not in given["model"] and "best" not in given["training"]:
        return (text,)
    invoke("prepare", text, "--valid", text, "--unit", "words", "-o", data).succeeded()
    return (data,)


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_trains_with_every_setting(recipe: Path, invoke: Invoke, tmp_path: Path) -> None:
    given, out = read(recipe), tmp_path / "run"
    smaller = {"model": dict(SMALLER[given["architecture"]]), "training": dict(RUN)}
    if "cutoffs" in given["model"]:
        smaller["model"]["cutoffs"] = CUTOFFS
    task = TASKS.get(recipe.stem)
    if task == "images":
        smaller["model"] |= {"axial_shape": (8, 8, 3), "axial_dims": (4, 4, 8), "tgt_len": 192, "mem_len": 192}
    elif given["architecture"] == "reformer":
        smaller["model"] |= {"axial_shape": (4, 2), "tgt_len": 8, "mem_len": 8, "chunk_length": 4}
    if task == "duplication":
        smaller["model"] = {**SIZES, "attn_layers": ("lsh",), "tgt_len": 16, "mem_len": 16, "max_positions": 16}
        smaller["model"] |= {"n_buckets": (4,), "chunk_length": 4}
    lines = [f"architecture = {json.dumps(given['architecture'])}"]
    for table, values in smaller.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in (given[table] | values).items())]
    small = tmp_path / "small.toml"
    small.write_text("\n".join(lines), "utf-8")
    if task is None:
        invoke("train", *data_of(given, invoke, tmp_path), "--settings", small, "--threads=1", "-o", out).succeeded()
    else:
        photo = tmp_path / "a.png"
        photo.write_bytes(png(np.random.default_rng(0).integers(256, size=(80, 90, 3), dtype=np.uint8)))
        arguments = [task, *([str(photo)] if task == "images" else []), "--settings", str(small), "--out", str(out)]
        CliRunner().invoke(main, arguments, catch_exceptions=False)
    run = saved_run(out)
    for table, config in (("model", run.model_config), ("training", run.training_config)):
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in given[table].items()}
        expected = lists | smaller[table]
        assert {name: getattr(config, name) for name in expected} == expected
    saved = load_checkpoint(out / ("best.pt" if given["training"].get("best") else "checkpoint.pt"))
    assert saved.config == run.model_config
