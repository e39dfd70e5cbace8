"""A state dict of `ReformerLM` of the package reformer-pytorch (its version 1.4), with `--config`.

Sizes and the kind of positions are read from the tensors. All other settings come from the configuration: a JSON object
with the arguments of `ReformerLM`, under the names in its constructor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from xlexport.checkpoints.files import holds_tensor
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import read_state_dict
from xlexport.checkpoints.tensor_mapping import Origin, problems_listed
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.reformer.tensors import (
    BUCKET_CHOICES,
    EVALUATION_SETTINGS,
    axial_table,
    bucket_choices,
    evaluation_lengths,
    reformer_source,
)
from xlruntime.messages import named, shown

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.reformer import ReformerConfig

__all__ = ["NAME", "load", "matches"]

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
    return holds_tensor(path, (ANCHOR,))


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        config: settings that the tensors do not show, under the constructor's names; `num_buckets` or `max_length`,
            since that code derives the buckets from a document's length; `hash_seed`, for the rotations after
            `torch.manual_seed`.
    """
    require("convert")
    missing = f"no {ANCHOR} in it, so not a state dict of reformer-pytorch's ReformerLM"
    tensors, where = read_state_dict(path, (ANCHOR,), missing)
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in (config or {}).items()}
    _require_supported(path, arguments, tensors)
    values, notes = _settings_of(path, arguments, tensors)
    widths = {ROTARY: values["d_head"], SINUSOID: values["d_model"]}
    return reformer_source(
        path,
        NAME,
        values,
        _with_head(tensors),
        _origins(values),
        rotations=None
        if arguments.get("hash_seed") is None
        else _seeded(bool(arguments.get("random_rotations_per_head"))),
        code_base="reformer-pytorch",
        files=[path],
        frequencies={name: width for name, width in widths.items() if name in tensors},
        notes=[*where, *notes],
    )


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


