"""Hugging Face folders of Transformer-XLs, written by transformers itself, with new and old spellings of keys."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel, TransfoXLModel

from tests.checkpoints.config_file import change_config
from tests.checkpoints.refusals import refusal
from tests.families.transformer_xl.files import VARIANTS, WAYS, assert_computes, write_huggingface
from tests.helpers.pages import python_of
from tests.oracles.comparison import LOG_PROB_TOLERANCE
from xlexport.errors import CheckpointNotFoundError
from xlexport.formats import load
from xlruntime.tokenizers.vocabulary import Vocabulary

HUGGING_FACE = WAYS["huggingface"]
WORDS = ["<eos>", "<unk>", *(f"word{index}" for index in range(2, 40))]


# Hugging Face's config.json.


def test_missing_segment_length_is_chosen_and_noted(tmp_path: Path) -> None:
    folder = write_huggingface(HUGGING_FACE.oracle(), tmp_path, {"tgt_len": None})
    source = load(folder)
    assert source.config["tgt_len"] == 128
    assert any("segments are 128 tokens" in note for note in source.notes)
    assert load(folder, config={"tgt_len": 3}).config["tgt_len"] == 3


def test_missing_settings_are_those_of_transformers_and_noted(tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(mem_len=1600, clamp_len=1000, same_length=True)
    missing = dict.fromkeys(("mem_len", "clamp_len", "same_length", "pre_lnorm"))
    source = HUGGING_FACE.load(oracle, tmp_path, missing)
    assert_computes(source, oracle)
    (note,) = [note for note in source.notes if "leaves out" in note]
    assert "mem_len 1600, clamp_len 1000, same_length true, pre_lnorm false" in note


def test_old_spellings_are_read(tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(**VARIANTS["div_val"])
    old = {"n_token": 40, "ext_len": 0, "tie_weight": True, "cutoffs": [*oracle.config.cutoffs, 40]}
    gone = dict.fromkeys(("vocab_size", "model_type", "architectures", "tie_projs", "transformers_version"))
    settings = {**old, **gone, "proj_share_all_but_first": True}
    assert_computes(WAYS["huggingface, torch"].load(oracle, tmp_path, settings), oracle)


@pytest.mark.parametrize(("shared", "tied"), [(None, [False, True, True, True]), (False, [False] * 4)])
def test_ties_of_projections_follow_from_the_old_key(shared: bool | None, tied: list[bool], tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(**{**VARIANTS["div_val"], "tie_projs": tuple(tied)})
    source = HUGGING_FACE.load(oracle, tmp_path, {"tie_projs": None, "proj_share_all_but_first": shared})
    assert source.config["tie_projs"] == tied
    assert_computes(source, oracle)


def test_untied_output_layer_by_either_spelling(tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(tie_weight=False)
    for settings in ({}, {"tie_word_embeddings": None, "tie_weight": False}):
        assert_computes(HUGGING_FACE.load(oracle, tmp_path, settings), oracle)


# Hugging Face's folders.


@pytest.mark.parametrize("safetensors", [True, False])
def test_weights_in_several_files_are_read(safetensors: bool, tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(**VARIANTS["div_val"])
    folder = write_huggingface(oracle, tmp_path, safetensors=False)
    whole = folder / "pytorch_model.bin"
    if safetensors:
        whole.unlink()
        oracle.model.save_pretrained(folder, max_shard_size="4KB")
    else:
        tensors = list(torch.load(whole).items())
        parts = {"pytorch_model-1.bin": dict(tensors[::2]), "pytorch_model-2.bin": dict(tensors[1::2])}
        for name, part in parts.items():
            torch.save({key: tensor.clone() for key, tensor in part.items()}, folder / name)
        weight_map = {key: name for name, part in parts.items() for key in part}
        whole.with_name("pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
        whole.unlink()
    change_config(folder, tgt_len=6)
    source = load(folder)
    assert len(source.files) >= 4  # configuration, index and parts
    assert_computes(source, oracle)


LEADS_OUT = "leads out of the folder"


@pytest.mark.parametrize(
    ("index", "said"),
    [
        *((json.dumps({"weight_map": {"x": name}}), LEADS_OUT) for name in ("../x", "/etc/passwd", "sub/x", "", "a\0")),
        ('{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}', "no 'one.safetensors', 'two.safetensors'"),
        ("[]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ('{"weight_map": [1]}', "no weight_map of file names"),
        ('{"weight_map": {"a": 1}}', "no weight_map of file names"),
        ("[" * 100_000, "not valid JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_index_that_is_refused(index: str, said: str, tmp_path: Path) -> None:
    folder = write_huggingface(HUGGING_FACE.oracle(), tmp_path)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(index)
    assert said in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_huggingface(HUGGING_FACE.oracle(), tmp_path)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert f"'{name}' {LEADS_OUT}" in refusal(folder)


def test_files_of_a_folder_that_are_missing_damaged_or_given_alone(tmp_path: Path) -> None:
    folder = write_huggingface(HUGGING_FACE.oracle(), tmp_path)
    weights, config = folder / "model.safetensors", folder / "config.json"
    for file in (weights, config):
        assert f"Give the folder that it is in: {folder}" in refusal(file)
    content, said = weights.read_bytes(), config.read_text()
    weights.write_bytes(content[:-9])
    assert "model.safetensors: damaged" in refusal(folder)
    weights.rename(folder / "tf_model.h5")
    message = refusal(folder)
    assert "no model.safetensors or pytorch_model.bin in it" in message and "tf_model.h5" in message
    config.write_text("{")
    assert "not valid JSON" in refusal(folder, format="huggingface")
    config.write_text(said)
    change_config(folder, model_type="gpt2")
    assert "config.json says 'gpt2'" in refusal(folder, CheckpointNotFoundError)
    torch.save({}, folder / "pytorch_model.bin")
    assert "Give the folder" in refusal(folder / "pytorch_model.bin")


def test_weights_that_are_tied_but_differ_are_refused(tmp_path: Path) -> None:
    oracle = HUGGING_FACE.oracle(tie_weight=False)
    message = HUGGING_FACE.refusal(tmp_path, {"tie_word_embeddings": True}, oracle=oracle)
    assert "crit.out_layers.0.weight differs from what the configuration ties it to" in message


def test_model_without_output_layer_is_refused(tmp_path: Path) -> None:
    TransfoXLModel(HUGGING_FACE.oracle().model.config).save_pretrained(tmp_path)
    assert "without an output layer" in refusal(tmp_path)


@torch.no_grad()
def test_transformers_runs_the_folder_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the lines of docs/checkpoints.md, without which transformers' model fails, and compare as it says."""
    folder = write_huggingface(HUGGING_FACE.oracle(**VARIANTS["div_val"]), tmp_path)
    theirs, ours = TransfoXLLMHeadModel.from_pretrained(folder).eval(), load(folder).build_model()
    ids = torch.randint(40, (1, 18), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(torch.Tensor, "type_as", torch.Tensor.type_as)  # so that it is restored
    with pytest.raises(TypeError, match="type_as"):
        theirs(ids)
    exec(compile(python_of("docs/checkpoints.md"), "docs/checkpoints.md", "exec"), {})
    mems, memory = None, None
    for tokens in ids.split(6, dim=1):
        output = theirs(tokens, mems=mems, return_dict=True)
        mems, (hidden, memory) = output.mems, ours(tokens, memory)
        assert (ours.all_log_probs(hidden) - output.prediction_scores).abs().max() <= LOG_PROB_TOLERANCE


# Tokenizers.


def hugging_face_fields(symbols: list[str]) -> dict[str, Any]:
    ids = OrderedDict((symbol, index) for index, symbol in enumerate(symbols))
    return {"idx2sym": symbols, "sym2idx": ids, "lower_case": False, "delimiter": None, "special": [], "unk_idx": 1}


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.pkl", "vocab.bin"])
def test_vocabulary_in_the_folder_is_read(name: str, tmp_path: Path) -> None:
    folder, fields = write_huggingface(HUGGING_FACE.oracle(), tmp_path), hugging_face_fields(WORDS)
    if name == "vocab.bin":
        torch.save(fields, folder / name)
    else:
        (folder / name).write_bytes("\n".join(WORDS).encode() if name == "vocab.txt" else pickle.dumps(fields))
    source = load(folder)
    assert isinstance(source.tokenizer, Vocabulary) and source.tokenizer.symbols == tuple(WORDS)
    assert len(source.files) == 3
    assert any("Moses" in note for note in source.notes)
    (folder / "tokenizer.json").write_text("{}")
    assert f"{name} is the tokenizer. --tokenizer {folder / 'tokenizer.json'} chooses that file." in load(folder).notes


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_library_s_tokenizer_in_the_folder_is_used(name: str, tmp_path: Path) -> None:
    folder = write_huggingface(HUGGING_FACE.oracle(), tmp_path)
    (folder / name).write_text("{}")
    source = load(folder)
    assert source.tokenizer == folder / name
    assert folder / name in source.files
    assert not any("Moses" in note for note in source.notes)
