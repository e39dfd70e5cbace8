"""Transformer-XLs in the files of every code base: what they compute, and what is refused."""

from __future__ import annotations

import json
import sys
import tracemalloc
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpoints.refusals import refusal
from tests.families.transformer_xl.files import (
    ABSENT,
    VARIANTS,
    WAYS,
    assert_computes,
    authors_tensors,
    keep,
    make_oracle,
    rounded,
    write_huggingface,
    write_kimiyoung,
    write_nvidia,
)
from tests.helpers.tiers import thinned
from xlexport.checkpoints.safe_pickle import read
from xlexport.checkpoints.tensor_mapping import same
from xlexport.formats import load
from xlruntime.tokenizers.vocabulary import Vocabulary

KIMIYOUNG, NVIDIA, HUGGING_FACE, STATE_DICT = (
    WAYS[name] for name in ("kimiyoung", "nvidia", "huggingface", "state_dict")
)
OF_NVIDIA, OF_HUGGING_FACE, OF_OURS = (WAYS[f"state_dict of {name}"] for name in ("nvidia", "huggingface", "ours"))
WORDS = ["<eos>", "<unk>", *(f"word{index}" for index in range(2, 40))]


# Models.


@pytest.mark.parametrize("variant", thinned(VARIANTS, ["cutoffs-narrow"]))
@pytest.mark.parametrize("name", WAYS)
def test_against_huggingface_over_segments(name: str, variant: str, tmp_path: Path) -> None:
    way = WAYS[name]
    oracle = way.oracle(**VARIANTS[variant])
    source = way.load(oracle, tmp_path)
    assert source.format == way.format
    assert "mem_transformer" not in sys.modules  # nothing of the file was imported
    assert_computes(source, oracle)
    assumed = any("code base is assumed to be kimiyoung" in note for note in source.notes)
    assert assumed == name.removesuffix(", legacy").endswith("state_dict")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("kimiyoung", {"dropout": 0.1, "d_embed": 12, "layer_norm_epsilon": 1e-3}),
        ("nvidia", {"dropout": 0.1, "d_embed": 12}),
        ("huggingface", {"d_embed": 12, "layer_norm_epsilon": 1e-3}),
    ],
)
def test_configuration_is_that_of_the_files(name: str, own: dict[str, Any], tmp_path: Path) -> None:
    way, changes = WAYS[name], {**VARIANTS["div_val"], "clamp_len": 5, "n_layer": 3, "tgt_len": 4, "mem_len": 6}
    oracle = way.oracle(**changes, layer_norm_epsilon=own.get("layer_norm_epsilon", 1e-5))
    source = way.load(oracle, tmp_path)
    assert source.config == oracle.config.to_dict() | own
    assert source.parameters == sum(parameter.numel() for parameter in oracle.model.parameters())
    assert (source.tokenizer, source.needs) == (None, ())
    written = {"kimiyoung": ["model.pt"], "nvidia": ["checkpoint_best.pt"]}
    assert [file.name for file in source.files] == written.get(name, ["config.json", "model.safetensors"])


def without_sizes(model: Any) -> None:
    for parameters in (model.word_emb.emb_projs, model.crit.out_projs):  # as torch before 1.6 saved them
        del parameters.__dict__["_size"]


def without_new_attributes(model: Any) -> None:
    for name in ("sample_softmax", "attn_type", "clamp_len", "same_length", "ext_len"):
        delattr(model, name)


