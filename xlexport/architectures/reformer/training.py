"""The options of `xlexport train` for a Reformer: fields of `ReformerConfig`, and checks of their combinations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xlexport.architectures.options import REVERSIBLE, Option, flags

__all__ = ["RUN_OPTIONS", "TRAINING_OPTIONS", "training_config", "training_problems"]

TRAINING_OPTIONS = (
    Option(
        "attn_layers",
        "names",
        "Attention of each layer: local, lsh, full, or separate (full with separate keys; only to compare).",
        ("local", "lsh", "local", "lsh"),
    ),
    Option("n_head", "integer", "Attention heads.", 4),
    Option("d_model", "integer", "Width of the hidden states.", 256),
    Option("d_head", "integer", "Width of a head.", 64),
    Option("d_inner", "integer", "Width inside the feed-forward blocks.", 1024),
    Option("tgt_len", "integer", "Tokens in a segment.", 512),
    Option("mem_len", "integer", "Earlier tokens that each layer remembers.", 512),
    Option(
        "rule",
        "choice",
        "Which keys LSH attention covers; under `paper` and `chunk` each segment is a document.",
        "band",
        choices=("band", "paper", "chunk"),
    ),
    Option("n_hashes", "integer", "Rounds of hashing.", 2),
    Option("n_buckets", "integers", "Buckets of a round, or even factors of their number, such as 64,128.", (32,)),
    Option("chunk_length", "integer", "Most keys that a token sees in a round of hashing.", 64),
    Option("hash_seed", "integer", "Seed of the hash rotations.", 0),
    Option("redraw_hashes", "boolean", "Whether each update draws new hash rotations.", False),
    Option("local_chunk_length", "integer", "Tokens in a chunk of local attention.", 64),
    Option("local_chunks_before", "integer", "Chunks that local attention sees besides its own.", 1),
    Option(
        "position",
        "choice",
        "Kind of positions: embeddings by axes, one embedding each, sinusoids, or rotary.",
        "axial",
        choices=("axial", "absolute", "sinusoid", "rotary"),
    ),
    Option("axial_shape", "integers", "Rows and columns of the table of positions.", (64, 128)),
    Option(
        "axial_dims", "integers", "Widths of their embeddings, by default a quarter of d-model and the rest.", (64, 192)
    ),
    Option(
        "max_positions",
        "integer",
        "Number of positions, if they have embeddings; for axial positions the size of the table.",
        8192,
    ),
    Option("activation", "choice", "Activation in feed-forward blocks.", "relu", choices=("relu", "gelu", "gelu_tanh")),
    Option("ff_chunk", "integer", "Positions that a feed-forward block computes at a time, to save memory; 0: all.", 0),
    Option("full_chunk", "integer", "Queries that full attention computes at a time, to save memory; 0: all.", 0),
    Option(
        "residual",
        "choice",
        "Residual connections: two streams, or the one of a Transformer (only to compare).",
        "reversible",
        choices=("reversible", "ordinary"),
    ),
    Option("dropout", "number", "Dropout.", 0.1),
    Option("dropatt", "number", "Dropout of attention weights.", 0.0),
)
RUN_OPTIONS = (
    REVERSIBLE,
    Option(
        "swap_layers",
        "boolean",
        "Keep layers in a mapped file, or for a GPU in the host's memory, and fetch one at a time.",
        False,
    ),
)
_DEFAULTS = {option.name: option.default for option in TRAINING_OPTIONS}
_LAYERS = {"local", "lsh", "full", "separate"}
# Options that apply to one kind of layer, which the model may lack.
_LAYER_OPTIONS = {
    "lsh": ("rule", "n_hashes", "n_buckets", "chunk_length", "hash_seed", "redraw_hashes"),
    "local": ("local_chunk_length", "local_chunks_before"),
}


def training_problems(given: Mapping[str, Any]) -> list[str]:
    """Return the problems of the given options: options without effect, and axes that do not match."""
    problems = []
    layers = given.get("attn_layers", _DEFAULTS["attn_layers"])
    for kind, options in _LAYER_OPTIONS.items():
        idle = [name for name in options if name in given]
        if idle and kind not in layers and _LAYERS.issuperset(layers):  # an unknown kind is reported elsewhere
            problems.append(f"{flags(idle)}: only with {kind} layers, but --attn-layers is {','.join(layers)}")
    axes = {"axial_shape", "axial_dims"} & given.keys()
    if axes and given.get("position", "axial") != "axial":
        problems.append(f"{flags(sorted(axes))}: only for --position axial")
    elif axes:
        rows, widths = len(given.get("axial_shape", (0, 0))), len(given.get("axial_dims", (0, 0)))
        if rows != widths:
            problems.append(
                f"--axial-shape has {rows} and --axial-dims {widths} numbers{'' if len(axes) == 2 else ' by default'}: "
                "give both, with equally many numbers"
            )
    return problems


def training_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration; the kind of positions decides how many there are."""
    values = dict(given)
    position = values.get("position", "axial")
    if position in ("sinusoid", "rotary"):
        values.setdefault("max_positions", 0)
    if position == "axial":
        width = values.get("d_model", _DEFAULTS["d_model"])
        values.setdefault("max_positions", math.prod(values.get("axial_shape", _DEFAULTS["axial_shape"])))
        values.setdefault("axial_dims", (width // 4, width - width // 4))
    return values
