"""Hugging Face folders, written by transformers itself, with new and old spellings of keys."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLModel

from tests.checkpoints.authors_models import VARIANTS, assert_computes, make_oracle
from tests.checkpoints.refusals import refusal
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints import load
from xlexport.errors import CheckpointNotFoundError
from xlruntime.tokenizers.vocabulary import Vocabulary

untied_biases = pytest.mark.parametrize("untie_r", [True, False], ids=["untie_r", "shared_r"])


def huggingface_oracle(**changes: Any) -> Oracle:
    return make_oracle(**{"first_memory": "zeros", "untie_r": True, **changes})


def save(oracle: Oracle, folder: Path, safetensors: bool = True) -> Path:
    """Save with transformers, or, if it refuses (shared tensors), in its format from before safetensors."""
    folder.mkdir(exist_ok=True)
    if safetensors:
        oracle.model.save_pretrained(folder)
    else:
        oracle.model.config.architectures = ["TransfoXLLMHeadModel"]
        oracle.model.config.save_pretrained(folder)
        torch.save(oracle.model.state_dict(), folder / "pytorch_model.bin")
    change_config(folder, tgt_len=oracle.config.tgt_len)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Replace keys of `config.json`; None leaves one out."""
    file = folder / "config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "transfo-xl"


@pytest.mark.parametrize("variant", VARIANTS)
def test_safetensors_against_huggingface_over_segments(variant: str, folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS[variant])
    save(oracle, folder)
    if oracle.config.tie_weight:
        assert not any("out_layers.0.weight" in name for name in load_file(folder / "model.safetensors"))
    source = load(folder)
    assert source.format == "huggingface"
    assert_computes(source, oracle)


@untied_biases
@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_file_against_huggingface_over_segments(variant: str, untie_r: bool, folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS[variant], untie_r=untie_r)
    assert_computes(load(save(oracle, folder, safetensors=False)), oracle)


def test_configuration_is_that_of_the_folder(folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS["div_val"], clamp_len=5, layer_norm_epsilon=1e-3, n_layer=3)
    source = load(save(oracle, folder))
    assert source.config == oracle.config.to_dict() | {"d_embed": 12}
    assert source.parameters == sum(parameter.numel() for parameter in oracle.model.parameters())
    assert [file.name for file in source.files] == ["config.json", "model.safetensors"]
    assert source.needs == ()


def test_missing_segment_length_is_chosen_and_noted(folder: Path) -> None:
    save(huggingface_oracle(), folder)
    change_config(folder, tgt_len=None)
    source = load(folder)
    assert source.config["tgt_len"] == 128
    assert any("segments are 128 tokens" in note for note in source.notes)
    assert load(folder, config={"tgt_len": 3}).config["tgt_len"] == 3


def test_missing_settings_are_those_of_transformers_and_noted(folder: Path) -> None:
    oracle = huggingface_oracle(mem_len=1600, clamp_len=1000, same_length=True)
    save(oracle, folder)
    change_config(folder, mem_len=None, clamp_len=None, same_length=None, pre_lnorm=None)
    source = load(folder)
    assert_computes(source, oracle)
    (note,) = [note for note in source.notes if "leaves out" in note]
    assert "mem_len 1600, clamp_len 1000, same_length true, pre_lnorm false" in note


def test_old_spellings_are_read(folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS["div_val"])
    save(oracle, folder, safetensors=False)
    ends = [*oracle.config.cutoffs, oracle.config.n_token]
    old = {"n_token": oracle.config.n_token, "ext_len": 0, "tie_weight": True, "cutoffs": ends}
    change_config(folder, **old, vocab_size=None, model_type=None, architectures=None, proj_share_all_but_first=True)
    change_config(folder, tie_projs=None, transformers_version=None)
    assert_computes(load(folder), oracle)


@pytest.mark.parametrize(("shared", "tied"), [(None, [False, True, True, True]), (False, [False] * 4)])
def test_ties_of_projections_follow_from_the_old_key(shared: bool | None, tied: list[bool], folder: Path) -> None:
    oracle = huggingface_oracle(**{**VARIANTS["div_val"], "tie_projs": tuple(tied)})
    save(oracle, folder)
    change_config(folder, tie_projs=None, proj_share_all_but_first=shared)
    source = load(folder)
    assert source.config["tie_projs"] == tied
    assert_computes(source, oracle)


