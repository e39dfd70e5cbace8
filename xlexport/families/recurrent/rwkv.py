"""RWKV-7 as its authors publish it: one file of `torch.save` with tensors by name. Their shapes show all sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import holds_tensor
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import read_state_dict
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.recurrent.source import family_source
from xlruntime.messages import named

__all__ = ["NAME", "load", "matches"]

NAME = "rwkv"
TOKENIZERS = ("tokenizer.json", "rwkv_vocab_v20230424.txt")  # beside the weights
ANCHORS = ("blocks.0.att.x_r", "blocks.0.att.time_decay")  # of version 7, of all older ones
OLDER = {"blocks.0.att.time_maa_x": 6, "blocks.0.att.ln_x.weight": 5, "blocks.0.att.time_decay": 4}
UNUSED = tuple(f"blocks.0.att.v{index}" for index in range(3))  # the first layer mixes its values with no others


def matches(path: Path) -> bool:
    """Return whether `path` is a file of tensors with the names of RWKV's authors, of any version."""
    return holds_tensor(path, ANCHORS)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. The file shows all settings, so `config` must be empty."""
    require("convert")
    from xlexport.families.recurrent.rwkv7 import RWKV7, RWKV7Sizes

    if config:
        raise CheckpointError(f"{path}: shows all of its settings itself.", hint="Leave out --config.")
    tensors, notes = read_state_dict(path, ANCHORS, f"no {ANCHORS[0]} in it, so not an RWKV-7")
    if ANCHORS[0] not in tensors:
        kind = next((f"RWKV-{version}" for name, version in OLDER.items() if name in tensors), "no RWKV-7")
        raise CheckpointError(
            f"{path}: {kind} by the names of its tensors, expected RWKV-7.",
            hint="RWKV-4 converts from the Hugging Face folder of its model.",
        )
    try:
        sizes = RWKV7Sizes.from_shapes({name: tuple(getattr(one, "shape", ())) for name, one in tensors.items()})
    except ValueError as error:
        raise CheckpointError(
            f"{path}: tensors that show the sizes are missing or of an impossible shape: {named(error)}.",
            hint="Copy the file again.",
        ) from error
    return family_source(
        path,
        NAME,
        RWKV7,
        sizes,
        tensors,
        model="rwkv7",
        files=[path],
        tokenizers=TOKENIZERS,
        unused=UNUSED,
        notes=notes,
    )
