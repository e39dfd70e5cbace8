"""Settings of a reformer-pytorch model, from its tensors and from the arguments of `ReformerLM`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from xlexport.checkpoints.reformer_settings import (
    BUCKET_CHOICES,
    EVALUATION_SETTINGS,
    bucket_choices,
    evaluation_lengths,
)
from xlexport.checkpoints.tensor_mapping import problems_listed
from xlexport.errors import CheckpointError
from xlruntime.messages import named, shown

__all__ = ["AXIAL", "BLOCK", "ROTARY", "SINUSOID", "TABLE", "require_supported", "settings_of"]

BLOCK = "reformer.layers.blocks.{}"
ROTARY = "layer_pos_emb.inv_freq"
SINUSOID = "pos_emb.inv_freq"
TABLE = "pos_emb.emb.weight"
AXIAL = ("pos_emb.weights.{}", "pos_emb.weights_{}")  # the latter of older versions
SELF_MASK = -5e4  # TOKEN_SELF_ATTN_VALUE
FLAGS = {"axial_sum": "axial_position_emb", "absolute": "absolute_position_emb", "sinusoid": "fixed_position_emb"}
SIZES = {"num_tokens": "n_token", "dim": "d_model", "depth": "n_layer", "heads": "n_head", "dim_head": "d_head"}
NEEDED = ("bucket_size", "n_hashes", "causal")
WITHOUT_EFFECT = (
    *("ff_chunks", "attn_chunks", "reverse_thres", "weight_tie", "weight_tie_embedding", "pkm_num_keys"),
    *("lsh_dropout", "ff_dropout", "post_attn_dropout", "layer_dropout", "random_rotations_per_head"),
)
UNSUPPORTED = {  # an argument: its supported value, and the meaning of other values
    "causal": (True, "tokens see later ones, so the next token has no probability"),
    "use_scale_norm": (False, "norms with one scale for all"),
    "use_rezero": (False, "residual branches with a scale in place of norms"),
    "ff_glu": (False, "gated feed-forward layers"),
    "one_value_head": (False, "values that all heads share"),
    "return_embeddings": (False, "a model without an output layer"),
    "num_mem_kv": (0, "learned keys and values in addition to the tokens'"),
    "n_local_attn_heads": (0, "heads of local attention in addition to heads that hash"),
    "pkm_layers": ((), "product-key memories"),
}
SHOWN_BY = {  # a part of a tensor's name: the argument that it shows
    ".norm.g": "use_scale_norm",
    ".net.g": "use_rezero",
    ".mem_kv": "num_mem_kv",
    ".to_queries.": "pkm_layers",
    "to_model_dim.": "emb_dim",
}
KNOWN = {
    *("max_seq_len", "ff_mult", "ff_activation", "axial_position_shape", "use_full_attn", "full_attn_thres", "emb_dim"),
    *(*SIZES, *NEEDED, *WITHOUT_EFFECT, *UNSUPPORTED, *FLAGS.values()),
    *(*BUCKET_CHOICES, *EVALUATION_SETTINGS, "hash_seed"),
}


def require_supported(path: Path, stated: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Refuse settings for which `ReformerConfig` has no field.

    Args:
        stated: arguments of the constructor; the tensors' names and shapes show some that are left out.

    Raises:
        CheckpointError: the message lists all unsupported settings.
    """
    found = {argument for part, argument in SHOWN_BY.items() if any(part in name for name in tensors)}
    query_key, value, inner, outer = _layer_shapes(tensors)
    if query_key and value and value[0] < query_key[0]:
        found.add("one_value_head")
    if inner and outer and inner[0] == 2 * outer[1]:
        found.add("ff_glu")
    problems = [
        f"{name} is {shown(stated.get(name, 'set'))}: {what}"
        for name, (value, what) in UNSUPPORTED.items()
        if name in found or stated.get(name) not in (value, None)
    ]
    if "emb_dim" in found:
        problems.append("emb_dim is not dim: the embeddings have another width than the model")
    full, threshold, chunk = (stated.get(name) for name in ("use_full_attn", "full_attn_thres", "bucket_size"))
    if full and ROTARY in tensors:
        problems.append("use_full_attn with rotary positions: reformer-pytorch then ignores the positions")
    if not full and _positive(threshold) and _positive(chunk) and threshold > chunk:
        problems.append(
            f"full_attn_thres is {threshold:,}: full attention up to that length, but here up to bucket_size {chunk:,}"
        )
    if problems:
        raise CheckpointError(f"{path}: {'; '.join(problems)}. Such models are not converted.")


