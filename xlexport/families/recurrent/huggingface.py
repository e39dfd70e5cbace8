"""A Hugging Face folder of a recurrent language model: Mamba, Falcon-Mamba, Mamba-2 or RWKV-4.

The models compute what trained them. `xlexport.families.recurrent` has their equations, with the files' tensor names.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG, TOKENIZERS, read_weights
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import unwrapped
from xlexport.errors import CheckpointError
from xlexport.families.recurrent.source import family_source, refuse_config, shapes_of
from xlruntime.messages import shown

__all__ = ["NAME", "is_config", "read", "read_as"]

NAME = "huggingface"
FAMILIES = {  # by `model_type`: a module of `xlexport.families.recurrent`, and its class, next to that of its sizes
    "mamba": ("mamba", "Mamba1"),
    "falcon_mamba": ("mamba", "Mamba1"),
    "mamba2": ("mamba2", "Mamba2"),
    "rwkv": ("rwkv4", "RWKV4"),
}
LAST_NORMS = ("backbone.norm_f.weight", "rwkv.ln_out.weight")  # which models without an output layer have as well
OLD_NAMES = {"backbone.embeddings.weight": "backbone.embedding.weight"}


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is that of a family."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in FAMILIES


def read(path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint with this content of `config.json`; see `CheckpointFormat`.

    It holds its own configuration, so `config` must be empty.
    """
    return read_as(content["model_type"], path, content, config)


def read_as(
    kind: str, path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> SourceCheckpoint:
    """Read a folder of a kind of `FAMILIES`, with the keys of transformers in `content`."""
    refuse_config(path, config)
    module, name = FAMILIES[kind]
    family = importlib.import_module(f"xlexport.families.recurrent.{module}")
    files, content_of_files = read_weights(path)
    tensors, notes = unwrapped(path, content_of_files, LAST_NORMS)
    if any(norm.partition(".")[2] in tensors for norm in LAST_NORMS):
        raise CheckpointError(
            f"{path}: a {name} without an output layer, so it gives no probabilities.",
            hint="Give the folder of the whole language model.",
        )
    sizes_of = getattr(family, f"{name}Sizes")
    by_shape = sizes_of.shown_by(shapes_of(tensors), content)
    wrong = {key: content[key] for key in by_shape if content.get(key) not in (None, "auto", by_shape[key])}
    for key, value in wrong.items():
        notes.append(f"{CONFIG} says {key} {shown(value)}, the tensors {shown(by_shape[key])}.")
    try:
        sizes = sizes_of.from_huggingface({**content, **by_shape})
    except CheckpointError as error:
        raise CheckpointError(f"{path}/{error.message}", hint=error.hint) from error
    return family_source(
        path,
        NAME,
        getattr(family, name),
        sizes,
        tensors,
        model=kind,
        files=[path / CONFIG, *files],
        tokenizers=TOKENIZERS,
        other_names=OLD_NAMES,
        notes=notes,
    )
