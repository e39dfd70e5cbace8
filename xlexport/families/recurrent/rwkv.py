"""RWKV-7 and RWKV-4 as their authors publish them: one file of tensors by name, whose shapes show all sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import holds_tensor
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import read_state_dict
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.recurrent.source import family_source, shapes_of
from xlruntime.messages import named

__all__ = ["NAME", "TOKENIZERS", "load", "matches", "rwkv7_source"]

NAME = "rwkv"
TOKENIZERS = ("tokenizer.json", "rwkv_vocab_v20230424.txt")  # beside the weights
ANCHORS = ("blocks.0.att.x_r", "blocks.0.att.time_decay")  # of version 7, of all older ones
OTHERS = {"blocks.0.att.time_maa_x": 6, "blocks.0.att.ln_x.weight": 5}
UNUSED = tuple(f"blocks.0.att.v{index}" for index in range(3))  # the first layer mixes its values with no others
NAMES_OF_4 = (  # of the authors, and Hugging Face's
    (r"emb\.", "rwkv.embeddings."),
    (r"ln_out\.", "rwkv.ln_out."),
    (r"blocks\.0\.ln0\.", "rwkv.blocks.0.pre_ln."),
    (r"blocks\.(\d+)\.(att|ffn)\.time_mix_k$", r"rwkv.blocks.\1.\2.time_mix_key"),
    (r"blocks\.(\d+)\.(att|ffn)\.time_mix_v$", r"rwkv.blocks.\1.\2.time_mix_value"),
    (r"blocks\.(\d+)\.(att|ffn)\.time_mix_r$", r"rwkv.blocks.\1.\2.time_mix_receptance"),
    (r"blocks\.", "rwkv.blocks."),
)


def matches(path: Path) -> bool:
    """Return whether `path` is a file of tensors with the names of RWKV's authors, of any version."""
    return holds_tensor(path, ANCHORS)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. The file shows all settings, so `config` must be empty."""
    require("convert")
    if config:
        raise CheckpointError(f"{path}: shows all of its settings itself.", hint="Leave out --config.")
    tensors, notes = read_state_dict(path, ANCHORS, f"no {ANCHORS[0]} in it, so not an RWKV-7")
    if ANCHORS[0] in tensors:
        return rwkv7_source(path, NAME, tensors, files=[path], tokenizers=TOKENIZERS, notes=notes)
    if version := next((version for name, version in OTHERS.items() if name in tensors), None):
        raise CheckpointError(
            f"{path}: RWKV-{version} by the names of its tensors, expected RWKV-7 or RWKV-4.",
            hint="docs/own_models.md converts other models.",
        )
    return _rwkv4_source(path, tensors, notes)


def rwkv7_source(
    path: Path,
    format: str,
    tensors: Mapping[str, Any],
    *,
    files: Iterable[Path],
    tokenizers: tuple[str, ...],
    notes: Iterable[str],
    epsilon: float | None = None,
) -> SourceCheckpoint:
    """Make the source of an RWKV-7 from tensors with its authors' names.

    Args:
        epsilon: of the normalizations, and of those of a head for each of its numbers; None: the authors'.

    Raises:
        CheckpointError: the tensors do not fit together.
    """
    from xlexport.families.recurrent.rwkv7 import RWKV7, RWKV7Sizes

    try:
        sizes = RWKV7Sizes.from_shapes(shapes_of(tensors))
    except ValueError as error:
        raise CheckpointError(
            f"{path}: tensors that show the sizes are missing or of an impossible shape: {named(error)}.",
            hint="Copy the file again.",
        ) from error
    if epsilon is not None:
        width = sizes.d_model // sizes.n_head
        sizes = replace(sizes, norm_epsilon=epsilon, head_epsilon=width * epsilon)
    return family_source(
        path,
        format,
        RWKV7,
        sizes,
        tensors,
        model="rwkv7",
        files=files,
        tokenizers=tokenizers,
        unused=UNUSED,
        notes=notes,
    )


def _rwkv4_source(path: Path, tensors: Mapping[str, Any], notes: Iterable[str]) -> SourceCheckpoint:
    from xlexport.families.recurrent.rwkv4 import RWKV4, RWKV4Sizes

    renamed = {_name_of_4(name): tensor for name, tensor in tensors.items()}
    by_shape = RWKV4Sizes.shown_by(shapes_of(renamed), {})
    if not by_shape:
        raise CheckpointError(
            f"{path}: an RWKV-4 by the names of its tensors, but the tensors that show its sizes are missing or of "
            "an impossible shape.",
            hint="Copy the file again.",
        )
    return family_source(
        path,
        NAME,
        RWKV4,
        RWKV4Sizes.from_huggingface({**by_shape, "rescale_every": 0}),  # which keeps float16 from overflowing
        renamed,
        model="rwkv",
        files=[path],
        tokenizers=TOKENIZERS,
        notes=notes,
    )


def _name_of_4(name: str) -> str:
    for pattern, other in NAMES_OF_4:
        name, count = re.subn(f"^{pattern}", other, name)
        if count:
            break
    return re.sub(r"^(rwkv\.blocks\.\d+)\.att\.", r"\1.attention.", name).replace(".ffn.", ".feed_forward.")
