"""`model.pt` of the authors' PyTorch code: a whole pickled module."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checkpoints.authors_models import VARIANTS, assert_computes, authors_code, authors_module, make_oracle
from tests.checkpoints.refusals import refusal
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints import load
from xlexport.checkpoints.tensor_mapping import same

containers = pytest.mark.parametrize("archive", [True, False], ids=["archive", "legacy"])
Change = Callable[[Any], object]


def save(
    oracle: Oracle,
    path: Path,
    change: Change = lambda model: model,
    archive: bool = True,
    package: str = "",
    **attributes: Any,
) -> Path:
    """Write a `model.pt` with the oracle's weights; `change` may change the model first, or give another one."""
    with authors_code(path.parent, package) as classes:
        model = authors_module(oracle, classes, **attributes)
        changed = change(model)
        torch.save(changed if isinstance(changed, nn.Module) else model, path, _use_new_zipfile_serialization=archive)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


@containers
@pytest.mark.parametrize("variant", VARIANTS)
def test_against_huggingface_over_segments(variant: str, archive: bool, path: Path) -> None:
    oracle = make_oracle(**VARIANTS[variant])
    source = load(save(oracle, path, archive=archive))
    assert source.format == "kimiyoung"
    assert "mem_transformer" not in sys.modules  # nothing of the file was imported
    assert_computes(source, oracle)
    assert source.config["first_memory"] == "empty"


def test_configuration_is_that_of_the_object(path: Path) -> None:
    oracle = make_oracle(
        **VARIANTS["div_val"], clamp_len=5, layer_norm_epsilon=1e-3, d_head=7, n_layer=3, tgt_len=4, mem_len=6
    )
    source = load(save(oracle, path))
    expected = oracle.config.to_dict() | {
        "dropout": 0.1,
        "d_embed": 12,
    }  # the oracle drops nothing and leaves d_embed open
    assert source.config == expected
    assert source.parameters == sum(parameter.numel() for parameter in oracle.model.parameters())
    assert source.tokenizer is None
    assert list(source.files) == [path]
    assert source.needs == ()


def test_settings_of_training_are_noted(path: Path) -> None:
    (settings,) = load(save(make_oracle(same_length=True), path)).notes
    assert "tgt_len 6, mem_len 9, clamp_len -1 and same_length true are those of training" in settings


def test_settings_that_are_given_are_not_those_of_training(path: Path) -> None:
    save(make_oracle(), path)
    (note,) = load(path, config={"mem_len": 5, "clamp_len": 3, "ext_len": 0}).notes
    assert note.startswith("tgt_len 6 and same_length false are those of training; ")
    assert note.endswith(": give --segment-len and --set same_length.")
    given = {"mem_len": 5, "clamp_len": 3, "tgt_len": 4}
    (note,) = load(path, config=given).notes
    assert note.startswith("same_length false is that of training; ")
    assert load(path, config={**given, "same_length": True}).notes == ()


def test_tensors_that_are_tied_stay_one(path: Path) -> None:
    model = load(save(make_oracle(**VARIANTS["cutoffs-narrow"]), path)).build_model()
    assert model.head.clusters[2].projection is model.word_emb.clusters[0].projection
    assert model.head.clusters[1].weight is model.word_emb.clusters[1].table
    assert model.head.clusters[0].projection is not model.word_emb.clusters[0].projection
    tables = {cluster.table.untyped_storage().data_ptr() for cluster in model.word_emb.clusters}
    assert len(tables) == 1  # rows of the file's one table, not copies of them


@containers
def test_half_precision_is_read_and_noted(path: Path, archive: bool) -> None:
    oracle = make_oracle(**VARIANTS["div_val"])
    source = load(save(oracle, path, lambda model: model.half(), archive))
    with torch.no_grad():  # what was saved, with the sinusoids in float32
        for parameter in oracle.model.parameters():
            parameter.copy_(parameter.half())
    assert_computes(source, oracle)
    assert any("float16 in the file" in note for note in source.notes)
    assert any("positions" in note for note in source.notes)


def test_parameter_lists_of_old_torch_are_read(path: Path) -> None:
    def age(model: Any) -> None:
        for parameters in (model.word_emb.emb_projs, model.crit.out_projs):
            del parameters.__dict__["_size"]

    oracle = make_oracle(**VARIANTS["div_val"])
    assert_computes(load(save(oracle, path, age)), oracle)


def test_model_in_data_parallel_is_read(path: Path) -> None:
    oracle = make_oracle()
    assert_computes(load(save(oracle, path, nn.DataParallel)), oracle)


def test_copied_code_in_another_module_is_read(path: Path) -> None:
    oracle = make_oracle(**VARIANTS["cutoffs"])
    assert_computes(load(save(oracle, path, package="copied_")), oracle)


def test_attributes_that_older_code_lacked_have_its_values(path: Path) -> None:
    def age(model: Any) -> None:
        for name in ("sample_softmax", "attn_type", "clamp_len", "same_length", "ext_len"):
            delattr(model, name)

    oracle = make_oracle()
    assert_computes(load(save(oracle, path, age)), oracle)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"attn_type": 4}, "attn_type 4 is unknown here"),
        ({"attn_type": 1.0}, "attn_type 1.0 is not a number"),
        ({"attn_type": "x"}, "attn_type 'x' is not a number"),
        ({"ext_len": 5}, "ext_len 5 feeds the last tokens of a segment once more"),
        ({"sample_softmax": 64}, "sample_softmax 64 is an output layer that is trained on samples"),
    ],
)
def test_unsupported_settings_are_refused_by_name(attributes: Any, said: str, path: Path) -> None:
    assert said in refusal(save(make_oracle(), path, **attributes))


