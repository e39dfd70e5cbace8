"""A Hugging Face folder of a recurrent language model: Mamba, Falcon-Mamba, Mamba-2 or RWKV-4.

The models compute what transformers computes. `xlexport.families` has their equations, with the files' tensor names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import inside, read_json, read_weights
from xlexport.checkpoints.formats.huggingface_reformer import TOKENIZERS
from xlexport.checkpoints.recurrent import recurrent_source
from xlexport.checkpoints.source import SourceCheckpoint, float_notes, require_finite
from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping
from xlexport.errors import CheckpointError
from xlexport.extras import require

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["NAME", "is_config", "load"]

NAME = "huggingface"
CONFIG = "config.json"
FAMILIES = {  # by `model_type`: a module of `xlexport.families`, and its class, next to that of its sizes
    "mamba": ("mamba", "Mamba"),
    "falcon_mamba": ("mamba", "Mamba"),
    "mamba2": ("mamba2", "Mamba2"),
    "rwkv": ("rwkv4", "RWKV4"),
}
OLD_NAMES = {"backbone.embeddings.weight": "backbone.embedding.weight"}
IDS_ONLY = "No tokenizer lies in the folder, so the bundle takes token ids only. --tokenizer gives it one."


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is that of a family."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in FAMILIES


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. It holds its own configuration, so `config` must be empty."""
    require("convert")
    config_file = inside(path, CONFIG)
    content = read_json(config_file)
    if config:
        foreign = ", ".join(map(ascii, sorted(config)))
        raise CheckpointError(f"{path}: holds its own configuration.", hint=f"Leave out {foreign} of --config.")
    kind = content["model_type"]
    module, name = FAMILIES[kind]
    family = importlib.import_module(f"xlexport.families.{module}")
    try:
        sizes = getattr(family, f"{name}Sizes").from_huggingface(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}/{error.message}", hint=error.hint) from error
    files, tensors = read_weights(path)
    weights = _weights(path, _empty(family, name, sizes), tensors)
    tokenizer = next((inside(path, name) for name in TOKENIZERS if (path / name).is_file()), None)
    return recurrent_source(
        lambda: _filled(_empty(family, name, sizes), weights),
        NAME,
        model=kind,
        n_token=sizes.n_token,
        parameters=sum(weight.numel() for weight in weights.values()),
        sizes={name: value for name, value in asdict(sizes).items() if name != "n_token"},
        files=[config_file, *files, *([] if tokenizer is None else [tokenizer])],
        tokenizer=tokenizer or "none",
        notes=[*float_notes(tensors), *([] if tokenizer else [IDS_ONLY])],
    )


def _empty(family: Any, name: str, sizes: Any) -> nn.Module:
    """Return the model without memory for its weights, as a file may claim any sizes."""
    import torch

    with torch.device("meta"):
        model: nn.Module = getattr(family, name)(sizes)
    return model.requires_grad_(False).eval()


def _shared(model: nn.Module) -> Iterable[tuple[tuple[str, ...], Tensor]]:
    """Yield each parameter of a model with all of its names: tied ones have several."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return ((tuple(own), parameter) for parameter, own in names.items())


def _weights(path: Path, model: nn.Module, tensors: Mapping[str, Any]) -> dict[tuple[str, ...], Tensor]:
    """Return the tensor of each parameter in float32, by the parameter's names.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape or not finite; the message names all.
    """
    mapping = TensorMapping(tensors)
    weights = {}
    for names, parameter in _shared(model):
        spellings = (*names, *(OLD_NAMES[name] for name in names if name in OLD_NAMES))
        weights[names] = mapping.take(Origin(spellings, tuple(parameter.shape)))
    mapping.require_fit(path)
    complete = {names: weight for names, weight in weights.items() if weight is not None}
    require_finite(path, {names[0]: weight for names, weight in complete.items()})
    return complete


def _filled(model: nn.Module, weights: Mapping[tuple[str, ...], Tensor]) -> nn.Module:
    """Return the model with these weights in the places of its parameters."""
    from torch import nn

    for names, weight in weights.items():
        parameter = nn.Parameter(weight, requires_grad=False)
        for name in names:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, parameter)
    return model
