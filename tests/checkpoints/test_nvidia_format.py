"""`checkpoint_*.pt` of NVIDIA's code: a dict of configuration, weights, vocabulary and the state of training."""

from __future__ import annotations

import argparse
import re
import sys
import types
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints.authors_models import VARIANTS, assert_computes, authors_tensors, make_oracle
from tests.checkpoints.refusals import refusal
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints import load
from xlruntime.tokenizers.vocabulary import Vocabulary

containers = pytest.mark.parametrize("archive", [True, False], ids=["archive", "legacy"])
TRAINING = ("optimizer_state", "scheduler_state", "rng_states", "memory", "amp_state", "epoch", "best_val_loss")


def nvidia_tensors(oracle: Oracle) -> dict[str, Tensor]:
    """Return the weights under the names of NVIDIA's `state_dict`: tied tensors lack a separate name in `crit`."""
    config = oracle.config
    result = {}
    for name, tensor in authors_tensors(oracle).items():
        if layer := re.fullmatch(r"crit\.out_layers\.(\d+)\.(weight|bias)", name):
            if layer[2] == "weight" and config.tie_weight:
                continue
            result[f"crit.out_layers_{'weights' if layer[2] == 'weight' else 'biases'}.{layer[1]}"] = tensor
        elif projection := re.fullmatch(r"crit\.out_projs\.(\d+)", name):
            if not config.ties_projection(int(projection[1])):
                result[name] = tensor
        else:
            result[name] = tensor
            if name.startswith("word_emb.emb_projs."):
                result[f"crit.shared_out_projs.{name.rpartition('.')[2]}"] = tensor
    return result


