"""A bare state dict, by `torch.save(model.state_dict())` or as safetensors, with a separate configuration.

Sizes are read from the tensors, the code base from their names. All other settings come from `--config FILE`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG, holds_tensor
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import read_state_dict
from xlexport.checkpoints.tensor_mapping import problems_listed
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.transformer_xl.huggingface import SPELLINGS, is_config, settings_of
from xlexport.families.transformer_xl.tensors import (
    ANCHOR,
    CLUSTER_NAMES,
    CLUSTER_ROWS,
    CODE_BASES,
    HUGGING_FACE_PREFIX,
    LAYER_NAMES,
    SETTINGS,
    SIZES,
    CodeBase,
    contradictions,
    plain_cutoffs,
    plain_names,
    require_supported,
    sizes_of,
    ties_of,
    torch_source,
)
from xlruntime.messages import named, shown

__all__ = ["NAME", "load", "matches"]

NAME = "state_dict"
OURS = "xltraining"
UNCERTAIN = "kimiyoung"  # other code bases may have kept its names
OUR_ANCHOR = "word_emb.clusters.0.table"
ANCHORS = (ANCHOR, OUR_ANCHOR)
OWN = CodeBase(reversed_clusters=False, first_memory="empty", window_extra=0)
NEEDED = ("pre_lnorm", "tgt_len", "mem_len", "clamp_len", "same_length")
CONVENTIONS = ("first_memory", "window_extra")  # our own names do not show these
IGNORED = ("dtype", "adapt_inp")  # of NVIDIA's model_config
KNOWN = (*SETTINGS, *SPELLINGS, *CONVENTIONS, "proj_same_dim")


def matches(path: Path) -> bool:
    """Return whether `path` is a file of tensors with a Transformer-XL's names."""
    beside_config = path.suffix == ".safetensors" and (path.parent / CONFIG).exists()
    return not beside_config and holds_tensor(path, ANCHORS)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        config: settings that the tensors do not show, under the field's names; `source` can name the code base.
    """
    require("convert")
    if config is None and (path.parent / CONFIG).is_file():
        raise CheckpointError(
            f"{path}: one file of a checkpoint.", hint="Give the folder that it is in, or --config FILE."
        )
    missing = f"no {ANCHOR} in it, so not a Transformer-XL's state dict"
    tensors, where = read_state_dict(path, (HUGGING_FACE_PREFIX + ANCHOR, *ANCHORS), missing)
    weights = _named(tensors)
    require_supported(path, config or {}, weights.tensors)
    configuration, configured_source, notes = _stated(path, config or {})
    notes += where
    source, problems = _source(weights, configured_source)
    if source == UNCERTAIN and configured_source is None:
        notes.append(
            f"The code base is assumed to be {UNCERTAIN}, because the names are those of the authors' code. The key "
            f"source in --config can name {' or '.join(sorted(set(CODE_BASES) - {UNCERTAIN}))} instead."
        )
    if "layer_norm_epsilon" not in configuration:
        notes.append("layer_norm_epsilon is assumed to be 1e-05, PyTorch's default. --config can give another value.")
    settings, more = _settings(weights.tensors, source, configuration)
    problems += more
    if problems:
        raise CheckpointError(
            f"{path}: settings of this state dict are missing or wrong: {problems_listed(problems)}.",
            hint="Give --config FILE, a JSON object with the right values.",
        )
    return torch_source(
        path,
        NAME,
        weights.tensors,
        settings,
        CODE_BASES.get(source, OWN),
        files=[path],
        notes=notes,
        tables_are_cut=source == OURS,
    )


@dataclass(frozen=True)
class _Named:
    """Tensors by the authors' names, and the code base that their own names show, for certain or perhaps."""

    tensors: dict[str, Any]
    source: str
    certain: bool


