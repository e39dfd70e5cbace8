"""Bare state dicts of four code bases: tensors show some settings, the configuration must give the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.checkpoints import test_nvidia_format
from tests.checkpoints.authors_models import VARIANTS, assert_computes, authors_tensors, make_oracle
from tests.checkpoints.refusals import refusal
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints import load
from xlexport.checkpoints.safe_pickle import read
from xltraining.checkpoint import Checkpoint, build_model

nvidia_tensors = test_nvidia_format.nvidia_tensors
containers = pytest.mark.parametrize("archive", [True, False], ids=["archive", "legacy"])
variants = pytest.mark.parametrize("variant", VARIANTS)
LENGTHS = ("tgt_len", "mem_len", "clamp_len", "same_length", "pre_lnorm")


def needed(oracle: Oracle, *more: str) -> dict[str, Any]:
    """Return only the settings that must be given, because the tensors do not show them."""
    names = [*LENGTHS, *more]
    config = oracle.config.to_dict()
    if config["cutoffs"] and config["div_val"] == 1:
        names.append("cutoffs")
    return {name: config[name] for name in names}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


@variants
@containers
def test_names_of_the_authors_code(variant: str, archive: bool, path: Path) -> None:
    oracle = make_oracle(**VARIANTS[variant])
    torch.save(authors_tensors(oracle), path, _use_new_zipfile_serialization=archive)
    source = load(path, config=needed(oracle))
    assert source.format == "state_dict"
    assert source.config["untie_r"] is False
    assert_computes(source, oracle)
    assert any("code base is assumed to be kimiyoung" in note for note in source.notes)


@variants
def test_names_of_nvidias_code(variant: str, path: Path) -> None:
    oracle = make_oracle(**VARIANTS[variant], window_extra=1)
    torch.save(nvidia_tensors(oracle), path)
    source = load(path, config=needed(oracle))
    assert_computes(source, oracle)
    assert not any("code base is assumed" in note for note in source.notes)


@variants
@pytest.mark.parametrize("untie_r", [True, False])
def test_names_of_huggingface(variant: str, untie_r: bool, path: Path) -> None:
    oracle = make_oracle(**VARIANTS[variant], first_memory="zeros", untie_r=untie_r)
    torch.save(oracle.model.state_dict(), path)
    assert_computes(load(path, config=needed(oracle)), oracle)


@variants
def test_names_of_ours(variant: str, path: Path) -> None:
    oracle = make_oracle(**VARIANTS[variant], first_memory="zeros", window_extra=1, untie_r=True)
    ours = build_model(Checkpoint(oracle.config, oracle.state_dict()))
    torch.save(ours.state_dict(), path)
    source = load(path, config=needed(oracle, "first_memory", "window_extra"))
    assert_computes(source, oracle)
    assert source.parameters == sum(parameter.numel() for parameter in ours.parameters())


def test_our_names_without_projections_of_the_same_width(path: Path) -> None:
    oracle = make_oracle(**{**VARIANTS["div_val-untied"], "proj_same_dim": False})
    ours = build_model(Checkpoint(oracle.config, oracle.state_dict()))
    torch.save(ours.state_dict(), path)
    source = load(path, config=needed(oracle, "first_memory", "window_extra"))
    assert source.config["proj_same_dim"] is False
    assert_computes(source, oracle)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"model": tensors, "optimizer": {"state": {}, "param_groups": []}},
        lambda tensors: {"state_dict": {f"model.module.{name}": tensor for name, tensor in tensors.items()}},
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "pos_emb.inv_freq"},
        lambda tensors: {name: tensor.double() for name, tensor in tensors.items()},
    ],
    ids=["state_dict", "model", "prefix", "without buffer", "double"],
)
def test_wrappers_and_prefixes(wrap: Callable[[dict[str, Tensor]], Any], path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"])
    torch.save(wrap(authors_tensors(oracle)), path)
    assert_computes(load(path, config=needed(oracle)), oracle)


def test_huggingface_names_behind_a_prefix(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"], first_memory="zeros", untie_r=True)
    torch.save({f"module.{name}": tensor for name, tensor in oracle.model.state_dict().items()}, path)
    assert_computes(load(path, config=needed(oracle)), oracle)


def test_safetensors_with_what_is_tied_left_out(tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"], first_memory="zeros", untie_r=True)
    path = tmp_path / "weights.safetensors"
    tied = [f"crit.out_layers.{index}.weight" for index in range(4)] + [f"crit.out_projs.{i}" for i in (1, 2, 3)]
    tensors = {name: tensor for name, tensor in oracle.model.state_dict().items() if name not in tied}
    save_file(tensors, path)
    message = refusal(path, config=needed(oracle))
    assert "crit.out_layers.0.weight is missing" in message
    assert_computes(load(path, config=needed(oracle, "tie_weight", "tie_projs")), oracle)


def test_configuration_may_name_the_code_base_if_names_are_shared(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"], window_extra=1)
    torch.save(authors_tensors(oracle), path)
    source = load(path, config=needed(oracle) | {"source": "nvidia"})
    assert_computes(source, oracle)
    assert not any("code base is assumed" in note for note in source.notes)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("kimiyoung", "source is kimiyoung by the configuration, nvidia by the tensors' names"),
        ("fairseq", "source is 'fairseq', expected one of kimiyoung, nvidia, huggingface"),
        (["nvidia"], "source is "),
    ],
)
def test_code_base_that_does_not_fit_is_refused(source: Any, said: str, path: Path) -> None:
    oracle = make_oracle(window_extra=1)
    torch.save(nvidia_tensors(oracle), path)
    assert said in refusal(path, config=needed(oracle) | {"source": source})


def test_config_json_of_huggingface_is_accepted(path: Path, tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"], first_memory="zeros", untie_r=True)
    torch.save(oracle.model.state_dict(), path)
    oracle.model.config.save_pretrained(tmp_path / "config")
    config = json.loads((tmp_path / "config" / "config.json").read_text())
    source = load(path, config=config)
    assert_computes(source, oracle)
    assert any("segments are 128 tokens" in note for note in source.notes)


def test_model_config_of_nvidia_is_accepted(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs-narrow"], window_extra=1)
    config = read(test_nvidia_format.save(oracle, path.with_name("checkpoint.pt")))["model_config"]
    torch.save(nvidia_tensors(oracle), path)
    assert_computes(load(path, config=json.loads(json.dumps(config))), oracle)


def test_without_configuration_all_that_is_needed_is_listed(path: Path) -> None:
    torch.save(authors_tensors(make_oracle(**VARIANTS["cutoffs"])), path)
    message = refusal(path)
    for name in (*LENGTHS, "cutoffs"):
        assert f"{name} is not given" in message
    assert "d_model" not in message
    assert "--config FILE" in message


def test_cutoffs_are_needed_only_if_the_tensors_do_not_show_them(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"])
    torch.save(authors_tensors(oracle), path)
    source = load(path, config=needed(oracle))
    assert source.config["cutoffs"] == [8, 15, 30]
    assert source.config["div_val"] == 2


def test_missing_unknown_and_contradictory_settings_are_reported_at_once(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"], tie_weight=False)
    torch.save(authors_tensors(oracle), path)
    config = {
        **needed(oracle),
        **{"n_layer": 7, "d_head": 6, "cutoffs": [8, 15], "tie_weight": True, "n_gpu": 8, "vocab_size": 41},
    }
    del config["mem_len"], config["pre_lnorm"]
    message = refusal(path, config=config)
    for said in (
        "mem_len is not given",
        "pre_lnorm is not given",
        "n_gpu is unknown",
        "n_layer is 7 by the configuration, 2 by the tensors",
        "d_head is 6 by the configuration, 5 by the tensors",
        "n_token is 41 by the configuration, 40 by the tensors",
        "cutoffs is [8, 15] by the configuration, of length 3 by the tensors",
        "tie_weight is true by the configuration, but the output layer has weights of its own",
    ):
        assert said in message


def test_values_that_make_no_model_are_reported(path: Path) -> None:
    oracle = make_oracle()
    torch.save(authors_tensors(oracle), path)
    message = refusal(path, config=needed(oracle) | {"mem_len": -1, "same_length": "yes", "layer_norm_epsilon": 0})
    assert "same_length must be true or false, found 'yes'" in message


@pytest.mark.parametrize("div_val", [None, 2, 3])
def test_any_div_val_of_the_same_widths_is_accepted(div_val: int | None, path: Path) -> None:
    """Accept any div_val that gives the widths: 12, 6, 3, 1 (the last cluster is one number wide) only by 2."""
    oracle = make_oracle(**VARIANTS["div_val"])
    torch.save(authors_tensors(oracle), path)
    config = needed(oracle) | ({} if div_val is None else {"div_val": div_val})
    if div_val == 3:
        assert "div_val is 3 by the configuration, 2 by the tensors" in refusal(path, config=config)
    else:
        assert_computes(load(path, config=config), oracle)


def test_attention_of_another_kind_shows_in_the_tensors(path: Path) -> None:
    oracle = make_oracle()
    tensors = authors_tensors(oracle)
    tensors["r_emb"] = torch.zeros(2, 9, 2, 5)
    tensors["r_bias"] = torch.zeros(2, 9, 2)
    torch.save(tensors, path)
    assert "attn_type 1 is learned relative positions" in refusal(path, config=needed(oracle))


def test_sampled_softmax_shows_in_the_tensors(path: Path) -> None:
    oracle = make_oracle()
    tensors = {name: tensor for name, tensor in authors_tensors(oracle).items() if not name.startswith("crit.")}
    torch.save({**tensors, "out_layer.weight": torch.zeros(40, 12)}, path)
    assert "trained on samples" in refusal(path, config=needed(oracle))


def test_model_without_output_layer_is_refused(path: Path) -> None:
    oracle = make_oracle()
    torch.save({name: tensor for name, tensor in authors_tensors(oracle).items() if "crit" not in name}, path)
    assert "without an output layer" in refusal(path, config=needed(oracle))


def test_several_models_in_a_file_are_refused(path: Path) -> None:
    oracle = make_oracle()
    torch.save({"model": authors_tensors(oracle), "ema": authors_tensors(oracle)}, path)
    assert "holds several models (model, ema)" in refusal(path, config=needed(oracle))


def test_forced_on_another_file(path: Path) -> None:
    torch.save({"lstm.weight": torch.zeros(2, 2)}, path)
    assert "not a Transformer-XL's state dict" in refusal(path, format="state_dict", config={})
    torch.save([torch.zeros(2)], path)
    assert "expected tensors by name" in refusal(path, format="state_dict", config={})


def test_tensors_of_strange_shapes_are_reported(path: Path) -> None:
    oracle = make_oracle()
    tensors: dict[str, Any] = authors_tensors(oracle)
    tensors |= {"r_w_bias": torch.zeros(()), "layers.0.dec_attn.o_net.weight": 3, "r_r_bias": torch.zeros(2, 2, 2)}
    torch.save(tensors, path)
    message = refusal(path, config=needed(oracle))
    assert "n_head is not given; d_model is not given; d_head is not given" in message
    sizes = {"n_head": 2, "d_head": 5, "d_model": 12}
    message = refusal(path, config=needed(oracle) | sizes)
    for said in (
        "r_w_bias is () in the file, (2, 5) by the configuration",
        "r_r_bias is (2, 2, 2) in the file",
        "layers.0.dec_attn.o_net.weight is not a tensor of floats",
    ):
        assert said in message