@pytest.fixture(scope="module")
def vocabulary_module() -> Iterator[types.ModuleType]:
    """Yield the module of NVIDIA's vocabulary classes, which exists while files are written."""
    module = types.ModuleType("utils.vocabulary")
    for name in ("Vocab", "OpenAIVocab", "GPT2Tokenizer"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    before = {name: sys.modules.get(name) for name in ("utils", module.__name__)}
    sys.modules |= {"utils": types.ModuleType("utils"), module.__name__: module}
    yield module
    for name, old in before.items():
        del sys.modules[name]
        if old is not None:
            sys.modules[name] = old


def make_vocab(module: types.ModuleType, n_token: int) -> Any:
    vocab = module.Vocab()
    symbols = ["<eos>", "<unk>", *(f"word{index}" for index in range(2, n_token))]
    vocab.__dict__ |= {
        "counter": Counter(symbols),
        "special": ["<eos>"],
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        "idx2sym": symbols,
        "sym2idx": OrderedDict((symbol, index) for index, symbol in enumerate(symbols)),
    }
    return vocab


def save(oracle: Oracle, path: Path, archive: bool = True, **changes: Any) -> Path:
    """Write a checkpoint; `changes` replaces entries of it, None leaves one out."""
    config = oracle.config
    model_config: dict[str, Any] = {
        "n_token": config.n_token,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_inner": config.d_inner,
        "dropout": 0.1,
        "dropatt": 0.0,
        "dtype": None,
        "tie_weight": config.tie_weight,
        "d_embed": config.d_embed or config.d_model,
        "div_val": config.div_val,
        "tie_projs": list(config.tie_projs) or [False] * (1 + len(config.cutoffs)),
        "pre_lnorm": config.pre_lnorm,
        "tgt_len": config.tgt_len,
        "ext_len": 0,
        "mem_len": config.mem_len,
        "cutoffs": list(config.cutoffs),
        "same_length": config.same_length,
        "attn_type": 0,
        "clamp_len": config.clamp_len,
        "sample_softmax": -1,
    }
    model_config |= changes.pop("model_config", {})
    content = {
        "args": argparse.Namespace(vocab="word", work_dir="LM-TFM", cuda=True),
        "model_config": {name: value for name, value in model_config.items() if value != "absent"},
        "model_state": OrderedDict(nvidia_tensors(oracle)),
        **changes,
    }
    torch.save(
        {name: value for name, value in content.items() if value is not None},
        path,
        _use_new_zipfile_serialization=archive,
    )
    return path


def nvidia_oracle(**changes: Any) -> Oracle:
    """Make an oracle in which `same_length` sees one key more, as in NVIDIA's code."""
    return make_oracle(window_extra=1, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint_best.pt"


@containers
@pytest.mark.parametrize("variant", VARIANTS)
def test_against_huggingface_over_segments(variant: str, archive: bool, path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS[variant])
    source = load(save(oracle, path, archive))
    assert source.format == "nvidia"
    assert_computes(source, oracle)


def test_window_of_same_length_is_one_key_wider(path: Path) -> None:
    source = load(save(nvidia_oracle(same_length=True), path))
    assert source.config["window_extra"] == 1
    with pytest.raises(AssertionError):
        assert_computes(source, make_oracle(same_length=True))


def test_configuration_is_that_of_the_checkpoint(path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS["div_val"], clamp_len=5, n_layer=3, tgt_len=4, mem_len=6)
    source = load(save(oracle, path))
    assert source.config == oracle.config.to_dict() | {"dropout": 0.1, "d_embed": 12}
    assert source.parameters == sum(parameter.numel() for parameter in oracle.model.parameters())
    assert "are those of training" in source.notes[0]


def test_names_with_the_prefix_of_distributed_training_are_read(path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS["div_val"])
    state = {f"module.{name}": tensor for name, tensor in nvidia_tensors(oracle).items()}
    assert_computes(load(save(oracle, path, model_state=state)), oracle)


def test_names_of_the_authors_code_are_read(path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS["div_val-untied"])
    assert_computes(load(save(oracle, path, model_state=authors_tensors(oracle))), oracle)


def test_half_precision_is_read_and_noted(path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS["cutoffs"])
    halves = {name: tensor.half() for name, tensor in nvidia_tensors(oracle).items()}
    source = load(save(oracle, path, model_state=halves, model_config={"dtype": torch.float16}))
    with torch.no_grad():
        for parameter in oracle.model.parameters():
            parameter.copy_(parameter.half())
    assert_computes(source, oracle)
    assert any("float16 in the file" in note for note in source.notes)


@containers
def test_vocabulary_is_read(path: Path, archive: bool, vocabulary_module: types.ModuleType) -> None:
    oracle = nvidia_oracle()
    source = load(save(oracle, path, archive, vocab=make_vocab(vocabulary_module, oracle.config.n_token)))
    assert isinstance(source.tokenizer, Vocabulary)
    assert source.tokenizer.symbols[:3] == ("<eos>", "<unk>", "word2")
    assert len(source.tokenizer) == oracle.config.n_token
    assert not any("vocabulary" in note for note in source.notes)


def test_missing_vocabulary_gives_no_tokenizer(path: Path) -> None:
    assert load(save(nvidia_oracle(), path)).tokenizer is None


def test_byte_pair_vocabulary_is_noted(path: Path, vocabulary_module: types.ModuleType) -> None:
    vocab = vocabulary_module.OpenAIVocab()
    tokenizer = vocabulary_module.GPT2Tokenizer()
    tokenizer.__dict__ |= {"encoder": {"a": 0, "b": 1}, "decoder": {0: "a", 1: "b"}, "bpe_ranks": {("a", "b"): 0}}
    vocab.__dict__ |= {"tokenizer": tokenizer, "EOT": 39, "max_size": None, "vocab_file": None}
    source = load(save(nvidia_oracle(), path, vocab=vocab))
    assert source.tokenizer is None
    assert any("GPT-2's" in note and "--tokenizer" in note for note in source.notes)


def test_unusable_vocabulary_is_noted(path: Path, vocabulary_module: types.ModuleType) -> None:
    vocab = make_vocab(vocabulary_module, 40)
    vocab.idx2sym[7] = "word6"
    source = load(save(nvidia_oracle(), path, vocab=vocab))
    assert source.tokenizer is None
    assert any("cannot be used" in note and "word6" in note for note in source.notes)


def test_state_of_training_is_left_out_and_named(path: Path) -> None:
    state: dict[str, Any] = {
        "optimizer_state": {"state": {0: {"exp_avg": torch.zeros(7)}}, "param_groups": []},
        "scheduler_state": {"last_epoch": 3},
        "rng_states": [torch.zeros(9, dtype=torch.uint8)],
        "memory": None,
        "amp_state": {"loss_scaler0": {"loss_scale": 65536.0}},
        "epoch": 1,
        "best_val_loss": 3.5,
    }
    notes = load(save(nvidia_oracle(), path, **state)).notes
    (left_out,) = [note for note in notes if "left out" in note]
    assert all(name in left_out for name in TRAINING if name != "memory")


def test_unknown_settings_are_noted(path: Path) -> None:
    notes = load(save(nvidia_oracle(), path, model_config={"use_gelu": True, "adapt_inp": False})).notes
    (unknown,) = [note for note in notes if "unknown and ignored" in note]
    assert "use_gelu" in unknown
    assert "adapt_inp" not in unknown


def test_settings_that_are_left_out_have_the_constructors_values(path: Path) -> None:
    oracle = nvidia_oracle()
    names = ("d_embed", "div_val", "tie_projs", "pre_lnorm", "same_length", "clamp_len", "tie_weight", "cutoffs")
    assert_computes(load(save(oracle, path, model_config=dict.fromkeys(names, "absent"))), oracle)


def test_missing_lengths_may_be_given(path: Path) -> None:
    oracle = nvidia_oracle()
    save(oracle, path, model_config={"tgt_len": None, "mem_len": "absent"})
    assert "no tgt_len and no mem_len" in refusal(path)
    assert_computes(load(path, config={"tgt_len": 6, "mem_len": 9}), oracle)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attn_type": 2}, "attn_type 2 is absolute sinusoids"),
        ({"ext_len": 4}, "ext_len 4 feeds"),
        ({"sample_softmax": 5}, "sample_softmax 5 is"),
        (
            {"n_layer": 10**9, "d_inner": 17},
            "n_layer is 1000000000 by the configuration, 2 by the tensors; d_inner is 17",
        ),
        ({"cutoffs": list(range(1, 39))}, "cutoffs is [1, 2, 3"),
        ({"n_token": torch.zeros(3), "attn_type": 0}, "n_token is 'a Tensor' by the configuration"),
        ({"attn_type": torch.zeros(2)}, "attn_type 'a Tensor' is not a number"),
        ({"n_token": "many"}, "n_token is 'many' by the configuration, 40"),
        ({"pre_lnorm": "maybe"}, "pre_lnorm must be true or false"),
        ({"tie_projs": "all"}, "tie_projs must be a tuple"),
        ({"tie_weight": False}, "crit.out_layers.0.weight is missing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Mapping[str, Any], said: str, path: Path) -> None:
    assert said in refusal(save(nvidia_oracle(), path, model_config=dict(settings)))


def test_attention_that_the_configuration_hides_shows_in_the_tensors(path: Path) -> None:
    oracle = nvidia_oracle()
    tensors = nvidia_tensors(oracle)
    tensors["layers.0.dec_attn.kv_net.weight"] = tensors.pop("layers.0.dec_attn.qkv_net.weight")[:20]
    assert "attn_type 2 is absolute" in refusal(save(oracle, path, model_state=tensors))


def test_all_problems_of_the_tensors_are_reported_at_once(path: Path) -> None:
    oracle = nvidia_oracle(**VARIANTS["div_val"])
    tensors: dict[str, Any] = nvidia_tensors(oracle)
    del tensors["layers.1.dec_attn.r_net.weight"], tensors["crit.cluster_bias"]
    tensors["layers.0.pos_ff.CoreNet.3.weight"] = torch.zeros(3, 4)
    tensors["crit.out_layers_biases.2"] = torch.zeros(15, dtype=torch.int64)
    tensors["layers.1.pos_ff.layer_norm.bias"] = "zeros"
    tensors["crit.shared_out_projs.1"] = tensors["word_emb.emb_projs.1"] + 1
    tensors["r_bias\x1b[2J"] = torch.zeros(2)
    message = refusal(save(oracle, path, model_state=tensors))
    for said in (
        "layers.1.dec_attn.r_net.weight is missing",
        "crit.cluster_bias is missing",
        "layers.0.pos_ff.CoreNet.3.weight is (3, 4) in the file, (12, 16) by the configuration",
        "crit.out_layers_biases.2 is not a tensor of floats",
        "layers.1.pos_ff.layer_norm.bias is not a tensor of floats",
        "crit.shared_out_projs.1 differs from word_emb.emb_projs.1",
        r"'r_bias\x1b[2J' is unexpected",
    ):
        assert said in message


@pytest.mark.parametrize("content", [[1, 2], {"model_config": [], "model_state": {}}, {"model_config": {}}])
def test_forced_on_another_file(content: Any, path: Path) -> None:
    torch.save(content, path)
    assert "no model_config and model_state" in refusal(path, format="nvidia")


def test_not_a_transformer_xl(path: Path) -> None:
    config = {"tgt_len": 3, "mem_len": 3}
    torch.save({"model_config": config, "model_state": {"lstm.weight": torch.zeros(2, 2)}}, path)
    assert "not a Transformer-XL" in refusal(path)
