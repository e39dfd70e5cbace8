"""Find the tensors of one model in a file: in a wrapper such as `{"state_dict": …}`, and behind a common prefix."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import read_tensors
from xlexport.errors import CheckpointError
from xlruntime.messages import listed, named

__all__ = ["read_state_dict", "unwrapped"]

COUNTER = "n_averaged"  # beside the weights of torch's `AveragedModel`
ADAPTED = (".lora_", ".base_layer.")  # in names of PEFT
MERGE = "Merge the adapter into the weights first: model.merge_and_unload() of PEFT, then save the result."


def read_state_dict(path: Path, anchors: Collection[str], missing: str) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors of a file by their own names, and notes on where they were.

    Args:
        anchors: names that the wanted model has; in the file, a prefix that ends in a dot may stand before them.
        missing: the message for a file without a state dict.

    Raises:
        CheckpointError: the path is a folder, or the file is damaged, or has no state dict, or several.
    """
    if path.is_dir():
        raise CheckpointError(f"{path}: a folder.", hint="Give the file with the state dict.")
    content = read_tensors(path)
    tensors, notes = unwrapped(path, content, anchors)
    if not any(name.endswith(tuple(anchors)) for name in tensors):
        raise CheckpointError(f"{path}: {missing}.", hint="Check the path.")
    return tensors, notes


def unwrapped(path: Path, content: Mapping[Any, Any], anchors: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors of a model by their own names, without a wrapper or a prefix, and a note that names both.

    A content without an anchor stays as it is.

    Raises:
        CheckpointError: there are several models, or an adapter that is not merged.
    """
    inner = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    models: dict[tuple[Any, str], Mapping[Any, Any]] = {}
    for key, value in {None: content, **inner}.items():
        for name in filter(lambda name: isinstance(name, str), value):
            if anchor := _anchor_of(name, anchors):
                models[key, name.removesuffix(anchor)] = value
    if not models:
        return {str(name): tensor for name, tensor in content.items()}, []
    if len(models) > 1:
        places = (named(prefix if key is None else f"{key}: {prefix}" if prefix else key) for key, prefix in models)
        raise CheckpointError(f"{path}: holds several models ({listed(places)}).", hint="Save the state dict of one.")
    (((key, prefix), tensors),) = models.items()
    own = {str(name).removeprefix(prefix): tensor for name, tensor in tensors.items() if name != COUNTER}
    if adapted := next((name for name in own if any(part in name for part in ADAPTED)), None):
        raise CheckpointError(f"{path}: holds an adapter ({named(adapted)}).", hint=MERGE)
    notes = [] if key is None else [f"The file holds the weights under {named(key)}."]
    notes += [f"Names of the tensors begin with {named(prefix)} in the file."] if prefix else []
    return own, notes


def _anchor_of(name: str, anchors: Collection[str]) -> str | None:
    """Return the longest anchor that is a name, or the part of it behind a dot."""
    while name not in anchors:
        if not (name := name.partition(".")[2]):
            return None
    return name
