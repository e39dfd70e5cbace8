"""State dicts of reformer-pytorch, written by itself. What they compute: `tests/oracles/test_reformer.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reformer_pytorch import ReformerLM
from reformer_pytorch.generative_tools import TrainingWrapper
from safetensors.torch import save_file
from torch import Tensor

from tests.checkpoints.refusals import refusal
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import PyTorchReformer, assert_computes
from xlexport.families.reformer.reformer_pytorch import KNOWN
from xlexport.formats import load
from xltraining.reformer.lsh import draw_rotations

TOLD = {"heads": 2, "bucket_size": 16, "n_hashes": 2, "causal": True, "max_seq_len": 128}
T = 128


def make(**settings: Any) -> PyTorchReformer:
    return PyTorchReformer(ReformerCase("small", {"max_seq_len": T, **settings}, ()))


def saved(
    oracle: PyTorchReformer, path: Path, change: Callable[[dict[str, Tensor]], Any] = lambda tensors: tensors
) -> Path:
    torch.save(change(dict(oracle.model.state_dict())), path)
    return path


def computes(path: Path, oracle: PyTorchReformer, config: dict[str, Any]) -> None:
    source = load(path, config=config)
    assert source.format == "reformer_pytorch"
    assert_computes(source.build_model(), oracle, T)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reformer.pt"


def test_configuration_is_what_tensors_and_arguments_say(path: Path) -> None:
    oracle = make(axial_position_emb=True, depth=2)
    source = load(saved(oracle, path), config=TOLD)
    counted = {part.data_ptr(): part.numel() for part in oracle.model.parameters()}
    assert source.parameters == sum(counted.values())  # each once
    stated = {
        "rule": "chunk",
        "tgt_len": 128,
        "mem_len": 128,
        "max_positions": 128,
        "dropout": 0.0,
        "n_buckets": [8],
        "attn_layers": ["lsh", "lsh"],
    }
    assert stated.items() <= source.config.items()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"model": {f"module.{name}": tensor for name, tensor in tensors.items()}},
        lambda tensors: {name: tensor for name, tensor in tensors.items() if "irrev_blocks" not in name},
        lambda tensors: {name.replace("pos_emb.weights.", "pos_emb.weights_"): t for name, t in tensors.items()},
        lambda tensors: {name: tensor.double() for name, tensor in tensors.items()},
    ],
    ids=["wrapper", "prefix", "without twins", "names of older versions", "double"],
)
def test_state_dicts_as_they_come(change: Callable[[dict[str, Tensor]], Any], path: Path) -> None:
    oracle = make(axial_position_emb=True)
    computes(saved(oracle, path, change), oracle, TOLD)


def test_training_wrapper_and_safetensors(path: Path) -> None:
    oracle = make()
    torch.save(TrainingWrapper(oracle.model).state_dict(), path)
    computes(path, oracle, TOLD)
    tensors = {name: tensor for name, tensor in oracle.model.state_dict().items() if "irrev_blocks" not in name}
    save_file(tensors, path.with_suffix(".safetensors"))
    computes(path.with_suffix(".safetensors"), oracle, TOLD)


def test_arguments_of_the_constructor_are_accepted_unchanged(path: Path) -> None:
    settings = {"weight_tie": True, "ff_chunks": 3, "lsh_dropout": 0.1, "ff_dropout": 0.1, "full_attn_thres": 16}
    oracle = make(**settings, absolute_position_emb=True)
    computes(saved(oracle, path), oracle, oracle.config)


# Buckets and rotations.


@pytest.mark.parametrize(
    ("given", "buckets", "tokens"),
    [
        ({"max_seq_len": 128}, [8], "128"),
        ({"max_seq_len": 128, "max_length": 64}, [4], "64"),
        ({"max_length": 65}, [6], "96"),
        ({"max_seq_len": 128, "num_buckets": [4, 6]}, [4, 6], None),
    ],
)
def test_buckets(given: dict[str, Any], buckets: list[int], tokens: str | None, path: Path) -> None:
    told = {name: value for name, value in TOLD.items() if name != "max_seq_len"}
    source = load(saved(make(), path), config={**told, **given})
    assert source.config["n_buckets"] == buckets
    notes = [note for note in source.notes if "num_buckets" in note]
    assert len(notes) == (tokens is not None)
    assert all(f"for documents of {tokens} tokens" in note for note in notes)


def test_table_of_positions_gives_a_documents_length(path: Path) -> None:
    told = {name: value for name, value in TOLD.items() if name != "max_seq_len"}
    assert load(saved(make(absolute_position_emb=True), path), config=told).config["n_buckets"] == [8]
    message = refusal(saved(make(), path), config=told)
    assert "num_buckets is not given" in message
    assert "give --config num_buckets=N, --config max_length=T for documents of T tokens, or max_seq_len" in message


def test_rotations_are_drawn_once(path: Path) -> None:
    source = load(saved(make(depth=2), path), config=TOLD)
    model = source.build_model()
    for layer in range(2):
        assert torch.equal(model.layers[layer].attention.rotations, draw_rotations(2, 8, 4, 2, seed=0, layer=layer))
    assert any("reformer-pytorch draws new ones at every call" in note for note in source.notes)
    seeded = load(path, config={**TOLD, "hash_seed": 3})
    assert not any("draws new ones" in note for note in seeded.notes)


def test_full_attention_has_neither(path: Path) -> None:
    oracle = make(absolute_position_emb=True, use_full_attn=True)
    source = load(saved(oracle, path), config={**TOLD, "use_full_attn": True})
    assert source.notes == ()
    assert source.config["attn_layers"] == ["full"] * 3


# Refusals.


def test_missing_and_contradictory_settings_are_reported_at_once(path: Path) -> None:
    saved(make(absolute_position_emb=True), path)
    message = refusal(
        path,
        config={"depth": 4, "dim": 31, "colour": 3, "axial_position_emb": True, "num_tokens": 9, "ff_mult": 3},
    )
    for said in (
        "heads is not given",
        "bucket_size is not given",
        "n_hashes is not given",
        "causal is not given",
        "colour is unknown",
        "depth is 4 by the configuration, 3 by the tensors",
        "dim is 31 by the configuration, 32 by the tensors",
        "num_tokens is 9 by the configuration, 50 by the tensors",
        "ff_mult is 3 by the configuration, 4 by the tensors",
        "axial_position_emb is true by the configuration, but positions are absolute by the tensors",
        "Give --config FILE",
    ):
        assert said in message
    assert "heads is not given" in refusal(path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_scale_norm": True}, "use_scale_norm is True: norms with one scale"),
        ({"use_rezero": True}, "use_rezero is True: residual branches"),
        ({"ff_glu": True}, "ff_glu is True: gated"),
        ({"one_value_head": True}, "one_value_head is True: values that all heads share"),
        ({"num_mem_kv": 4}, "num_mem_kv is 4: learned keys"),
        ({"n_local_attn_heads": 1}, "n_local_attn_heads is 1: heads of local attention"),
        ({"pkm_layers": (1,)}, "pkm_layers is (1,): product-key memories"),
        ({"emb_dim": 24}, "emb_dim is not dim"),
        (
            {"full_attn_thres": 64},
            "full_attn_thres is 64: full attention up to that length, but here up to bucket_size 16",
        ),
        ({"use_full_attn": True}, "use_full_attn with rotary positions"),
        ({"causal": False}, "causal is False: tokens see later ones"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused(settings: dict[str, Any], said: str, path: Path) -> None:
    oracle = make(**settings)
    saved(oracle, path)
    message = refusal(path, config=oracle.config)
    assert said in message
    assert message.endswith("`convert` does not support such models.")
    told_otherwise = {name: value for name, value in oracle.config.items() if name not in settings}
    if not {"n_local_attn_heads", "full_attn_thres", "use_full_attn", "causal"} & set(settings):  # tensors show it
        assert said.partition(" is ")[0] in refusal(path, config={**told_otherwise, "causal": True})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bucket_size": 0}, "bucket_size is 0, expected a number of tokens"),
        ({"bucket_size": 24}, "chunk lengths must divide max_positions 128, found 24 (lsh)"),
        ({"n_hashes": 0}, "n_hashes must be at least 1, found 0"),
        ({"n_hashes": 1 << 20}, "n_hashes × layers must be at most"),
        ({"num_buckets": 1 << 30}, "numbers of the rotations"),
        ({"heads": 3}, "toqk.weight is (16, 32) in the file, (15, 32) by the configuration"),
        ({"dim_head": 4}, "heads is 2 by the configuration, 4 by the tensors"),
        ({"hash_seed": "x"}, "hash_seed is 'x', expected an integer"),
        ({"max_seq_len": "x"}, "max_seq_len is 'x', expected a number of tokens"),
        ({"num_buckets": 3}, "num_buckets is 3, expected an even number"),
        ({"ff_activation": "tanh"}, "activation must be one of relu, gelu, gelu_tanh, found 'tanh'"),
        ({"causal": "yes"}, "causal is 'yes': tokens see"),
    ],
    ids=str,
)
def test_invalid_values(given: dict[str, Any], said: str, path: Path) -> None:
    saved(make(absolute_position_emb=True), path)
    assert said in refusal(path, config={**TOLD, **given})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: {**t, "norm.weight": torch.zeros(3)}, "norm.weight is (3,) in the file, (32,) by the configuration"),
        (lambda t: {**t, "extra": torch.zeros(3)}, "extra is unexpected"),
        (lambda t: {name: tensor for name, tensor in t.items() if "out.1" not in name}, "out.1.weight is missing"),
        (lambda t: {**t, TWIN: torch.zeros(32)}, "irrev_blocks.1.f.norm.weight differs from"),
        (lambda t: {**t, "layer_pos_emb.inv_freq": torch.ones(4)}, "inv_freq is not 10000**(-2i/8)"),
        (lambda t: {**t, "layer_pos_emb.inv_freq": torch.ones(3)}, "toqk.weight is (16, 32) in the file, (12, 32)"),
        (lambda t: {n: x for n, x in t.items() if n != "layer_pos_emb.inv_freq"}, "no positions among the tensors"),
        (lambda t: {**t, "norm.bias": torch.full((32,), torch.inf)}, "infinite or undefined weights in norm.bias"),
        (lambda t: {"a": t, "b": t}, "holds several models"),
        (lambda t: {**t, "norm.bias": 3}, "norm.bias is not a tensor of floats"),
    ],
)
def test_tensors_that_do_not_fit(change: Callable[[dict[str, Tensor]], Any], said: str, path: Path) -> None:
    assert said in refusal(saved(make(), path, change), config=TOLD)


TWIN = "reformer.layers.irrev_blocks.1.f.norm.weight"


def test_folder_is_refused(tmp_path: Path) -> None:
    assert "Give the file with the state dict" in refusal(tmp_path, format="reformer_pytorch")
    other = tmp_path / "other.pt"
    torch.save({"weight": torch.zeros(2)}, other)
    assert "not a state dict of reformer-pytorch's ReformerLM" in refusal(other, format="reformer_pytorch")


def test_models_of_the_package_are_all_known_by_their_arguments() -> None:
    """Check that no new argument of the constructor is missed."""
    assert set(inspect.signature(ReformerLM).parameters) <= KNOWN