def settings_of(path: Path, stated: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return fields of `ReformerConfig`, and notes for the user.

    Raises:
        CheckpointError: settings are missing, unknown or contradictory. The message lists all of them.
    """
    problems = [f"{name} is not given" for name in NEEDED if stated.get(name) is None]
    problems += [f"{named(name)} is unknown" for name in stated if name not in KNOWN]
    chunk, seed = stated.get("bucket_size"), stated.get("hash_seed")
    if chunk is not None and not _positive(chunk):
        problems.append(f"bucket_size is {shown(chunk)}, expected a number of tokens")
    if seed is not None and not isinstance(seed, int):
        problems.append(f"hash_seed is {shown(seed)}, expected an integer")
    sizes = _sizes(stated, tensors, problems)
    positions = _positions(stated, tensors, problems)
    buckets, notes = _buckets(stated, positions["max_positions"], problems)
    if problems:
        raise CheckpointError(
            f"{path}: settings of this reformer-pytorch model are missing or wrong: {problems_listed(problems)}.",
            hint="Give --config FILE, a JSON object with the arguments of ReformerLM.",
        )
    values = {
        "attn_layers": ("full" if stated.get("use_full_attn") else "lsh",) * sizes.pop("n_layer"),
        "n_hashes": stated["n_hashes"],
        "chunk_length": chunk,
        "local_chunk_length": chunk,
        "rule": "chunk",
        "activation": stated.get("ff_activation") or "gelu",
        "streams": "mean",
        "scale_scores": True,
        "attention_bias": True,
        "self_mask": SELF_MASK,
        "hash_seed": seed or 0,
        "dropout": 0.0,
    }
    lengths = evaluation_lengths(stated, positions["max_positions"])
    return {**values, **sizes, **positions, **lengths, **({} if buckets is None else {"n_buckets": buckets})}, notes


def _sizes(stated: Mapping[str, Any], tensors: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the sizes that shapes show. The number or the width of heads must come from elsewhere."""
    query_key, _, _, outer = _layer_shapes(tensors)
    table, rotary = _shape(tensors, "token_emb.weight"), _shape(tensors, ROTARY, 1)
    layers = {match[1] for name in tensors if (match := re.match(r"reformer\.layers\.blocks\.(\d{1,6})\.", name))}
    found: dict[str, Any] = {"n_layer": len(layers)}
    if table:
        found |= {"n_token": table[0], "d_model": table[1]}
    if outer:
        found["d_inner"] = outer[1]
    heads, width = stated.get("heads"), 2 * rotary[0] if rotary else stated.get("dim_head")
    if query_key and _positive(width):
        found |= {"n_head": query_key[0] // width, "d_head": width}
    elif query_key and _positive(heads):
        found |= {"n_head": heads, "d_head": query_key[0] // heads}
    else:
        problems.append("heads is not given")
    told = {name: found[field] for name, field in SIZES.items() if field in found}
    told |= {"ff_mult": outer[1] // table[1]} if table and outer and table[1] else {}
    for name, size in told.items():
        if stated.get(name) not in (size, None):
            problems.append(f"{name} is {shown(stated[name])} by the configuration, {size} by the tensors")
    return found


def _positions(stated: Mapping[str, Any], tensors: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the kind of positions, from the tensors' names, and their number; 0: no limit."""
    shapes: list[tuple[int, ...]] = []
    while name := next((name.format(len(shapes)) for name in AXIAL if name.format(len(shapes)) in tensors), None):
        shapes.append(tuple(getattr(tensors[name], "shape", ())))
    values: dict[str, Any] = {"position": "rotary", "max_positions": 0}
    if shapes and all(len(shape) == len(shapes) + 2 for shape in shapes):
        cells = tuple(shape[axis + 1] for axis, shape in enumerate(shapes))
        widths = tuple(shape[-1] for shape in shapes)
        values = {
            "position": "axial_sum",
            "axial_shape": cells,
            "axial_dims": widths,
            "max_positions": math.prod(cells),
        }
        if stated.get("axial_position_shape") not in (cells, None):
            given = shown(stated["axial_position_shape"])
            problems.append(f"axial_position_shape is {given} by the configuration, {cells} by the tensors")
    elif table := _shape(tensors, TABLE):
        values = {"position": "absolute", "max_positions": table[0]}
    elif SINUSOID in tensors:
        values["position"] = "sinusoid"
    elif ROTARY not in tensors:
        problems.append("no positions among the tensors (pos_emb.… or layer_pos_emb.…)")
    kind = values["position"]
    for other, flag in FLAGS.items():
        if stated.get(flag) and other != kind:
            problems.append(f"{flag} is true by the configuration, but positions are {kind} by the tensors")
    return values


def _buckets(
    stated: Mapping[str, Any], positions: int, problems: list[str]
) -> tuple[tuple[int, ...] | None, list[str]]:
    """Return the factors of the number of buckets (a document's length / `bucket_size`), and a note on that."""
    chosen, length, wrong = bucket_choices(stated)
    problems += wrong
    if stated.get("use_full_attn") or chosen is not None or wrong:
        return chosen, []
    chunk, length = stated.get("bucket_size"), length or stated.get("max_seq_len") or positions
    if not length:
        problems.append(
            "num_buckets is not given (in reformer-pytorch, a document's length / bucket_size): give "
            "--config num_buckets=N, --config max_length=T for documents of T tokens, or max_seq_len"
        )
    elif not _positive(length):
        problems.append(f"max_seq_len is {shown(length)}, expected a number of tokens")
    if not _positive(length) or not _positive(chunk):
        return None, []
    buckets = 2 * -(-length // (2 * chunk))  # its documents are multiples of two chunks
    return (buckets,), [
        f"num_buckets is {buckets:,}, as in reformer-pytorch for documents of {buckets * chunk:,} tokens. Other "
        "lengths have other numbers there: --config num_buckets=N or max_length=T sets them."
    ]


def _layer_shapes(tensors: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of the first layer's matrices: query-key, value, inner, outer."""
    names = ("f.net.fn.toqk", "f.net.fn.tov", "g.net.fn.fn.w1", "g.net.fn.fn.w2")
    return [_shape(tensors, f"{BLOCK.format(0)}.{name}.weight") for name in names]


def _shape(tensors: Mapping[str, Any], name: str, rank: int = 2) -> tuple[int, ...]:
    """Return a tensor's shape, empty if the tensor is absent or has another number of axes."""
    found = tuple(getattr(tensors.get(name), "shape", ()))
    return found if len(found) == rank else ()


def _positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
