"""The names that the authors' PyTorch code gives to a Transformer-XL's tensors, and ours.

NVIDIA's and Hugging Face's code descends from the authors' and keeps their names, except for a prefix and the output
layer. This module has the only mapping from these names to the parameters of
`xltraining.transformer_xl.TransformerXL`, and its checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping, same

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from xltraining.transformer_xl import TransformerXLConfig

__all__ = [
    "ANCHOR",
    "CLUSTER_NAMES",
    "CLUSTER_ROWS",
    "CODE_BASES",
    "HUGGING_FACE_PREFIX",
    "LAYER_NAMES",
    "CodeBase",
    "canonical_tensors",
    "plain_names",
]

ANCHOR = "word_emb.emb_layers.0.weight"  # every file has it, perhaps behind a prefix
HUGGING_FACE_PREFIX = "transformer."
FREQUENCIES = "pos_emb.inv_freq"  # a buffer: the sinusoids' frequencies, which follow from d_model

LAYER_NAMES = {
    "attention.qkv.weight": "dec_attn.qkv_net.weight",
    "attention.query.weight": "dec_attn.q_net.weight",
    "attention.key_value.weight": "dec_attn.kv_net.weight",
    "attention.position.weight": "dec_attn.r_net.weight",
    "attention.output.weight": "dec_attn.o_net.weight",
    "attention.content_bias": "dec_attn.r_w_bias",
    "attention.position_bias": "dec_attn.r_r_bias",
    "attention.norm.weight": "dec_attn.layer_norm.weight",
    "attention.norm.bias": "dec_attn.layer_norm.bias",
    "feed_forward.inner.weight": "pos_ff.CoreNet.0.weight",
    "feed_forward.inner.bias": "pos_ff.CoreNet.0.bias",
    "feed_forward.outer.weight": "pos_ff.CoreNet.3.weight",
    "feed_forward.outer.bias": "pos_ff.CoreNet.3.bias",
    "feed_forward.norm.weight": "pos_ff.layer_norm.weight",
    "feed_forward.norm.bias": "pos_ff.layer_norm.bias",
}
STACKED = {  # tensors of all layers in one, by encoding
    "shaw": {
        "attention.content_bias": "r_w_bias",
        "attention.distance_key": "r_emb",
        "attention.distance_bias": "r_bias",
    },
    "learned": {"attention.places": "r_emb"},
}
GLOBAL_BIASES = {"attention.content_bias": "r_w_bias", "attention.position_bias": "r_r_bias"}
CLUSTER_NAMES = {  # {} is the cluster's number; several names: code bases name the same tensor differently
    "word_emb.clusters.{}.table": ("word_emb.emb_layers.{}.weight",),
    "word_emb.clusters.{}.projection": ("word_emb.emb_projs.{}", "crit.shared_out_projs.{}"),
    "head.clusters.{}.weight": ("crit.out_layers.{}.weight", "crit.out_layers_weights.{}"),
    "head.clusters.{}.bias": ("crit.out_layers.{}.bias", "crit.out_layers_biases.{}"),
    "head.clusters.{}.projection": ("crit.out_projs.{}",),
}
CLUSTER_ROWS = {"head.cluster_weight": "crit.cluster_weight", "head.cluster_bias": "crit.cluster_bias"}


@dataclass(frozen=True)
class CodeBase:
    """Behaviour of a code base that its weights do not show.

    Attributes:
        reversed_clusters: whether the last row of `cluster_weight` belongs to the first tail cluster.
        first_memory: the memory at the start of a document.
        window_extra: number of keys that a token sees beyond `mem_len` with `same_length`.
    """

    reversed_clusters: bool
    first_memory: Literal["empty", "zeros"]
    window_extra: int


CODE_BASES = {
    "kimiyoung": CodeBase(reversed_clusters=True, first_memory="empty", window_extra=0),
    "nvidia": CodeBase(reversed_clusters=True, first_memory="empty", window_extra=1),
    "huggingface": CodeBase(reversed_clusters=False, first_memory="zeros", window_extra=0),
}


def plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors by the authors' names, without a prefix such as `module.` or `transformer.`."""
    anchors = [name for name in tensors if name.endswith(ANCHOR)]
    inner = min(anchors, key=len, default=ANCHOR).removesuffix(ANCHOR)
    outer = inner.removesuffix(HUGGING_FACE_PREFIX)  # Hugging Face's output layer lacks this prefix
    return {
        name.removeprefix(inner) if name.startswith(inner) else name.removeprefix(outer): tensor
        for name, tensor in tensors.items()
    }


