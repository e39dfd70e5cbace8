"""A state dict of `ReformerLM` of the package reformer-pytorch (its version 1.4), with `--config`.

Sizes and the kind of positions are read from the tensors. All other settings come from the configuration: a JSON object
with the arguments of `ReformerLM`, under the names in its constructor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import read_tensors, safetensors_names, state_dict_in
from xlexport.checkpoints.formats.reformer_pytorch_settings import (
    AXIAL,
    BLOCK,
    ROTARY,
    SINUSOID,
    TABLE,
    require_supported,
    settings_of,
)
from xlexport.checkpoints.reformer_settings import axial_table, reformer_source
from xlexport.checkpoints.safe_pickle import summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.tensor_mapping import Origin
from xlexport.errors import CheckpointError
from xlexport.extras import require

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.reformer import ReformerConfig

__all__ = ["NAME", "load", "matches"]

NAME = "reformer_pytorch"
ANCHOR = f"{BLOCK.format(0)}.f.net.fn.toqk.weight"
TWIN = "reformer.layers.irrev_blocks.{}"  # the same modules once more
LAYER_NAMES = {  # ours, within a layer: names within its block, and within the block's twin
    "attention.norm": ("f.net.norm", "f.norm"),
    "attention.query_key": ("f.net.fn.toqk", "f.fn.toqk"),
    "attention.value": ("f.net.fn.tov", "f.fn.tov"),
    "attention.output": ("f.net.fn.to_out", "f.fn.to_out"),
    "feed_forward.norm": ("g.net.norm", "g.norm"),
    "feed_forward.inner": ("g.net.fn.fn.w1", "g.fn.fn.w1"),
    "feed_forward.outer": ("g.net.fn.fn.w2", "g.fn.fn.w2"),
}
TIED = "out.1.tensor"  # weight_tie_embedding: the output layer is the table of embeddings, each of length 1
NAMES = {
    "word_emb.weight": ("token_emb.weight", TIED),
    "norm.weight": ("norm.weight",),
    "norm.bias": ("norm.bias",),
    "head.weight": ("out.1.weight",),
    "head.bias": ("out.1.bias",),
}


def matches(path: Path) -> bool:
    """Return whether `path` is a file of tensors with the names of `ReformerLM`."""
    if path.is_dir():
        return False
    if path.suffix == ".safetensors":
        return any(map(_is_anchor, safetensors_names(path)))
    summary = summarize(path)
    return summary is not None and any(map(_is_anchor, summary.strings))


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        config: settings that the tensors do not show, under the constructor's names; `num_buckets` or `max_length`,
            since that code derives the buckets from a document's length; `hash_seed`, for the rotations after
            `torch.manual_seed`.
    """
    require("convert")
    if path.is_dir():
        raise CheckpointError(f"{path}: a folder.", hint="Give the file with the state dict.")
    missing = f"no {ANCHOR} in it, so not a state dict of reformer-pytorch's ReformerLM"
    tensors = _plain_names(state_dict_in(path, read_tensors(path), _is_anchor, missing))
    stated = {name: tuple(value) if isinstance(value, list) else value for name, value in (config or {}).items()}
    require_supported(path, stated, tensors)
    values, notes = settings_of(path, stated, tensors)
    widths = {ROTARY: values["d_head"], SINUSOID: values["d_model"]}
    return reformer_source(
        path,
        NAME,
        values,
        _with_head(tensors),
        _origins(values),
        rotations=None if stated.get("hash_seed") is None else _seeded(bool(stated.get("random_rotations_per_head"))),
        code_base="reformer-pytorch",
        files=[path],
        frequencies={name: width for name, width in widths.items() if name in tensors},
        notes=notes,
    )


def _is_anchor(name: object) -> bool:
    return isinstance(name, str) and name.endswith(ANCHOR)


def _plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors under names without a prefix, such as a TrainingWrapper's `net.net.` or `module.`."""
    prefix = next(name for name in tensors if _is_anchor(name)).removesuffix(ANCHOR)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _with_head(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors with separate weights for an output layer that is tied to the embeddings."""
    import torch

    table = tensors.get(TIED)
    if not isinstance(table, torch.Tensor) or not table.is_floating_point():
        return dict(tensors)
    head = torch.nn.functional.normalize(table.float(), dim=-1)
    return {**tensors, "out.1.weight": head, "out.1.bias": head.new_zeros(head.shape[:1])}


def _origins(values: Mapping[str, Any]) -> Callable[[str, tuple[int, ...]], Origin]:
    def origin(name: str, shape: tuple[int, ...]) -> Origin:
        layer = re.fullmatch(r"layers\.(\d+)\.(\w+\.\w+)\.(weight|bias)", name)
        if layer is not None:
            own, twin = (f"{inner}.{layer[3]}" for inner in LAYER_NAMES[layer[2]])
            return Origin((f"{BLOCK.format(layer[1])}.{own}", f"{TWIN.format(layer[1])}.{twin}"), shape)
        if not name.startswith("positions."):
            return Origin(NAMES[name], shape)
        if values["position"] == "absolute":
            return Origin((TABLE,), shape)
        axis = int(name.rpartition(".")[2])
        names = tuple(pattern.format(axis) for pattern in AXIAL)
        return Origin(names, (1, *axial_table(shape, axis, len(values["axial_shape"]))))

    return origin


def _seeded(per_head: bool) -> Callable[[ReformerConfig], Iterable[Tensor]]:
    """Return a function that draws rotations as the model does on a CPU for one document after `torch.manual_seed`.

    The model draws layer after layer, once for all heads unless `per_head`.
    """

    def rotations(config: ReformerConfig) -> Iterable[Tensor]:
        import torch

        generator, H = torch.Generator().manual_seed(config.hash_seed), config.n_head
        shape = (H if per_head else 1, config.d_head, config.n_hashes, config.rotation_columns)
        for _ in range(config.attn_layers.count("lsh")):
            yield torch.randn(shape, generator=generator).transpose(1, 2).expand(H, -1, -1, -1).contiguous()

    return rotations
