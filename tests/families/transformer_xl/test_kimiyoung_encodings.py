"""`model.pt` with attn_type 1 to 3 against the authors' formulas, from their tensors in their order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.checkpoints.refusals import refusal
from tests.families.transformer_xl.files import authors_code, authors_module, make_oracle
from tests.helpers.definitions import Ours, log_probs_by_definition
from xlexport.formats import load
from xltraining.transformer_xl import TransformerXLConfig

NAMES = (("RelPartialLearnable", "RelPartialLearnable"), ("RelLearnable", "RelLearnable"), ("", ""), ("", ""))
OURS = {  # our names, and the authors'
    "attention.qkv.weight": "dec_attn.qkv_net.weight",
    "attention.query.weight": "dec_attn.q_net.weight",
    "attention.key_value.weight": "dec_attn.kv_net.weight",
    "attention.output.weight": "dec_attn.o_net.weight",
    "attention.norm.weight": "dec_attn.layer_norm.weight",
    "attention.norm.bias": "dec_attn.layer_norm.bias",
    "feed_forward.inner.weight": "pos_ff.CoreNet.0.weight",
    "feed_forward.inner.bias": "pos_ff.CoreNet.0.bias",
    "feed_forward.outer.weight": "pos_ff.CoreNet.3.weight",
    "feed_forward.outer.bias": "pos_ff.CoreNet.3.bias",
    "feed_forward.norm.weight": "pos_ff.layer_norm.weight",
    "feed_forward.norm.bias": "pos_ff.layer_norm.bias",
}
STACKED = {"content_bias": "r_w_bias", "distance_key": "r_emb", "distance_bias": "r_bias"}  # over layers
WIDTH = {"n_head": 2, "d_head": 6}  # n_head × d_head is d_model, which attn_type 3 needs
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "shaw": (1, {}),
    "shaw-pre-clamped": (1, {"pre_lnorm": True, "clamp_len": 5}),
    "shaw-same-length": (1, {"same_length": True, "d_embed": 12, "tie_weight": False}),
    "sinusoidal": (2, {"mem_len": 0}),
    "sinusoidal-pre-clamped": (2, {"mem_len": 0, "pre_lnorm": True, "clamp_len": 3}),
    "learned": (3, {"mem_len": 0}),
    "learned-pre": (3, {"mem_len": 0, "pre_lnorm": True}),
}


def make(attn_type: int, classes: Mapping[str, type[nn.Module]], extra_places: int = 0, **changes: Any) -> nn.Module:
    """Make the authors' module of a kind of attention, with random weights."""
    oracle = make_oracle(**{**WIDTH, **changes})
    config = oracle.config
    K, (L, H, h, D) = config.tgt_len + config.mem_len + extra_places, _sizes(config)
    model: Any = authors_module(oracle, classes, attn_type=attn_type, max_klen=K)
    attention_name, layer_name = NAMES[attn_type]
    for layer in model.layers:
        layer.__class__ = classes[f"{layer_name}DecoderLayer"]
        layer.dec_attn.__class__ = classes[f"{attention_name}MultiHeadAttn"]
        del layer.dec_attn.r_net
        if attn_type > 1:
            del layer.dec_attn.qkv_net
            layer.dec_attn.q_net, layer.dec_attn.kv_net = (nn.Linear(D, n * H * h, bias=False) for n in (1, 2))
    del model.r_w_bias, model.r_r_bias
    if attn_type != 2:
        del model.pos_emb
        model.r_emb = nn.Parameter(torch.empty(L, K, H, h))
    if attn_type == 1:
        model.r_w_bias, model.r_bias = nn.Parameter(torch.empty(L, H, h)), nn.Parameter(torch.empty(L, K, H))
    random = torch.Generator().manual_seed(attn_type)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3 + ("norm.weight" in name))
    return model


def _sizes(config: TransformerXLConfig) -> tuple[int, int, int, int]:
    return config.n_layer, config.n_head, config.d_head, config.d_model


def save(path: Path, attn_type: int, extra_places: int = 0, **changes: Any) -> dict[str, Tensor]:
    """Write a model.pt, and return its tensors by the authors' names."""
    with authors_code(path.parent) as classes:
        model = make(attn_type, classes, extra_places, **changes)
        torch.save(model, path)
    return model.state_dict()


def our_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the authors' tensors by our names, with the authors' order of rows."""
    found = {"word_emb.clusters.0.table": tensors["word_emb.emb_layers.0.weight"]}
    found |= {f"head.clusters.0.{part}": tensors[f"crit.out_layers.0.{part}"] for part in ("weight", "bias")}
    for layer in {name.split(".")[1] for name in tensors if name.startswith("layers.")}:
        own = {ours: tensors.get(f"layers.{layer}.{theirs}") for ours, theirs in OURS.items()}
        own |= {f"attention.{ours}": tensors[name][int(layer)] for ours, name in STACKED.items() if name in tensors}
        if "r_emb" in tensors:  # the authors view (n_head, d_head) as d_model
            own["attention.places"] = tensors["r_emb"][int(layer)].flatten(1)
        found |= {f"layers.{layer}.{name}": tensor for name, tensor in own.items() if tensor is not None}
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.full
def test_against_the_authors_formulas_over_carried_segments(name: str, path: Path) -> None:
    attn_type, changes = VARIANTS[name]
    tensors = save(path, attn_type, **changes)
    source = load(path)
    model = source.build_model().double()
    assert model.config.encoding == ("relative", "shaw", "sinusoidal", "learned")[attn_type]
    lengths = [6] * 5
    ids = torch.randint(40, (1 + sum(lengths),), generator=torch.Generator().manual_seed(2))
    memory, found = None, []
    for start in range(0, 30, 6):
        memory = model.memory_before(memory, 6)
        hidden, memory = model(ids[None, start : start + 6], memory)
        found.append(model.log_probs(hidden, ids[None, start + 1 : start + 7])[0])
    expected = log_probs_by_definition(Ours(model.config, our_names(tensors)), ids, lengths)
    assert np.abs(torch.cat(found).numpy() - expected).max() < 1e-12


def test_absolute_places_with_memory_are_refused_with_the_way_out(path: Path) -> None:
    save(path, 3)
    message = refusal(path)
    assert "mem_len 9 with attn_type 3: the authors' code adds positions to the rows of memory again" in message
    assert message.endswith('Give --config with {"mem_len": 0} to go without.')
    config = load(path, config={"mem_len": 0}).build_model().config
    assert (config.mem_len, config.max_klen, config.n_embedded) == (0, 15, 15)
    save(path, 2)
    assert "and stops at the first segment" in refusal(path)


def test_tensors_of_another_attention_type_are_named(path: Path) -> None:
    with authors_code(path.parent) as classes:
        model: Any = make(1, classes)
        model.attn_type = 3
        model.mem_len = 0
        torch.save(model, path)
    message = refusal(path)
    assert "layers.0-1.dec_attn.q_net.weight is missing" in message
    assert "r_bias is unexpected" in message
    save(path, 3, n_head=3, d_head=5, mem_len=0)
    assert "n_head × d_head is 15, d_model 12, but r_emb has vectors of both" in refusal(path)
