"""RWKV-7 as its authors publish it: one file of `torch.save` with tensors by name. Their shapes show all sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import holds_tensor, inside, read_state_dict
from xlexport.checkpoints.recurrent import recurrent_source
from xlexport.checkpoints.source import SourceCheckpoint, float_notes, require_finite
from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlruntime.messages import named

if TYPE_CHECKING:
    from torch import Tensor

    from xlexport.families.rwkv7 import RWKV7, RWKV7Sizes

__all__ = ["NAME", "load", "matches"]

NAME = "rwkv"
TOKENIZER = "tokenizer.json"
ANCHORS = ("blocks.0.att.x_r", "blocks.0.att.time_decay")  # of version 7, of all older ones
OLDER = {"blocks.0.att.time_maa_x": 6, "blocks.0.att.ln_x.weight": 5, "blocks.0.att.time_decay": 4}
UNUSED = tuple(f"blocks.0.att.v{index}" for index in range(3))  # the first layer mixes its values with no others
IDS_ONLY = f"No {TOKENIZER} lies next to the file, so the bundle takes token ids only. --tokenizer gives it one."


def matches(path: Path) -> bool:
    """Return whether `path` is a file of tensors with the names of RWKV's authors, of any version."""
    return holds_tensor(path, ANCHORS)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. The file shows all settings, so `config` must be empty."""
    require("convert")
    if config:
        raise CheckpointError(f"{path}: shows all of its settings itself.", hint="Leave out --config.")
    tensors = read_state_dict(path, ANCHORS, f"no {ANCHORS[0]} in it, so not an RWKV-7")
    sizes = _sizes(path, tensors)
    weights = _weights(path, sizes, tensors)
    tokenizer = inside(path.parent, TOKENIZER) if (path.parent / TOKENIZER).is_file() else None
    return recurrent_source(
        lambda: _filled(sizes, weights),
        NAME,
        model="rwkv7",
        n_token=sizes.n_token,
        parameters=sum(weight.numel() for weight in weights.values()),
        sizes={name: value for name, value in asdict(sizes).items() if name != "n_token"},
        files=[path, *([] if tokenizer is None else [tokenizer])],
        tokenizer=tokenizer or "none",
        notes=[*float_notes(tensors), *([] if tokenizer else [IDS_ONLY])],
    )


def _sizes(path: Path, tensors: Mapping[str, Any]) -> RWKV7Sizes:
    """Return the sizes that the tensors show, or raise CheckpointError for other versions and damaged files."""
    from xlexport.families.rwkv7 import RWKV7Sizes

    if ANCHORS[0] not in tensors:
        kind = next((f"RWKV-{version}" for name, version in OLDER.items() if name in tensors), "no RWKV-7")
        raise CheckpointError(
            f"{path}: {kind} by the names of its tensors, expected RWKV-7.",
            hint="RWKV-4 converts from the Hugging Face folder of its model.",
        )
    try:
        return RWKV7Sizes.from_shapes({name: tuple(getattr(value, "shape", ())) for name, value in tensors.items()})
    except ValueError as error:
        raise CheckpointError(
            f"{path}: tensors that show the sizes are missing or of an impossible shape: {named(error)}.",
            hint="Copy the file again.",
        ) from error


def _weights(path: Path, sizes: RWKV7Sizes, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensor of each parameter in float32.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape or not finite; the message names all.
    """
    mapping = TensorMapping(tensors, known=set(UNUSED))
    shapes = {name: tuple(parameter.shape) for name, parameter in _empty(sizes).named_parameters()}
    weights = {name: mapping.take(Origin((name,), shape)) for name, shape in shapes.items()}
    mapping.require_fit(path)
    complete = {name: weight for name, weight in weights.items() if weight is not None}
    require_finite(path, complete)
    return complete


def _empty(sizes: RWKV7Sizes) -> RWKV7:
    """Return the model without memory for its weights, as a file may claim any sizes."""
    import torch

    from xlexport.families.rwkv7 import RWKV7

    with torch.device("meta"):
        return RWKV7(sizes).requires_grad_(False).eval()


def _filled(sizes: RWKV7Sizes, weights: Mapping[str, Tensor]) -> RWKV7:
    model = _empty(sizes)
    model.load_state_dict(weights, assign=True)
    return model