def test_all_unsupported_settings_are_reported_at_once(path: Path) -> None:
    message = refusal(save(make_oracle(), path, attn_type=7, ext_len=3, sample_softmax=9))
    assert "attn_type 7" in message
    assert "ext_len 3" in message
    assert "sample_softmax 9" in message


def test_evaluation_settings_may_be_given(path: Path) -> None:
    oracle = make_oracle(mem_len=4, clamp_len=3, same_length=True)
    save(oracle, path, mem_len=9, clamp_len=-1, same_length=False, ext_len=2)
    assert '{"ext_len": 0}' in refusal(path)
    source = load(path, config={"mem_len": 4, "clamp_len": 3, "same_length": True, "ext_len": 0})
    assert_computes(source, oracle)


def test_nothing_else_may_be_given(path: Path) -> None:
    message = refusal(save(make_oracle(), path), config={"n_layer": 2, "mem_len": 3, "cutoffs": []})
    assert "so 'cutoffs', 'n_layer' cannot be given" in message


def test_missing_lengths_are_named(path: Path) -> None:
    assert "tgt_len is missing; mem_len is missing" in refusal(save(make_oracle(), path, tgt_len=None, mem_len=None))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: setattr(model.word_emb, "emb_scale", 1.0), "word_emb.emb_scale is 1.0, expected 3.4641"),
        (lambda model: setattr(model.layers[1].dec_attn, "scale", 0.25), "layers.1.dec_attn.scale is 0.25"),
        (lambda model: setattr(model.layers[1].dec_attn, "pre_lnorm", True), "pre_lnorm is true in some layers"),
        (lambda model: setattr(model.layers[0].pos_ff.layer_norm, "eps", 1e-3), "layer_norm.eps is "),
        (lambda model: model.pos_emb.inv_freq.mul_(2), "pos_emb.inv_freq is not 10000**"),
    ],
    ids=["embedding", "attention", "pre_lnorm", "epsilon", "frequencies"],
)
def test_changed_code_is_another_model(change: Change, said: str, path: Path) -> None:
    assert said in refusal(save(make_oracle(), path, lambda model: (change(model), None)[1]))


def test_views_of_one_place_in_memory_may_differ() -> None:
    weight = torch.arange(9.0).view(3, 3)
    assert same(weight, weight.view(3, 3))
    assert not same(weight, weight.t())


def test_values_that_repeat_themselves_are_not_written_out(path: Path) -> None:
    endless = [["x" * 10**4] * 100] * 100  # a hundred megabytes, if every place counts

    def spoil(model: Any) -> None:
        model.layers[0].pos_ff.layer_norm.eps = endless
        model.word_emb.emb_scale = endless
        model.n_head = endless

    save(make_oracle(), path, spoil)
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "layer_norm.eps" in message
    assert "emb_scale" in message
    assert len(message) < 1000
    assert peak < 10 << 20


def test_sizes_that_contradict_the_tensors_take_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Any) -> None:
        del model.layers[0].dec_attn.o_net.weight  # this tensor shows d_model
        model.d_model, model.word_emb.emb_scale = 1 << 20, float(1 << 10)

    save(make_oracle(), path, spoil)
    asked: list[tuple[Any, ...]] = []
    arange = torch.arange

    def noted(*sizes: Any) -> torch.Tensor:
        asked.append(sizes)
        return arange(*sizes)

    monkeypatch.setattr(torch, "arange", noted)
    assert "pos_emb.inv_freq is " in refusal(path)
    assert all(max(sizes) < 1000 for sizes in asked)


def test_weights_that_are_not_finite_are_refused(path: Path) -> None:
    def break_it(model: Any) -> None:
        model.layers[1].dec_attn.r_net.weight.data[0, 0] = torch.inf
        model.word_emb.emb_layers[0].weight.data[3, 3] = torch.nan

    message = refusal(save(make_oracle(), path, break_it))
    assert "word_emb.clusters.0.table, layers.1.attention.position.weight" in message


def test_attributes_that_contradict_the_tensors_are_reported_at_once(path: Path) -> None:
    message = refusal(save(make_oracle(), path, n_layer=3, n_head=6))
    assert "n_layer is 3 by the configuration, 2 by the tensors" in message
    assert "n_head is 6 by the configuration, 2 by the tensors" in message


def test_missing_and_foreign_tensors_are_reported_at_once(path: Path) -> None:
    def change(model: Any) -> None:
        del model.layers[0].dec_attn.r_net, model.layers[1].dec_attn.r_net, model.crit.out_layers[0].bias
        model.gate = nn.Linear(2, 2, bias=False)

    message = refusal(save(make_oracle(), path, change))
    assert "layers.0-1.dec_attn.r_net.weight is missing" in message
    assert "crit.out_layers.0.bias is missing" in message
    assert "gate.weight is unexpected" in message


def test_output_layer_that_is_missing_is_not_taken_for_tied(path: Path) -> None:
    def change(model: Any) -> None:
        model.crit.out_layers[0].register_parameter("weight", None)

    assert "crit.out_layers.0.weight is missing" in refusal(save(make_oracle(), path, change))


def test_forced_on_another_file(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path)
    assert "holds a dict, expected a MemTransformerLM" in refusal(path, format="kimiyoung")