def _named(tensors: dict[str, Any]) -> _Named:
    if any(name.endswith(OUR_ANCHOR) for name in tensors):
        return _Named(_authors_names(tensors), OURS, True)
    plain = plain_names(tensors)
    if any(name.startswith("crit.out_layers_biases.") for name in plain):
        return _Named(plain, "nvidia", True)
    bias = f"layers.0.{LAYER_NAMES['attention.content_bias']}"
    if any(name.endswith(HUGGING_FACE_PREFIX + ANCHOR) for name in tensors) or bias in plain:
        return _Named(plain, "huggingface", True)
    return _Named(plain, UNCERTAIN, False)


def _authors_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors with our names under the authors' names, with a table for each cluster."""
    prefix = next(name for name in tensors if name.endswith(OUR_ANCHOR)).removesuffix(OUR_ANCHOR)
    result = {}
    for name, tensor in tensors.items():
        own = name.removeprefix(prefix)
        cluster, layer = re.fullmatch(r"(\w+\.clusters\.)(\d+)(\.\w+)", own), re.fullmatch(r"(layers\.\d+\.)(.+)", own)
        if cluster is not None and (pattern := f"{cluster[1]}{{}}{cluster[3]}") in CLUSTER_NAMES:
            own = CLUSTER_NAMES[pattern][0].format(cluster[2])
        elif layer is not None and layer[2] in LAYER_NAMES:
            own = layer[1] + LAYER_NAMES[layer[2]]
        result[CLUSTER_ROWS.get(own, own)] = tensor
    return result


def _stated(path: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], object, list[str]]:
    """Return the configuration's settings, the code base that it names, and notes. It may be a `config.json`."""
    if "model_type" in config and is_config(config):
        settings, notes = settings_of(config, str(path))
        return plain_cutoffs(settings), "huggingface", notes
    settings = {SPELLINGS.get(key, key): value for key, value in config.items() if key not in (*IGNORED, "source")}
    return plain_cutoffs(settings), config.get("source"), []


def _source(weights: _Named, configured: object) -> tuple[str, list[str]]:
    """Return the code base, from the names or else from the configuration, and the problems with the latter."""
    if configured is None:
        return weights.source, []
    if not isinstance(configured, str) or configured not in CODE_BASES:
        return weights.source, [f"source is {shown(configured)}, expected one of {', '.join(CODE_BASES)}"]
    if weights.certain and configured != weights.source:
        return weights.source, [f"source is {configured} by the configuration, {weights.source} by the tensors' names"]
    return configured, []


def _settings(
    tensors: Mapping[str, Any], source: str, configuration: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings from both sources, and all that are missing, unknown or contradictory."""
    sizes = sizes_of(tensors, configuration.get("div_val"))
    n_clusters = sizes.get("n_cutoffs", 0) + 1
    required = [*NEEDED, *SIZES, *(CONVENTIONS if source == OURS else ())]
    required += ["cutoffs"] if n_clusters > 1 else []
    required += ["div_val"] if n_clusters > 1 and "cutoffs" in sizes else []
    problems = [f"{name} is not given" for name in required if name not in {**sizes, **configuration}]
    problems += [f"{named(name)} is unknown" for name in configuration if name not in KNOWN]
    problems += contradictions(configuration, sizes)
    possible = ties_of(tensors, n_clusters, absent_is_tied=True)
    if configuration.get("tie_weight") is True and not possible["tie_weight"]:
        problems.append("tie_weight is true by the configuration, but the output layer has weights of its own")
    ties = ties_of(tensors, n_clusters, absent_is_tied=source == "nvidia")
    same_dim = {"proj_same_dim": _projects_same_dim(tensors, sizes)} if source == OURS else {}
    return {"dropout": 0.0, **ties, **same_dim, **configuration}, problems


def _projects_same_dim(tensors: Mapping[str, Any], sizes: Mapping[str, Any]) -> bool:
    """Return whether clusters as wide as the model have a projection; true if no cluster is as wide."""
    own = [
        f"word_emb.emb_projs.{index}" in tensors
        for index in range(sizes.get("n_cutoffs", 0) + 1)
        if tuple(getattr(tensors.get(f"word_emb.emb_layers.{index}.weight"), "shape", ()))[1:]
        == (sizes.get("d_model"),)
    ]
    return sizes.get("div_val", 1) == 1 or all(own)