def test_untied_output_layer_by_either_spelling(folder: Path) -> None:
    oracle = huggingface_oracle(tie_weight=False)
    save(oracle, folder)
    assert_computes(load(folder), oracle)
    change_config(folder, tie_word_embeddings=None, tie_weight=False)
    assert_computes(load(folder), oracle)


def test_spellings_that_disagree_are_reported(folder: Path) -> None:
    save(huggingface_oracle(), folder)
    change_config(folder, n_token=41, tie_weight=False, tie_word_embeddings=True)
    message = refusal(folder)
    assert "n_token is 41, vocab_size is 40" in message
    assert "tie_weight is False, tie_word_embeddings is True" in message


def test_other_keys_are_ignored(folder: Path) -> None:
    oracle = huggingface_oracle()
    save(oracle, folder)
    change_config(folder, auto_map={"AutoModel": "evil.Model"}, _attn_implementation_internal="evil/kernel", init=[1])
    assert_computes(load(folder), oracle)


def test_half_precision_is_read(folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS["cutoffs"])
    save(oracle, folder)
    file = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    with torch.no_grad():
        for parameter in oracle.model.parameters():
            parameter.copy_(parameter.bfloat16())
    source = load(folder)
    assert_computes(source, oracle)
    assert any("bfloat16 in the file" in note for note in source.notes)


