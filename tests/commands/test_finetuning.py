"""`xlexport train --init`: a checkpoint of another format becomes a run on the user's text, and a bundle of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.transformer_xl_files import make_oracle, write_huggingface, write_nvidia
from tests.helpers.invoking import Invoke
from xlexport import checkpoints
from xltraining.checkpoint import load_checkpoint

RUN = ("--batch-size", "2", "--threads", "1", "--log-every", "1", "--warmup-steps", "0")
BYTES: dict[str, Any] = {"n_token": 256, "dropout": 0.0}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_bytes(b"It was the best of times, it was the worst of times.\n" * 20)
    return path


@pytest.mark.full
def test_the_run_begins_with_the_weights_of_the_file(text: Path, invoke: Invoke, tmp_path: Path) -> None:
    model = write_nvidia(make_oracle(**BYTES, same_length=True), tmp_path)
    line = ("train", text, "-o", tmp_path / "run", "--init", model, "--mem-len", "8", "--steps", "0")
    assert "with initial weights" in invoke(*line).succeeded().err
    source, written = checkpoints.load(model), load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert written.config.to_dict() == {**source.config, "mem_len": 8}
    weights = source.build_model().state_dict()
    assert weights.keys() == written.state_dict.keys()
    for name, tensor in written.state_dict.items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


@pytest.mark.full
def test_updates_lower_the_loss_and_the_result_converts(text: Path, invoke: Invoke, tmp_path: Path) -> None:
    model, run = write_huggingface(make_oracle(**BYTES), tmp_path, safetensors=False), tmp_path / "run"
    invoke("train", text, "-o", run, "--init", model, *RUN, "--steps", "10").succeeded()
    invoke("train", "-o", run, "--resume", "--steps", "12").succeeded()
    bits = [json.loads(line)["bits_per_byte"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert len(bits) == 12 and sum(bits[-3:]) < sum(bits[:3])
    invoke("train", text, "-o", tmp_path / "second", "--init", run / "checkpoint.pt", *RUN, "--steps", "1").succeeded()
    first = json.loads((tmp_path / "second" / "log.jsonl").read_text())["bits_per_byte"]
    assert first < bits[0]
    converted = invoke("convert", run / "checkpoint.pt", "-o", tmp_path / "bundle", "--segments", "2").succeeded()
    assert "yes" in next(line for line in converted.out.splitlines() if line.startswith("equal"))


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["lstm", "reformer"])
def test_models_of_other_architectures_go_on(text: Path, invoke: Invoke, tmp_path: Path, architecture: str) -> None:
    size = {"lstm": ("--n-layer", "1"), "reformer": ("--attn-layers", "local,lsh", "--tgt-len", "64")}[architecture]
    line = ("train", text, "--d-model", "16", "--architecture", architecture, *size, *RUN, "--steps", "4")
    invoke(*line, "-o", tmp_path / "first").succeeded()
    invoke("train", text, "-o", tmp_path / "run", "--init", tmp_path / "first" / "checkpoint.pt", *RUN,
           "--steps", "1").succeeded()  # fmt: skip
    before, after = (
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])["bits_per_byte"]
        for name in ("first", "run")
    )
    assert after < before - 0.01


def test_what_does_not_fit_is_refused(text: Path, invoke: Invoke, tmp_path: Path) -> None:
    model, run = write_nvidia(make_oracle(n_token=40), tmp_path), tmp_path / "run"
    line = ("train", text, "-o", run, "--init", model)
    assert "40 tokens, but the training data has 256. Prepare the texts with its vocabulary" in invoke(*line).error
    fixed = invoke(*line, "--n-layer", "3", "--architecture", "reformer", "--tgt-len", "4")
    assert "--n-layer, --architecture: the checkpoint of --init decides it; you may give " in fixed.err
    assert "--init is for new runs on texts" in invoke(*line, "--resume").err
    assert "no such file" in invoke("train", text, "-o", run, "--init", tmp_path / "none.pt").error
    assert not run.exists()


@pytest.mark.full
def test_words_go_on_with_the_vocabulary_of_the_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    """The size alone would let a model learn words under the ids of others."""
    first, other, same = (tmp_path / name for name in ("first", "other", "same"))
    vocabulary = ("--tokenizer", first / "vocabulary.json")
    for folder, text, options in (
        (first, "a b c a b a\n", ()),
        (other, "c b a c b c\n", ()),
        (same, "c b\n", vocabulary),
    ):
        file = tmp_path / f"{folder.name}.txt"
        file.write_text(text * 100)
        invoke("prepare", file, "-o", folder, *options).succeeded()
    size = ("--n-layer", "1", "--d-model", "8", "--n-head", "1", "--tgt-len", "8", *RUN, "--steps", "1")
    invoke("train", first, "-o", tmp_path / "run", *size).succeeded()
    line = ("train", "--init", tmp_path / "run" / "checkpoint.pt", "-o", tmp_path / "second", *RUN, "--steps", "1")
    assert "a vocabulary of 5 tokens, but the training data has another one" in invoke(*line, other).error
    invoke(*line, same).succeeded()