def _require_supported(path: Path, arguments: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Refuse settings for which `ReformerConfig` has no field.

    Args:
        arguments: arguments of the constructor; the tensors' names and shapes show some that are left out.

    Raises:
        CheckpointError: the message lists all unsupported settings.
    """
    tensor_arguments = {argument for part, argument in SHOWN_BY.items() if any(part in name for name in tensors)}
    query_key, value, inner, outer = _layer_shapes(tensors)
    if query_key and value and value[0] < query_key[0]:
        tensor_arguments.add("one_value_head")
    if inner and outer and inner[0] == 2 * outer[1]:
        tensor_arguments.add("ff_glu")
    problems = [
        f"{name} is {shown(arguments.get(name, 'set'))}: {what}"
        for name, (value, what) in UNSUPPORTED.items()
        if name in tensor_arguments or arguments.get(name) not in (value, None)
    ]
    if "emb_dim" in tensor_arguments:
        problems.append("emb_dim is not dim: the embeddings have another width than the model")
    full, threshold, chunk = (arguments.get(name) for name in ("use_full_attn", "full_attn_thres", "bucket_size"))
    if full and ROTARY in tensors:
        problems.append("use_full_attn with rotary positions: reformer-pytorch then ignores the positions")
    if not full and _positive(threshold) and _positive(chunk) and threshold > chunk:
        problems.append(
            f"full_attn_thres is {threshold:,}: full attention up to that length, but here up to bucket_size {chunk:,}"
        )
    if problems:
        raise CheckpointError(f"{path}: {'; '.join(problems)}. `convert` does not support such models.")


def _settings_of(
    path: Path, arguments: Mapping[str, Any], tensors: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return fields of `ReformerConfig`, and notes for the user.

    Raises:
        CheckpointError: settings are missing, unknown or contradictory. The message lists all of them.
    """
    problems = [f"{name} is not given" for name in NEEDED if arguments.get(name) is None]
    problems += [f"{named(name)} is unknown" for name in arguments if name not in KNOWN]
    chunk, seed = arguments.get("bucket_size"), arguments.get("hash_seed")
    if chunk is not None and not _positive(chunk):
        problems.append(f"bucket_size is {shown(chunk)}, expected a number of tokens")
    if seed is not None and not isinstance(seed, int):
        problems.append(f"hash_seed is {shown(seed)}, expected an integer")
    sizes = _sizes(arguments, tensors, problems)
    positions = _positions(arguments, tensors, problems)
    buckets, notes = _buckets(arguments, positions["max_positions"], problems)
    if problems:
        raise CheckpointError(
            f"{path}: settings of this reformer-pytorch model are missing or wrong: {problems_listed(problems)}.",
            hint="Give --config FILE, a JSON object with the arguments of ReformerLM.",
        )
    values = {
        "attn_layers": ("full" if arguments.get("use_full_attn") else "lsh",) * sizes.pop("n_layer"),
        "n_hashes": arguments["n_hashes"],
        "chunk_length": chunk,
        "local_chunk_length": chunk,
        "rule": "chunk",
        "activation": arguments.get("ff_activation") or "gelu",
        "streams": "mean",
        "scale_scores": True,
        "attention_bias": True,
        "self_mask": SELF_MASK,
        "hash_seed": seed or 0,
        "dropout": 0.0,
    }
    lengths = evaluation_lengths(arguments, positions["max_positions"])
    return {**values, **sizes, **positions, **lengths, **({} if buckets is None else {"n_buckets": buckets})}, notes


def _sizes(arguments: Mapping[str, Any], tensors: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the sizes that shapes show. The number or the width of heads must come from elsewhere."""
    query_key, _, _, outer = _layer_shapes(tensors)
    table, rotary = _shape(tensors, "token_emb.weight"), _shape(tensors, ROTARY, 1)
    layers = {match[1] for name in tensors if (match := re.match(r"reformer\.layers\.blocks\.(\d{1,6})\.", name))}
    sizes: dict[str, Any] = {"n_layer": len(layers)}
    if table:
        sizes |= {"n_token": table[0], "d_model": table[1]}
    if outer:
        sizes["d_inner"] = outer[1]
    heads, width = arguments.get("heads"), 2 * rotary[0] if rotary else arguments.get("dim_head")
    if query_key and _positive(width):
        sizes |= {"n_head": query_key[0] // width, "d_head": width}
    elif query_key and _positive(heads):
        sizes |= {"n_head": heads, "d_head": query_key[0] // heads}
    else:
        problems.append("heads is not given")
    by_tensors = {name: sizes[field] for name, field in SIZES.items() if field in sizes}
    by_tensors |= {"ff_mult": outer[1] // table[1]} if table and outer and table[1] else {}
    for name, size in by_tensors.items():
        if arguments.get(name) not in (size, None):
            problems.append(f"{name} is {shown(arguments[name])} by the configuration, {size} by the tensors")
    return sizes


def _positions(arguments: Mapping[str, Any], tensors: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
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
        if arguments.get("axial_position_shape") not in (cells, None):
            text = shown(arguments["axial_position_shape"])
            problems.append(f"axial_position_shape is {text} by the configuration, {cells} by the tensors")
    elif table := _shape(tensors, TABLE):
        values = {"position": "absolute", "max_positions": table[0]}
    elif SINUSOID in tensors:
        values["position"] = "sinusoid"
    elif ROTARY not in tensors:
        problems.append("no positions among the tensors (pos_emb.… or layer_pos_emb.…)")
    kind = values["position"]
    for other, flag in FLAGS.items():
        if arguments.get(flag) and other != kind:
            problems.append(f"{flag} is true by the configuration, but positions are {kind} by the tensors")
    return values


def _buckets(
    arguments: Mapping[str, Any], positions: int, problems: list[str]
) -> tuple[tuple[int, ...] | None, list[str]]:
    """Return the factors of the number of buckets (a document's length / `bucket_size`), and a note on that."""
    factors, length, wrong = bucket_choices(arguments)
    problems += wrong
    if arguments.get("use_full_attn") or factors is not None or wrong:
        return factors, []
    chunk, length = arguments.get("bucket_size"), length or arguments.get("max_seq_len") or positions
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
    sizes = tuple(getattr(tensors.get(name), "shape", ()))
    return sizes if len(sizes) == rank else ()


def _positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