def canonical_tensors(
    path: Path,
    config: TransformerXLConfig,
    tensors: Mapping[str, Any],
    *,
    reversed_clusters: bool,
    tables_are_cut: bool = False,
) -> dict[str, Tensor]:
    """Return the state dict of our `TransformerXL` from tensors under the names of the authors' code.

    Tensors that are float32 already are not copied. Tensors that the configuration ties may be absent.

    Args:
        tensors: as `plain_names` returns them.
        reversed_clusters: see `CodeBase`.
        tables_are_cut: each cluster of a vocabulary has a table of its own even if all are equally wide.

    Raises:
        CheckpointError: lists every tensor that is missing, unexpected, of another shape than in the configuration, or
            different from the tensor to which it is tied.
    """
    from xltraining.transformer_xl import TransformerXL

    tied = TransformerXL.tied_names(config)
    mapping = TensorMapping(tensors)
    width = config.n_head * config.d_head
    if config.encoding == "learned" and width != config.d_model:
        mapping.problems.append(f"n_head × d_head is {width}, d_model {config.d_model}, but r_emb has vectors of both")
    result: dict[str, Tensor] = {}
    for name, origin in _origins(config, tables_are_cut).items():
        tensor = mapping.take(origin, optional=name in tied)
        owner = result.get(tied.get(name, ""))
        if tensor is not None and owner is not None and not same(tensor, owner):
            mapping.problems.append(f"{mapping.found(origin)} differs from what the configuration ties it to")
        tensor = owner if name in tied else tensor
        if tensor is not None:
            result[name] = tensor.flatten(1) if name.endswith(".places") else tensor
    mapping.check_frequencies(FREQUENCIES, config.d_model)
    mapping.require_fit(path)
    for name in CLUSTER_ROWS:
        if name in result:
            result[name] = result[name].flip(0) if reversed_clusters else result[name]
    return result


def _origins(config: TransformerXLConfig, tables_are_cut: bool) -> dict[str, Origin]:
    """Return the origin of each of our parameters, in the model's order: owners of tied tensors come first."""
    import torch

    from xltraining.transformer_xl import TransformerXL

    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in TransformerXL(config).state_dict().items()}
    one_table = config.div_val == 1 and not tables_are_cut
    origins = {}
    for name, shape in shapes.items():
        cluster = re.match(r"(\w+\.clusters\.)(\d+)(\.\w+)", name)
        layer = re.match(r"layers\.(\d+)\.(.+)", name)
        if name in CLUSTER_ROWS:
            origins[name] = Origin((CLUSTER_ROWS[name],), shape)
        elif cluster is not None:
            names = CLUSTER_NAMES[f"{cluster[1]}{{}}{cluster[3]}"]
            index = int(cluster[2])
            if one_table and not name.endswith("projection"):
                whole = (config.n_token, *shape[1:])
                origins[name] = Origin(tuple(name.format(0) for name in names), whole, config.cluster_bounds[index])
            else:
                shared = one_table and name.startswith("word_emb")  # one projection of the one table
                origins[name] = Origin(tuple(name.format(0 if shared else index) for name in names), shape)
        else:
            assert layer is not None  # the model does not have other parameters
            if stack := STACKED.get(config.encoding, {}).get(layer[2]):
                # The authors keep places in heads.
                heads = (config.n_head, config.d_head) if config.encoding == "learned" else shape[1:]
                origins[name] = Origin((stack,), (config.n_layer, shape[0], *heads), index=int(layer[1]))
                continue
            theirs = f"layers.{layer[1]}.{LAYER_NAMES[layer[2]]}"
            is_global = layer[2] in GLOBAL_BIASES and layer[1] == "0" and not config.untie_r
            origins[name] = Origin((GLOBAL_BIASES[layer[2]], theirs) if is_global else (theirs,), shape)
    return origins