@pytest.mark.parametrize("safetensors", [True, False])
def test_weights_in_several_files_are_read(safetensors: bool, folder: Path) -> None:
    oracle = huggingface_oracle(**VARIANTS["div_val"])
    if safetensors:
        oracle.model.save_pretrained(folder, max_shard_size="4KB")
        change_config(folder, tgt_len=oracle.config.tgt_len)
    else:
        save(oracle, folder, safetensors=False)
        tensors = list(torch.load(folder / "pytorch_model.bin").items())
        parts = {"pytorch_model-1.bin": dict(tensors[::2]), "pytorch_model-2.bin": dict(tensors[1::2])}
        weight_map: dict[str, str] = {}
        for name, part in parts.items():
            torch.save({key: tensor.clone() for key, tensor in part.items()}, folder / name)
            weight_map |= dict.fromkeys(part, name)
        (folder / "pytorch_model.bin").rename(folder / "unused")
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    source = load(folder)
    assert len(source.files) >= 4  # configuration, index and parts
    assert_computes(source, oracle)


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/passwd", "sub/part.bin", "", "a\0b"])
def test_index_that_leads_out_of_the_folder(name: str, folder: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    assert "leads out of the folder" in refusal(folder)


def test_index_of_missing_parts(folder: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "no 'one.safetensors', 'two.safetensors'" in refusal(folder)


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_index_that_is_damaged(index: str, folder: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_link_out_of_the_folder_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert f"'{name}' leads out of the folder" in refusal(folder)


def test_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    oracle = huggingface_oracle()
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(save(oracle, tmp_path / "plain").iterdir()):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    assert_computes(load(snapshot), oracle)


def vocabulary_text(folder: Path, symbols: list[str]) -> None:
    (folder / "vocab.txt").write_text("\n".join(symbols) + "\n")


def vocabulary_pickle(folder: Path, symbols: list[str]) -> None:
    (folder / "vocab.pkl").write_bytes(pickle.dumps(tokenizer_fields(symbols)))


def vocabulary_bin(folder: Path, symbols: list[str]) -> None:
    torch.save(tokenizer_fields(symbols), folder / "vocab.bin")


def tokenizer_fields(symbols: list[str]) -> dict[str, Any]:
    ids = OrderedDict((symbol, index) for index, symbol in enumerate(symbols))
    return {"idx2sym": symbols, "sym2idx": ids, "lower_case": False, "delimiter": None, "special": [], "unk_idx": 1}


@pytest.mark.parametrize("write", [vocabulary_text, vocabulary_pickle, vocabulary_bin])
def test_vocabulary_in_the_folder_is_read(write: Callable[[Path, list[str]], None], folder: Path) -> None:
    symbols = ["<eos>", "<unk>", *(f"word{index}" for index in range(38))]
    write(save(huggingface_oracle(), folder), symbols)
    source = load(folder)
    assert isinstance(source.tokenizer, Vocabulary)
    assert source.tokenizer.symbols == tuple(symbols)
    assert len(source.files) == 3
    assert any("Moses" in note for note in source.notes)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_library_s_tokenizer_in_the_folder_is_used(name: str, folder: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / name).write_text("{}")
    source = load(folder)
    assert source.tokenizer == folder / name
    assert folder / name in source.files
    assert not any("Moses" in note for note in source.notes)


def test_vocabulary_comes_before_a_library_s_tokenizer_and_the_other_is_named(folder: Path) -> None:
    vocabulary_text(save(huggingface_oracle(), folder), ["<eos>", "<unk>", *(f"word{index}" for index in range(38))])
    (folder / "tokenizer.json").write_text("{}")
    source = load(folder)
    assert isinstance(source.tokenizer, Vocabulary)
    chosen = f"vocab.txt is the tokenizer. --tokenizer {folder / 'tokenizer.json'} chooses that file."
    assert chosen in source.notes


def test_missing_vocabulary_gives_no_tokenizer(folder: Path) -> None:
    assert load(save(huggingface_oracle(), folder)).tokenizer is None


def test_vocabulary_that_would_run_code_is_refused(folder: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "it ran"),)

    save(huggingface_oracle(), folder)
    (folder / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": Payload()}))
    assert "could run code" in refusal(folder)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attn_type": 1}, "attn_type 1 is learned relative positions"),
        ({"sample_softmax": 10}, "sample_softmax 10"),
        ({"ext_len": 8}, "ext_len 8 feeds"),
        ({"n_layer": 4, "d_model": 14}, "n_layer is 4 by the configuration, 2 by the tensors; d_model is 14"),
        ({"cutoffs": [5, 4], "tie_projs": None}, "cutoffs is [5, 4] by the configuration, [] by the tensors"),
        ({"untie_r": False, "mem_len": -1}, "mem_len must be at least 0"),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon must be a finite number"),
        ({"tie_word_embeddings": False}, "crit.out_layers.0.weight is missing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str, folder: Path) -> None:
    save(huggingface_oracle(), folder)
    change_config(folder, **settings)
    assert said in refusal(folder)


def test_model_without_output_layer_is_refused(folder: Path) -> None:
    oracle = huggingface_oracle()
    TransfoXLModel(oracle.model.config).save_pretrained(folder)
    assert "without an output layer" in refusal(folder)


def test_weights_that_are_tied_but_differ_are_refused(folder: Path) -> None:
    oracle = huggingface_oracle(tie_weight=False)
    save(oracle, folder)
    change_config(folder, tie_word_embeddings=True)
    assert "crit.out_layers.0.weight differs from what the configuration ties it to" in refusal(folder)


def test_folder_without_weights_lists_its_files(folder: Path) -> None:
    save(huggingface_oracle(), folder)
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    message = refusal(folder)
    assert "none of model.safetensors, pytorch_model.bin" in message
    assert "tf_model.h5" in message


def test_damaged_weights(folder: Path) -> None:
    file = save(huggingface_oracle(), folder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert "model.safetensors: damaged" in refusal(folder)


def test_damaged_configuration(folder: Path) -> None:
    (save(huggingface_oracle(), folder) / "config.json").write_text("{")
    assert "not valid JSON" in refusal(folder, format="huggingface")


def test_other_models_are_not_of_this_format(folder: Path) -> None:
    save(huggingface_oracle(), folder)
    change_config(folder, model_type="gpt2")
    assert "config.json says 'gpt2'" in refusal(folder, CheckpointNotFoundError)


def test_file_of_a_folder_names_the_folder(folder: Path) -> None:
    save(huggingface_oracle(), folder, safetensors=False)
    message = refusal(folder / "pytorch_model.bin")
    assert "Give the folder" in message
    assert str(folder) in message
    assert "Give the folder" in refusal(folder / "config.json")