def with_prefix(prefix: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


CONSTRUCTOR = ("d_embed", "div_val", "tie_projs", "pre_lnorm", "same_length", "clamp_len", "tie_weight", "cutoffs")
SAME: dict[str, tuple[str, str, dict[str, Any], Callable[[Any], Any]]] = {  # way, variant, settings, edit
    "parameter lists of old torch": ("kimiyoung", "div_val", {}, without_sizes),
    "data parallel": ("kimiyoung", "plain", {}, nn.DataParallel),
    "attributes that older code lacked": ("kimiyoung", "plain", {}, without_new_attributes),
    "distributed": ("nvidia", "div_val", {}, with_prefix("module.")),
    "names of the authors": (
        "nvidia", "div_val-untied", {}, lambda _: authors_tensors(NVIDIA.oracle(**VARIANTS["div_val-untied"])),
    ),
    "settings of the constructor": ("nvidia", "plain", dict.fromkeys(CONSTRUCTOR, ABSENT), dict),
    "other keys": (
        "huggingface", "plain", {"auto_map": {"AutoModel": "evil.Model"}, "init": [1], "_kernel": "evil/kernel"}, dict,
    ),
    "wrapper state_dict": ("state_dict", "div_val", {}, lambda tensors: {"state_dict": tensors, "epoch": 3}),
    "wrapper model": ("state_dict", "div_val", {}, lambda tensors: {"model": tensors, "optimizer": {"state": {}}}),
    "wrapper and prefix": (
        "state_dict", "div_val", {}, lambda tensors: {"state_dict": with_prefix("model.module.")(tensors)},
    ),
    "without buffer": (
        "state_dict", "div_val", {}, lambda tensors: {n: t for n, t in tensors.items() if n != "pos_emb.inv_freq"},
    ),
    "double": ("state_dict", "div_val", {}, lambda tensors: {name: t.double() for name, t in tensors.items()}),
    "prefix of huggingface": ("state_dict of huggingface", "div_val", {}, with_prefix("module.")),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_files_of_the_same_model(what: str, tmp_path: Path) -> None:
    name, variant, settings, edit = SAME[what]
    oracle = WAYS[name].oracle(**VARIANTS[variant])
    assert_computes(WAYS[name].load(oracle, tmp_path, settings, edit), oracle)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("kimiyoung", torch.float16),
        ("kimiyoung, legacy", torch.float16),
        ("nvidia", torch.float16),
        ("huggingface", torch.bfloat16),
    ],
)
def test_half_precision_is_read_and_noted(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    oracle = WAYS[name].oracle(**VARIANTS["div_val"])

    def lower(content: Any) -> Any:
        return content.to(dtype) if isinstance(content, nn.Module) else {n: t.to(dtype) for n, t in content.items()}

    source = WAYS[name].load(oracle, tmp_path, edit=lower)
    assert_computes(source, rounded(oracle, dtype))
    kind = str(dtype).removeprefix("torch.")
    assert any(f"Weights are {kind} in the file" in note or f"float32, {kind}" in note for note in source.notes)
    assert any("positions" in note for note in source.notes) == (dtype == torch.float16)


def test_copied_code_in_another_module_is_read(tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"])
    assert_computes(load(write_kimiyoung(oracle, tmp_path, package="copied_")), oracle)


def test_tensors_that_are_tied_stay_one(tmp_path: Path) -> None:
    model = KIMIYOUNG.load(make_oracle(**VARIANTS["cutoffs-narrow"]), tmp_path).build_model()
    assert model.head.clusters[2].projection is model.word_emb.clusters[0].projection
    assert model.head.clusters[1].weight is model.word_emb.clusters[1].table
    assert model.head.clusters[0].projection is not model.word_emb.clusters[0].projection
    tables = {cluster.table.untyped_storage().data_ptr() for cluster in model.word_emb.clusters}
    assert len(tables) == 1  # rows of the file's one table, not copies of them


def test_views_of_one_place_in_memory_may_differ() -> None:
    weight = torch.arange(9.0).view(3, 3)
    assert same(weight, weight.view(3, 3)) and not same(weight, weight.t())


# Evaluation settings.


@pytest.mark.parametrize(
    ("given", "begins", "ends"),
    [
        ({}, "tgt_len 6, mem_len 9, clamp_len -1 and same_length false are those of training; ", "--set same_length."),
        (
            {"mem_len": 5, "clamp_len": 3, "ext_len": 0},
            "tgt_len 6 and same_length false are those of training; ",
            ": give --segment-len and --set same_length.",
        ),
        ({"mem_len": 5, "clamp_len": 3, "tgt_len": 4}, "same_length false is that of training; ", "same_length."),
        ({"mem_len": 5, "clamp_len": 3, "tgt_len": 4, "same_length": True}, None, ""),
    ],
)
def test_settings_of_training_are_noted(given: dict[str, Any], begins: str | None, ends: str, tmp_path: Path) -> None:
    notes = load(write_kimiyoung(make_oracle(), tmp_path), config=given).notes
    if begins is None:
        assert notes == ()
    else:
        (note,) = notes
        assert note.startswith(begins) and note.endswith(ends)


def test_evaluation_settings_may_be_given(tmp_path: Path) -> None:
    oracle = make_oracle(mem_len=4, clamp_len=3, same_length=True)
    trained = {"mem_len": 9, "clamp_len": -1, "same_length": False, "ext_len": 2}
    assert '{"ext_len": 0}' in KIMIYOUNG.refusal(tmp_path, trained, oracle=oracle)
    path = write_kimiyoung(oracle, tmp_path, trained)
    assert_computes(load(path, config={"mem_len": 4, "clamp_len": 3, "same_length": True, "ext_len": 0}), oracle)


def test_missing_lengths_may_be_given(tmp_path: Path) -> None:
    missing = {"tgt_len": None, "mem_len": ABSENT}
    assert "no tgt_len and no mem_len" in NVIDIA.refusal(tmp_path, missing)
    path = write_nvidia(NVIDIA.oracle(), tmp_path, missing)
    assert_computes(load(path, config={"tgt_len": 6, "mem_len": 9}), NVIDIA.oracle())


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Yield the module of NVIDIA's vocabulary classes, which exists while files are written."""
    module = types.ModuleType("utils.vocabulary")
    for name in ("Vocab", "OpenAIVocab", "GPT2Tokenizer"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    monkeypatch.setitem(sys.modules, "utils", types.ModuleType("utils"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("kind", ["words", "byte pairs", "broken"])
def test_vocabulary_of_nvidias_checkpoint(kind: str, archive: bool, classes: types.ModuleType, tmp_path: Path) -> None:
    if kind == "byte pairs":
        vocab, tokenizer = classes.OpenAIVocab(), classes.GPT2Tokenizer()
        tokenizer.__dict__ |= {"encoder": {"a": 0, "b": 1}, "decoder": {0: "a"}, "bpe_ranks": {("a", "b"): 0}}
        vocab.__dict__ |= {"tokenizer": tokenizer, "EOT": 39, "max_size": None, "vocab_file": None}
    else:
        vocab, symbols = classes.Vocab(), [*WORDS]
        ids = OrderedDict((symbol, index) for index, symbol in enumerate(WORDS))
        vocab.__dict__ |= {
            "idx2sym": symbols,
            "sym2idx": ids,
            "lower_case": False,
            "delimiter": None,
            "counter": Counter(WORDS),
            "special": ["<eos>"],
        }
        symbols[7] = WORDS[7] if kind == "words" else WORDS[6]
    source = load(write_nvidia(NVIDIA.oracle(), tmp_path, archive=archive, entries={"vocab": vocab}))
    (said,) = [note for note in source.notes if "vocabulary" in note] or [""]
    if kind == "words":
        assert isinstance(source.tokenizer, Vocabulary) and source.tokenizer.symbols == tuple(WORDS) and not said
    else:
        assert source.tokenizer is None and "--tokenizer" in said
        assert ("GPT-2's" if kind == "byte pairs" else "cannot be used") in said


def test_state_of_training_and_unknown_settings_are_named(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "optimizer_state": {"state": {0: {"exp_avg": torch.zeros(7)}}, "param_groups": []},
        "scheduler_state": {"last_epoch": 3},
        "rng_states": [torch.zeros(9, dtype=torch.uint8)],
        "amp_state": {"loss_scaler0": {"loss_scale": 65536.0}},
        "best_val_loss": 3.5,
    }
    settings = {"use_gelu": True, "adapt_inp": False}
    notes = load(write_nvidia(NVIDIA.oracle(), tmp_path, settings, entries=state)).notes
    (left_out,) = [note for note in notes if "left out" in note]
    assert all(name in left_out for name in state)
    (unknown,) = [note for note in notes if "unknown and ignored" in note]
    assert "use_gelu" in unknown and "adapt_inp" not in unknown


# State dicts.


def test_our_names_without_projections_of_the_same_width(tmp_path: Path) -> None:
    oracle = make_oracle(**{**VARIANTS["div_val-untied"], "proj_same_dim": False})
    source = OF_OURS.load(oracle, tmp_path)
    assert source.config["proj_same_dim"] is False
    assert_computes(source, oracle)


def test_safetensors_with_what_is_tied_left_out(tmp_path: Path) -> None:
    oracle = OF_HUGGING_FACE.oracle(**VARIANTS["div_val"])
    folder = write_huggingface(oracle, tmp_path)
    path = folder.with_name("weights.safetensors")
    (folder / "model.safetensors").rename(path)
    needed = OF_HUGGING_FACE.config(oracle) or {}
    assert "crit.out_layers.0.weight is missing" in refusal(path, config=needed)
    ties = {"tie_weight": True, "tie_projs": list(oracle.config.tie_projs)}
    assert_computes(load(path, config={**needed, **ties}), oracle)


def test_configurations_of_code_bases_are_accepted(tmp_path: Path) -> None:
    oracle = OF_HUGGING_FACE.oracle(**VARIANTS["div_val"])
    folder = write_huggingface(oracle, tmp_path, {"tgt_len": None})
    path, config = OF_HUGGING_FACE.write(oracle, tmp_path), json.loads((folder / "config.json").read_text())
    source = load(path, config=config)
    assert_computes(source, oracle)
    assert any("segments are 128 tokens" in note for note in source.notes)

    oracle = OF_NVIDIA.oracle(**VARIANTS["cutoffs-narrow"])
    model_config = read(write_nvidia(oracle, tmp_path))["model_config"]
    assert_computes(load(OF_NVIDIA.write(oracle, tmp_path), config=json.loads(json.dumps(model_config))), oracle)


def test_configuration_may_name_the_code_base_if_names_are_shared(tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"], window_extra=1)
    config = {**(STATE_DICT.config(oracle) or {}), "source": "nvidia"}
    source = load(STATE_DICT.write(oracle, tmp_path), config=config)
    assert_computes(source, oracle)
    assert not any("code base is assumed" in note for note in source.notes)


def test_needed_settings_are_those_that_the_tensors_do_not_show(tmp_path: Path) -> None:
    message = refusal(STATE_DICT.write(make_oracle(**VARIANTS["cutoffs"]), tmp_path))
    for name in (*STATE_DICT.needed, "cutoffs"):
        assert f"{name} is not given" in message
    assert "d_model" not in message and "--config FILE" in message
    source = STATE_DICT.load(make_oracle(**VARIANTS["div_val"]), tmp_path)
    assert (source.config["cutoffs"], source.config["div_val"]) == ([8, 15, 30], 2)


# Refusals.


def break_two(model: Any) -> None:
    del model.layers[0].dec_attn.r_net, model.layers[1].dec_attn.r_net, model.crit.out_layers[0].bias
    model.gate = nn.Linear(2, 2, bias=False)


def break_many(tensors: dict[str, Any]) -> None:
    del tensors["layers.1.dec_attn.r_net.weight"], tensors["crit.cluster_bias"]
    tensors |= {
        "layers.0.pos_ff.CoreNet.3.weight": torch.zeros(3, 4),
        "crit.out_layers_biases.2": torch.zeros(15, dtype=torch.int64),
        "layers.1.pos_ff.layer_norm.bias": "zeros",
        "crit.shared_out_projs.1": tensors["word_emb.emb_projs.1"] + 1,
        "r_bias\x1b[2J": torch.zeros(2),
    }


def hide_attention(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.dec_attn.kv_net.weight"] = tensors.pop("layers.0.dec_attn.qkv_net.weight")[:20]


STRANGE = {"r_w_bias": torch.zeros(()), "layers.0.dec_attn.o_net.weight": 3, "r_r_bias": torch.zeros(2, 2, 2)}
N_LAYER = "n_layer is {} by the configuration, 2 by the tensors"
REFUSED: list[tuple[str, dict[str, Any], Any, str | list[str]]] = [  # way, settings, edit, what the message says
    ("kimiyoung", {"attn_type": 4}, None, "attn_type 4 is unknown here"),
    ("kimiyoung", {"attn_type": 1.0}, None, "attn_type 1.0 is not a number"),
    ("kimiyoung", {"attn_type": "x"}, None, "attn_type 'x' is not a number"),
    ("kimiyoung", {"ext_len": 5}, None, "ext_len 5 feeds the last tokens of a segment once more"),
    ("kimiyoung", {"sample_softmax": 64}, None, "sample_softmax 64 is an output layer that is trained on samples"),
    (
        "kimiyoung", {"attn_type": 7, "ext_len": 3, "sample_softmax": 9}, None,
        ["attn_type 7", "ext_len 3", "sample_softmax 9"],
    ),
    ("kimiyoung", {"tgt_len": None, "mem_len": None}, None, "tgt_len is missing; mem_len is missing"),
    ("kimiyoung", {"n_layer": 3, "n_head": 6}, None, [N_LAYER.format(3), "n_head is 6 by the configuration, 2 by"]),
    ("kimiyoung", {}, lambda m: setattr(m.word_emb, "emb_scale", 1.0), "word_emb.emb_scale is 1.0, expected 3.4641"),
    ("kimiyoung", {}, lambda m: setattr(m.layers[1].dec_attn, "scale", 0.25), "layers.1.dec_attn.scale is 0.25"),
    ("kimiyoung", {}, lambda m: setattr(m.layers[1].dec_attn, "pre_lnorm", True), "pre_lnorm is true in some layers"),
    ("kimiyoung", {}, lambda m: setattr(m.layers[0].pos_ff.layer_norm, "eps", 1e-3), "layer_norm.eps is "),
    ("kimiyoung", {}, lambda m: m.pos_emb.inv_freq.mul_(2), "pos_emb.inv_freq is not 10000**"),
    (
        "kimiyoung", {}, break_two,
        ["layers.0-1.dec_attn.r_net.weight is missing", "crit.out_layers.0.bias is missing", "gate.weight is unexp"],
    ),
    (
        "kimiyoung", {}, lambda m: m.crit.out_layers[0].register_parameter("weight", None),
        "crit.out_layers.0.weight is missing",
    ),
    ("nvidia", {"attn_type": 2}, None, "attn_type 2 is absolute sinusoids"),
    ("nvidia", {"n_layer": 10**9, "d_inner": 17}, None, [f"{N_LAYER.format(10**9)}; d_inner is 17"]),
    ("nvidia", {"cutoffs": list(range(1, 39))}, None, "cutoffs is [1, 2, 3"),
    ("nvidia", {"n_token": torch.zeros(3)}, None, "n_token is 'a Tensor' by the configuration"),
    ("nvidia", {"attn_type": torch.zeros(2)}, None, "attn_type 'a Tensor' is not a number"),
    ("nvidia", {"n_token": "many"}, None, "n_token is 'many' by the configuration, 40"),
    ("nvidia", {"pre_lnorm": "maybe"}, None, "pre_lnorm must be true or false"),
    ("nvidia", {"tie_projs": "all"}, None, "tie_projs must be a tuple"),
    ("nvidia", {"tie_weight": False}, None, "crit.out_layers.0.weight is missing"),
    ("nvidia", {}, hide_attention, "attn_type 2 is absolute"),
    ("nvidia", {}, lambda _: {"lstm.weight": torch.zeros(2, 2)}, "not a Transformer-XL"),
    ("huggingface", {"attn_type": 1}, None, "attn_type 1 is learned relative positions"),
    ("huggingface", {"n_layer": 4, "d_model": 14}, None, f"{N_LAYER.format(4)}; d_model is 14"),
    ("huggingface", {"cutoffs": [5, 4], "tie_projs": None}, None, "cutoffs is [5, 4] by the configuration, [] by the"),
    ("huggingface", {"untie_r": False, "mem_len": -1}, None, "mem_len must be at least 0"),
    ("huggingface", {"layer_norm_epsilon": "x"}, None, "layer_norm_epsilon must be a finite number"),
    ("huggingface", {"tie_word_embeddings": False}, None, "crit.out_layers.0.weight is missing"),
    (
        "huggingface", {"n_token": 41, "tie_weight": False, "tie_word_embeddings": True}, None,
        ["n_token is 41, vocab_size is 40", "tie_weight is False, tie_word_embeddings is True"],
    ),
    (
        "state_dict of nvidia", {"source": "kimiyoung"}, None,
        "source is kimiyoung by the configuration, nvidia by the tensors' names",
    ),
    ("state_dict of nvidia", {"source": "fairseq"}, None, "source is 'fairseq', expected one of kimiyoung, nvidia, "),
    ("state_dict of nvidia", {"source": ["nvidia"]}, None, "source is "),
    (
        "state_dict", {"mem_len": -1, "same_length": "yes", "layer_norm_epsilon": 0}, None,
        "same_length must be true or false, found 'yes'",
    ),
    (
        "state_dict", {}, lambda t: {**t, "r_emb": torch.zeros(2, 9, 2, 5), "r_bias": torch.zeros(2, 9, 2)},
        "attn_type 1 is learned relative positions",
    ),
    (
        "state_dict", {}, lambda t: {n.replace("crit.out_layers.0", "out_layer"): x for n, x in t.items()},
        "trained on samples",
    ),
    ("state_dict", {}, lambda t: {n: x for n, x in t.items() if "crit" not in n}, "without an output layer"),
    ("state_dict", {}, lambda t: {"model": t, "ema": t}, "holds several models (model, ema)"),
    (
        "state_dict", {}, lambda tensors: {**tensors, **STRANGE},
        "n_head is not given; d_model is not given; d_head is not given",
    ),
    (
        "state_dict", {"n_head": 2, "d_head": 5, "d_model": 12}, lambda tensors: {**tensors, **STRANGE},
        [
            "r_w_bias is () in the file, (2, 5) by the configuration", "r_r_bias is (2, 2, 2) in the file",
            "layers.0.dec_attn.o_net.weight is not a tensor of floats",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "edit", "said"), REFUSED)
def test_refused(name: str, settings: dict[str, Any], edit: Any, said: str | list[str], tmp_path: Path) -> None:
    message = WAYS[name].refusal(tmp_path, settings, edit or keep)
    for part in [said] if isinstance(said, str) else said:
        assert part in message


def test_all_problems_of_the_tensors_are_reported_at_once(tmp_path: Path) -> None:
    message = NVIDIA.refusal(tmp_path, edit=break_many, oracle=NVIDIA.oracle(**VARIANTS["div_val"]))
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


def test_all_problems_of_the_settings_are_reported_at_once(tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"], tie_weight=False)
    config = {**(STATE_DICT.config(oracle) or {}), "n_layer": 7, "d_head": 6, "cutoffs": [8, 15], "tie_weight": True}
    del config["mem_len"], config["pre_lnorm"]
    message = refusal(STATE_DICT.write(oracle, tmp_path), config={**config, "n_gpu": 8, "vocab_size": 41})
    for said in (
        "mem_len is not given",
        "pre_lnorm is not given",
        "n_gpu is unknown",
        N_LAYER.format(7),
        "d_head is 6 by the configuration, 5 by the tensors",
        "n_token is 41 by the configuration, 40 by the tensors",
        "cutoffs is [8, 15] by the configuration, of length 3 by the tensors",
        "tie_weight is true by the configuration, but the output layer has weights of its own",
    ):
        assert said in message


@pytest.mark.parametrize("div_val", [2, 3])
def test_div_val_must_give_the_widths(div_val: int, tmp_path: Path) -> None:
    """Give the last cluster, which is one number wide, only by 2: the widths are 12, 6, 3 and 1."""
    oracle = make_oracle(**VARIANTS["div_val"])
    if div_val == 2:
        config = {**(STATE_DICT.config(oracle) or {}), "div_val": 2}
        assert_computes(load(STATE_DICT.write(oracle, tmp_path), config=config), oracle)
    else:
        message = STATE_DICT.refusal(tmp_path, {"div_val": 3}, oracle=oracle)
        assert "div_val is 3 by the configuration, 2 by the tensors" in message


def test_nothing_but_evaluation_settings_may_be_given(tmp_path: Path) -> None:
    message = KIMIYOUNG.refusal(tmp_path, config={"n_layer": 2, "mem_len": 3, "cutoffs": []})
    assert "so 'cutoffs', 'n_layer' cannot be given" in message


@pytest.mark.parametrize(
    ("format", "content", "said"),
    [
        ("kimiyoung", {"weight": torch.zeros(2)}, "holds a dict, expected a MemTransformerLM"),
        ("nvidia", [1, 2], "no model_config and model_state"),
        ("nvidia", {"model_config": [], "model_state": {}}, "no model_config and model_state"),
        ("nvidia", {"model_config": {}}, "no model_config and model_state"),
        ("state_dict", {"lstm.weight": torch.zeros(2, 2)}, "not a Transformer-XL's state dict"),
        ("state_dict", [torch.zeros(2)], "expected tensors by name"),
    ],
)
def test_forced_on_another_file(format: str, content: Any, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pt")
    assert said in refusal(tmp_path / "model.pt", format=format)


def test_values_that_repeat_themselves_are_not_written_out(tmp_path: Path) -> None:
    endless = [["x" * 10**4] * 100] * 100  # a hundred megabytes, if every place counts

    def spoil(model: Any) -> None:
        model.layers[0].pos_ff.layer_norm.eps = model.word_emb.emb_scale = model.n_head = endless

    path = write_kimiyoung(make_oracle(), tmp_path, edit=spoil)
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "layer_norm.eps" in message and "emb_scale" in message and len(message) < 1000
    assert peak < 10 << 20


def test_sizes_that_contradict_the_tensors_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Any) -> None:
        del model.layers[0].dec_attn.o_net.weight  # this tensor shows d_model
        model.d_model, model.word_emb.emb_scale = 1 << 20, float(1 << 10)

    path = write_kimiyoung(make_oracle(), tmp_path, edit=spoil)
    asked: list[tuple[Any, ...]] = []
    arange = torch.arange

    def spied(*sizes: Any) -> torch.Tensor:
        asked.append(sizes)
        return arange(*sizes)

    monkeypatch.setattr(torch, "arange", spied)
    assert "pos_emb.inv_freq is " in refusal(path)
    assert all(max(sizes) < 1000 for sizes in asked)
