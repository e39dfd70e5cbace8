"""Write checkpoints as the code bases do, from an oracle's weights.

Classes of the authors' names exist only while a file is written: in modules of the authors' names, with the attributes
that the reader relies on, and without a line of the authors' code. The weights are Hugging Face's, under the authors'
names, with the rows of the clusters in the authors' order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.comparison import LOG_PROB_TOLERANCE, MEMORY_TOLERANCE, eager_difference
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints import SourceCheckpoint
from xltraining.transformer_xl import TransformerXLConfig

__all__ = ["VARIANTS", "assert_computes", "authors_code", "authors_module", "authors_tensors", "make_oracle"]

SMALL = TransformerXLConfig(
    n_token=40, n_layer=2, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=9, dropout=0.0, untie_r=False
)
CUT: dict[str, Any] = {"cutoffs": (8, 15, 30)}
VARIANTS: dict[str, dict[str, Any]] = {  # name: fields of the configuration
    "plain": {},
    "untied": {"tie_weight": False, "clamp_len": 4},
    "narrow": {"d_embed": 8, "tie_projs": (False,), "pre_lnorm": True},
    "cutoffs": {**CUT, "same_length": True},
    "cutoffs-narrow": {**CUT, "d_embed": 8, "tie_projs": (False, True, True, True)},
    "div_val": {**CUT, "div_val": 2, "tie_projs": (False, True, True, True), "same_length": True, "pre_lnorm": True},
    "div_val-untied": {**CUT, "div_val": 2, "tie_weight": False, "tie_projs": (False,) * 4, "clamp_len": 7},
    "div_val-narrow": {"cutoffs": (11,), "div_val": 3, "d_embed": 9, "tie_projs": (True, True)},
    "div_val-one-cluster": {"div_val": 4, "tie_projs": (False,)},
}
SOURCES = {  # module: its classes
    "mem_transformer": (
        "MemTransformerLM",
        "AdaptiveEmbedding",
        "PositionalEmbedding",
        "PositionwiseFF",
        "RelPartialLearnableMultiHeadAttn",
        "RelPartialLearnableDecoderLayer",
        "RelLearnableMultiHeadAttn",
        "RelLearnableDecoderLayer",
        "MultiHeadAttn",
        "DecoderLayer",
    ),
    "proj_adaptive_softmax": ("ProjectedAdaptiveLogSoftmax",),
}


def make_oracle(seed: int = 0, **changes: Any) -> Oracle:
    """Make an oracle of a small configuration, with the changes that a test gives."""
    return Oracle(replace(SMALL, **changes), seed)


def assert_computes(source: SourceCheckpoint, oracle: Oracle, batch_size: int = 2) -> None:
    """Assert that the model of `source` computes the same as the oracle over six segments, including memories."""
    ids = torch.randint(0, oracle.config.n_token, (batch_size, 37), generator=torch.Generator().manual_seed(1))
    edges = [0, 6, 12, 13, 20, 28, 36]
    segments = [(ids[:, a:b], ids[:, a + 1 : b + 1]) for a, b in itertools.pairwise(edges)]
    difference = eager_difference(oracle, source.build_model(), segments)
    assert difference.log_prob <= LOG_PROB_TOLERANCE
    assert difference.memory <= MEMORY_TOLERANCE


def authors_tensors(oracle: Oracle) -> dict[str, Tensor]:
    """Return the oracle's weights with the names and order of the authors' `state_dict`; tied ones are one tensor."""
    tensors = {}
    for name, parameter in oracle.model.state_dict().items():
        own = name.removeprefix("transformer.")
        if own.endswith(("dec_attn.r_w_bias", "dec_attn.r_r_bias")):  # their biases are the model's
            continue
        tensors[own] = parameter.flip(0) if own.startswith("crit.cluster_") else parameter
    return tensors


@contextlib.contextmanager
def authors_code(folder: Path, package: str = "") -> Iterator[Mapping[str, type[nn.Module]]]:
    """Yield classes by name, in modules that can be imported inside the block; their source is in `folder`.

    `package` is the prefix of the modules' names in copies of the code.
    """
    classes: dict[str, type[nn.Module]] = {}
    modules = {f"{package}{name}": names for name, names in SOURCES.items()}
    for name, names in modules.items():
        file = folder / f"{name}.py"
        file.write_text("from torch import nn\n" + "".join(f"\n\nclass {own}(nn.Module):\n    pass\n" for own in names))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        classes |= {own: getattr(sys.modules[name], own) for own in names}
    try:
        yield classes
    finally:
        for name in modules:
            del sys.modules[name]


def authors_module(oracle: Oracle, classes: Mapping[str, type[nn.Module]], **attributes: Any) -> nn.Module:
    """Make a model with the authors' modules, attributes and ties, and the oracle's weights."""
    config = oracle.config
    d_embed, ends = config.d_embed or config.d_model, [*config.cutoffs, config.n_token]
    made = {
        "n_token": config.n_token,
        "d_embed": d_embed,
        "d_model": config.d_model,
        "n_head": config.n_head,
        "d_head": config.d_head,
        "n_layer": config.n_layer,
        "tgt_len": config.tgt_len,
        "mem_len": config.mem_len,
        "ext_len": 0,
        "max_klen": config.tgt_len + config.mem_len,
        "attn_type": 0,
        "sample_softmax": -1,
        "same_length": config.same_length,
        "clamp_len": config.clamp_len,
    }
    model = _make(classes["MemTransformerLM"], {**made, **attributes})
    cut = {"n_token": config.n_token, "d_embed": d_embed, "d_proj": config.d_model, "cutoffs": ends}
    cut |= {"cutoff_ends": [0, *ends], "div_val": config.div_val}
    model.word_emb = _make(classes["AdaptiveEmbedding"], {**cut, "emb_scale": config.d_model**0.5})
    model.crit = _make(classes["ProjectedAdaptiveLogSoftmax"], {**cut, "keep_order": False})
    model.drop = nn.Dropout(0.1)
    model.layers = nn.ModuleList(_layer(config, classes) for _ in range(config.n_layer))
    model.pos_emb = _make(classes["PositionalEmbedding"], {"demb": config.d_model})
    _add_clusters(model, config)

    tensors = authors_tensors(oracle)
    model.pos_emb.register_buffer("inv_freq", tensors["pos_emb.inv_freq"].clone())
    for name in ("r_w_bias", "r_r_bias"):
        model.register_parameter(name, nn.Parameter(tensors[name].clone()))
    if config.cutoffs:
        for name in ("cluster_weight", "cluster_bias"):
            model.crit.register_parameter(name, nn.Parameter(tensors[f"crit.{name}"].clone()))
    model.load_state_dict(tensors)
    return model


def _make(kind: type[nn.Module], attributes: Mapping[str, Any]) -> Any:
    module = kind()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def _layer(config: TransformerXLConfig, classes: Mapping[str, type[nn.Module]]) -> nn.Module:
    D, width, epsilon = config.d_model, config.n_head * config.d_head, config.layer_norm_epsilon
    scale = {"scale": config.d_head**-0.5, "pre_lnorm": config.pre_lnorm, "d_head": config.d_head}
    attention = _make(classes["RelPartialLearnableMultiHeadAttn"], scale)
    attention.qkv_net = nn.Linear(D, 3 * width, bias=False)
    attention.drop, attention.dropatt = nn.Dropout(0.1), nn.Dropout(0.0)
    attention.o_net, attention.r_net = nn.Linear(width, D, bias=False), nn.Linear(D, width, bias=False)
    attention.layer_norm = nn.LayerNorm(D, eps=epsilon)
    feed_forward = _make(classes["PositionwiseFF"], {"pre_lnorm": config.pre_lnorm, "d_inner": config.d_inner})
    feed_forward.CoreNet = nn.Sequential(
        nn.Linear(D, config.d_inner), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config.d_inner, D), nn.Dropout(0.1)
    )
    feed_forward.layer_norm = nn.LayerNorm(D, eps=epsilon)
    return _make(classes["RelPartialLearnableDecoderLayer"], {"dec_attn": attention, "pos_ff": feed_forward})


def _add_clusters(model: Any, config: TransformerXLConfig) -> None:
    """Add tables, output layers and projections, tied as in the configuration."""
    D, tables = config.d_model, 1 if config.div_val == 1 else len(config.cutoffs) + 1
    sizes = [end - first for first, end in config.cluster_bounds] if config.div_val > 1 else [config.n_token]
    widths, projected = config.cluster_widths, config.div_val > 1 or config.cluster_widths[0] != D
    embedding, crit = model.word_emb, model.crit
    embedding.emb_layers = nn.ModuleList(nn.Embedding(sizes[i], widths[i]) for i in range(tables))
    embedding.emb_projs = nn.ParameterList(nn.Parameter(torch.empty(D, widths[i])) for i in range(tables * projected))
    crit.out_layers = nn.ModuleList(nn.Linear(widths[i], sizes[i]) for i in range(tables))
    crit.out_projs = nn.ParameterList()
    if config.tie_weight:
        for output, table in zip(crit.out_layers, embedding.emb_layers, strict=True):
            output.weight = table.weight
    for index, width in enumerate(widths):
        if not projected:
            crit.out_projs.append(None)
        elif config.ties_projection(index):
            crit.out_projs.append(embedding.emb_projs[0 if config.div_val == 1 else index])
        else:
            crit.out_projs.append(nn.Parameter(torch.empty(D, width)))
