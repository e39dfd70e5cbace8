"""`xlexport train --init`: a checkpoint of another format becomes a run on the user's text, and a bundle of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families.transformer_xl.files import make_oracle, write_huggingface, write_nvidia
from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from xlexport import formats
from xltraining.checkpoint import load_checkpoint

RUN = ("--batch-size", "2", "--threads", "1", "--set=training.log_every=1", "--set=training.warmup_steps=0")
SAMPLE_MODEL = f"{ROOT / 'samples' / 'models' / 'gru.py'}:GRU"
BYTES: dict[str, Any] = {"n_token": 256, "dropout": 0.0}


@pytest.mark.full
def test_the_run_begins_with_the_weights_of_the_file(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    model = write_nvidia(make_oracle(**BYTES, same_length=True), tmp_path)
    line = ("train", prose, "-o", tmp_path / "run", "--init", model, "--mem-len", "8", "--steps", "0")
    assert "with initial weights" in invoke(*line).succeeded().err
    source, written = formats.load(model), load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert written.config.to_dict() == {**source.config, "mem_len": 8}
    weights = source.build_model().state_dict()
    assert weights.keys() == written.state_dict.keys()
    for name, tensor in written.state_dict.items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


@pytest.mark.release
def test_updates_lower_the_loss_and_the_result_converts(
    prose: Path, invoke: Invoke, tmp_path: Path, cached_exports: None
) -> None:
    model, run = write_huggingface(make_oracle(**BYTES), tmp_path, safetensors=False), tmp_path / "run"
    invoke("train", prose, "-o", run, "--init", model, *RUN, "--steps", "10").succeeded()
    invoke("train", "-o", run, "--resume", "--steps", "12").succeeded()
    bits = [json.loads(line)["bits_per_byte"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert len(bits) == 12 and sum(bits[-3:]) < sum(bits[:3])
    converted = invoke("convert", run / "checkpoint.pt", "-o", tmp_path / "bundle", "--segments", "2").succeeded()
    assert "yes" in next(line for line in converted.out.splitlines() if line.startswith("equal"))


def test_what_does_not_fit_is_refused(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    line = ("train", prose, "-o", tmp_path / "run", "--init", write_nvidia(make_oracle(n_token=40), tmp_path))
    error = invoke(*line, "--n-layer", "3", "--tgt-len", "4").error
    assert "its weights decide n_layer (only tgt_len, mem_len, " in error and "tgt_len (" not in error
    assert "it has 40 tokens, but the training data has 256" in error
    code = (*line[:-1], SAMPLE_MODEL)
    assert "not a checkpoint of an architecture that `train` trains. Give one of transf" in invoke(*code).error
    assert "--init begins a new run on texts. Leave out --resume" in invoke(*line, "--resume").err
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_words_go_on_with_the_vocabulary_of_the_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    """The size alone would let a model learn words under the ids of others."""
    words, run = tmp_path / "words", tmp_path / "run" / "checkpoint.pt"
    texts = {"words": "a b c a b a\n", "others": "c b a c b c\n", "same": "c b\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text * 100)
        known = ("--tokenizer", words / "vocabulary.json") if name == "same" else ()
        invoke("prepare", tmp_path / f"{name}.txt", "-o", tmp_path / name, *known).succeeded()
    size = ("--architecture", "lstm", "--n-layer", "1", "--d-model", "8", "--tgt-len", "8", "--steps", "1")
    invoke("train", words, "-o", run.parent, *RUN, *size).succeeded()
    line = ("train", "--init", run, "-o", tmp_path / "second", *RUN, "--steps", "1")
    assert "its vocabulary is not that of the training data" in invoke(*line, tmp_path / "others").error
    invoke(*line, tmp_path / "same").succeeded()
