"""`xlexport inspect` on checkpoints of every format; `--format` and `--config` on the commands that read one."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.checkpoints import test_huggingface_format, test_kimiyoung_format, test_nvidia_format
from tests.checkpoints.authors_models import VARIANTS, authors_tensors, make_oracle
from tests.helpers.command_table import all_commands
from tests.helpers.paths import ROOT
from tests.oracles.huggingface import Oracle
from xlexport import checkpoints
from xlexport.choices import FORMATS
from xltraining.checkpoint import save_checkpoint

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Inspect

LENGTHS = {"tgt_len": 6, "mem_len": 9, "clamp_len": -1, "same_length": False, "pre_lnorm": False}


def kimiyoung(oracle: Oracle, folder: Path) -> Path:
    return test_kimiyoung_format.save(oracle, folder / "model.pt")


def nvidia(oracle: Oracle, folder: Path) -> Path:
    return test_nvidia_format.save(oracle, folder / "checkpoint_best.pt")


def huggingface(oracle: Oracle, folder: Path) -> Path:
    return test_huggingface_format.save(oracle, folder / "transfo-xl", safetensors=False)


def ours(oracle: Oracle, folder: Path) -> Path:
    path = folder / "checkpoint.pt"
    save_checkpoint(path, oracle.config, oracle.state_dict())
    return path


SAVERS: Mapping[str, Callable[[Oracle, Path], Path]] = {
    "kimiyoung": kimiyoung,
    "nvidia": nvidia,
    "huggingface": huggingface,
    "xltraining": ours,
}


@pytest.mark.parametrize("format", SAVERS)
def test_table_of_every_format(format: str, inspect: Inspect, tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"])
    path = SAVERS[format](oracle, tmp_path)
    rows = inspect(path).rows
    table = dict(rows)
    assert table["checkpoint"] == f"{format}, transformer_xl"
    config = ", ".join(value for name, value in rows if name == "config")
    assert "n_layer 2, n_head 2, d_model 12" in config
    assert "cutoffs [8, 15, 30], div_val 2" in config
    assert table["parameters"] == f"{sum(parameter.numel() for parameter in oracle.model.parameters()):,}"
    assert (table["segment_len"], table["mem_len"], table["clamp_len"], table["same_length"]) == (
        "6",
        "9",
        "-1",
        "true",
    )
    assert table["keys that a token sees"] == ("mem_len + 1" if format == "nvidia" else "mem_len")
    assert table["first memory"] == ("zeros" if format == "huggingface" else "empty")
    source = checkpoints.load(path)
    for file in source.files:
        assert table[file.name] == f"{file.stat().st_size:,} bytes, SHA-256 {source.files[file].sha256}"
    assert [value for name, value in rows if name == "note"] == list(source.notes)


@pytest.mark.parametrize("format", SAVERS)
def test_object_of_every_format(format: str, inspect: Inspect, tmp_path: Path) -> None:
    path = SAVERS[format](make_oracle(**VARIANTS["cutoffs"]), tmp_path)
    shown = inspect(path, "--json")
    assert (shown.code, shown.err) == (0, "")
    found, source = json.loads(shown.out), checkpoints.load(path)
    assert found == {
        "format": format,
        "architecture": "transformer_xl",
        "config": source.config,
        "parameters": source.parameters,
        "tokenizer": "bytes" if format == "xltraining" else None,
        "evaluation": {
            "segment_len": 6,
            "mem_len": 9,
            "clamp_len": -1,
            "same_length": True,
            "first_memory": "zeros" if format == "huggingface" else "empty",
            "window_extra": 1 if format == "nvidia" else 0,
        },
        "needs": [],
        "notes": list(source.notes),
        "files": {file.name: {"sha256": digest.sha256, "size": digest.size} for file, digest in source.files.items()},
    }


def test_vocabulary_is_described(inspect: Inspect, tmp_path: Path) -> None:
    path = huggingface(make_oracle(), tmp_path)
    rows = dict(inspect(path).rows)
    assert rows["vocabulary"] == "not in the checkpoint: give that of its 40 tokens with --tokenizer"
    assert rows["needs"] == "--tokenizer FILE, or --tokenizer none for token ids only"
    (path / "vocab.txt").write_text("\n".join(["<eos>", "<unk>", *(f"word{index}" for index in range(38))]))
    rows = dict(inspect(path).rows)
    assert rows["vocabulary"].startswith("Vocabulary of 40 words, ") and "needs" not in rows
    found = json.loads(inspect(path, "--json").out)["tokenizer"]
    assert (found["kind"], found["size"], found["line_end"]) == ("words", 40, "<eos>")


def test_vocabulary_that_does_not_fit_is_reported(inspect: Inspect, tmp_path: Path) -> None:
    path = huggingface(make_oracle(), tmp_path)
    (path / "vocab.txt").write_text("\n".join(["<eos>", "<unk>", *(f"word{index}" for index in range(37))]))
    said = "39 symbols, but the model has 40 tokens: give its own with --tokenizer"
    assert dict(inspect(path).rows)["vocabulary"] == said


def test_without_same_length_a_token_sees_all_of_memory(inspect: Inspect, tmp_path: Path) -> None:
    rows = dict(inspect(kimiyoung(make_oracle(), tmp_path)).rows)
    assert rows["keys that a token sees"] == "all of memory and of its segment before it"


def test_settings_that_the_user_must_give_are_reported(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kimiyoung(make_oracle(), tmp_path)
    needing = replace(checkpoints.load(path), needs=("segment_len", "same_length"))
    monkeypatch.setattr(checkpoints, "load", lambda *arguments: needing)
    rows = dict(inspect(path).rows)
    assert rows["segment_len"] == "not in the checkpoint: give --segment-len"
    assert rows["same_length"] == "not in the checkpoint: give --set same_length"
    assert rows["keys that a token sees"].startswith("mem_len with same_length, else all")
    found = json.loads(inspect(path, "--json").out)
    assert found["evaluation"]["segment_len"] is None
    assert found["needs"] == ["segment_len", "same_length"]


def test_configuration_file_is_read(inspect: Inspect, tmp_path: Path) -> None:
    path, config = tmp_path / "weights.pt", tmp_path / "settings.json"
    torch.save(OrderedDict(authors_tensors(make_oracle())), path)
    refused = inspect(path)
    assert refused.code == 1
    assert "mem_len is not given" in refused.err
    config.write_text(json.dumps(LENGTHS))
    assert dict(inspect(path, "--config", config).rows)["checkpoint"] == "state_dict, transformer_xl"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, found list"),
        (None, "No such file"),
    ],
)
def test_invalid_configuration_file(content: str | None, said: str, inspect: Inspect, tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    if content is not None:
        config.write_text(content)
    shown = inspect(kimiyoung(make_oracle(), tmp_path), "--config", config)
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith(f"Error: {config}: {said}")
    assert shown.err.count("\n") == 1


def test_format_is_forced(inspect: Inspect, tmp_path: Path) -> None:
    shown = inspect(kimiyoung(make_oracle(), tmp_path), "--format", "nvidia")
    assert shown.code == 1
    assert "no model_config and model_state in it" in shown.err


def test_formats_that_can_be_chosen_are_those_that_are_read(inspect: Inspect, tmp_path: Path) -> None:
    assert sorted(FORMATS) == sorted(checkpoints.format_names())
    shown = inspect(tmp_path, "--format", "keras")
    assert shown.code == 2
    assert "'keras' is not one of" in shown.err


def test_formats_that_can_be_chosen_are_documented() -> None:
    documented = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    for name in FORMATS:
        assert f"\n| `{name}` | " in documented


@pytest.mark.parametrize("command", ["convert", "verify", "bench", "inspect"])
def test_commands_that_read_checkpoints_take_the_same_options(command: str) -> None:
    options = {option for parameter in all_commands()[command].params for option in parameter.opts}
    assert {"--format", "--config"} <= options


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "a folder without a checkpoint. Give a checkpoint of a known format: "),
        (lambda path: path.write_text("It was the best of times"), "not a PyTorch checkpoint. Give a checkpoint of a"),
        (
            lambda path: torch.save({"weight": torch.zeros(2)}, path),
            "or Reformer weights in it (tensors: weight). Give",
        ),
    ],
    ids=["absent", "folder", "text", "other"],
)
def test_path_of_unknown_kind(make: Callable[[Path], Any], said: str, inspect: Inspect, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    make(path)
    shown = inspect(path)
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith(f"Error: {path}: ")
    assert said in shown.err


def test_vocabulary_is_recognized(inspect: Inspect, tmp_path: Path) -> None:
    module = type("Corpus", (), {"__module__": __name__})
    globals()["Corpus"] = module
    try:
        corpus = module()
        corpus.__dict__["train"] = torch.zeros(3, dtype=torch.int64)
        torch.save(corpus, tmp_path / "cache.pt")
    finally:
        del globals()["Corpus"]
    assert "a vocabulary. Give it with --tokenizer" in inspect(tmp_path / "cache.pt").err
