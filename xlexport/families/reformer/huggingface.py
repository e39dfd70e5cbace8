"""A Hugging Face folder of `ReformerModelWithLMHead`: `config.json`, weights, and perhaps the tokenizer.

`save_pretrained` leaves out keys with default values, so missing keys of `config.json` get transformers' defaults.
The names are of transformers 4, whose `lm_head.bias` is `lm_head.decoder.bias`. Version 5 saves both, adds the second,
and never uses the first.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import CONFIG, TOKENIZERS, inside, read_weights
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import unwrapped
from xlexport.checkpoints.tensor_mapping import Origin
from xlexport.errors import CheckpointError, MissingAnswerError
from xlexport.families.reformer.tensors import (
    BUCKET_CHOICES,
    EVALUATION_SETTINGS,
    axial_table,
    bucket_choices,
    evaluation_lengths,
    reformer_source,
)
from xlruntime.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.reformer import ReformerConfig

__all__ = ["BYTES", "NAME", "is_config", "origins_of", "read", "seeded", "settings_of"]

NAME = "huggingface"
MODEL_TYPE = "reformer"
NO_BUCKETS = f"{CONFIG} has no num_buckets, which transformers sets at the first document that it sees"
GIVE_BUCKETS = (
    "Give --config num_buckets=N (or N,M for two factors), or --config max_length=T for documents of T tokens."
)
MOST_AXES, LARGEST_SIZE = 8, 1 << 31  # of positions, as in `ReformerConfig`
BYTES = 258  # tokens of google/reformer-enwik8, which has no tokenizer: bytes + 2
FIELDS: dict[str, tuple[str, Any]] = {  # key of config.json: our field, and transformers' default
    "vocab_size": ("n_token", 320),
    "hidden_size": ("d_model", 256),
    "num_attention_heads": ("n_head", 12),
    "attention_head_size": ("d_head", 64),
    "feed_forward_size": ("d_inner", 512),
    "attn_layers": ("attn_layers", ["local", "lsh", "local", "lsh", "local", "lsh"]),
    "num_hashes": ("n_hashes", 1),
    "lsh_attn_chunk_length": ("chunk_length", 64),
    "lsh_num_chunks_before": ("chunks_before", 1),
    "local_attn_chunk_length": ("local_chunk_length", 64),
    "local_num_chunks_before": ("local_chunks_before", 1),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
LAYER_NAMES = {  # ours, within a layer
    "attention.norm": "attention.layer_norm",
    "attention.query_key": "attention.self_attention.query_key",
    "attention.query": "attention.self_attention.query",
    "attention.key": "attention.self_attention.key",
    "attention.value": "attention.self_attention.value",
    "attention.output": "attention.output.dense",
    "feed_forward.norm": "feed_forward.layer_norm",
    "feed_forward.inner": "feed_forward.dense.dense",
    "feed_forward.outer": "feed_forward.output.dense",
}
NAMES = {
    "word_emb.weight": ("reformer.embeddings.word_embeddings.weight",),
    "norm.weight": ("reformer.encoder.layer_norm.weight",),
    "norm.bias": ("reformer.encoder.layer_norm.bias",),
    "head.weight": ("lm_head.decoder.weight",),
    "head.bias": ("lm_head.decoder.bias", "lm_head.bias"),
}
POSITIONS = "reformer.embeddings.position_embeddings"
HEAD = "lm_head."


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is a Reformer's."""
    return bool(config.get("model_type") == MODEL_TYPE)


def read(path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        content: of its `config.json`.
        config: `num_buckets` or `max_length`, if its `config.json` lacks a number of buckets; evaluation settings.
    """
    values, notes = settings_of(path, content, config)
    files, content_of_files = read_weights(path)
    tensors, where = unwrapped(path, content_of_files, ("reformer.encoder.layer_norm.weight",))
    tensors = {name: tensor for name, tensor in tensors.items() if "mask_value" not in name}  # buffers of old files
    if "lm_head.decoder.bias" in tensors:
        tensors.pop("lm_head.bias", None)
    if not any(name.startswith(HEAD) for name in tensors):
        raise CheckpointError(
            f"{path}: a Reformer without an output layer (no {HEAD}…), so it gives no probabilities.",
            hint="Give the checkpoint of the whole language model.",
        )
    tokenizer = next((inside(path, name) for name in TOKENIZERS if (path / name).is_file()), None)
    bytes_plus_2 = "bytes" if tokenizer is None and values["n_token"] == BYTES else None
    if bytes_plus_2:
        notes.append("Tokens are assumed to be UTF-8 bytes + 2, as in google/reformer-enwik8.")
    return reformer_source(
        path,
        NAME,
        values,
        tensors,
        origins_of(values),
        rotations=None if content.get("hash_seed") is None else seeded,
        code_base="transformers",
        files=[path / CONFIG, *files, *([] if tokenizer is None else [tokenizer])],
        tokenizer=tokenizer or bytes_plus_2,
        notes=[*where, *notes],
    )


def settings_of(
    path: Path, content: Mapping[str, Any], choices: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return fields of `ReformerConfig`, and notes for the user.

    Raises:
        CheckpointError: the model is unsupported, or the user must give more settings. The message lists all problems.
    """
    problems = _unsupported(content)
    notes: list[str] = []
    foreign = sorted(set(choices or ()) - {*BUCKET_CHOICES, *EVALUATION_SETTINGS})
    if foreign:
        problems.append(f"it holds its own configuration, so {', '.join(map(ascii, foreign))} cannot be given")
    values = {field: _plain(content.get(key, default)) for key, (field, default) in FIELDS.items()}
    values |= {"rule": "chunk", "self_mask": -1e5, "dropout": 0.0, "hash_seed": content.get("hash_seed") or 0}
    values["reads_last"] = True  # the labels of `ReformerModelWithLMHead` are the tokens that it reads
    values["activation"] = ACTIVATIONS.get(str(content.get("hidden_act", "relu")))
    values |= _positions(content, notes)
    values |= evaluation_lengths(choices, values["max_positions"])
    chunk, before = values["local_chunk_length"], values["local_chunks_before"]
    layers = values["attn_layers"]
    if _are_sizes((chunk, before)) and before > 1 and isinstance(layers, tuple) and "local" in layers:
        notes.append(
            f"Local attention in documents of {chunk + 1:,} to {chunk * before:,} tokens counts each key once. "
            "In such documents, transformers counts the keys of a chunk several times."
        )
    buckets = _buckets(content, choices, values, problems, notes)
    hashes = isinstance(layers, tuple) and "lsh" in layers
    unsaid = content.get("num_buckets") is None and not set(BUCKET_CHOICES) & set(choices or ())
    lacks_buckets = buckets is None and hashes and unsaid
    if problems:
        problems += [NO_BUCKETS] if lacks_buckets else []
        raise CheckpointError(f"{path}: {'; '.join(problems)}.", hint=GIVE_BUCKETS if lacks_buckets else None)
    if lacks_buckets:
        raise MissingAnswerError(f"{path}: {NO_BUCKETS}.", GIVE_BUCKETS, {"num_buckets": 2}, ("n_buckets",))
    return {**values, **({} if buckets is None else {"n_buckets": buckets})}, notes


def _positions(content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    longest = content.get("max_position_embeddings", 4096)
    if not content.get("axial_pos_embds", True):
        return {"position": "absolute", "max_positions": longest}
    shape, dims = (
        _plain(content.get("axial_pos_shape", [64, 64])),
        _plain(content.get("axial_pos_embds_dim", [64, 192])),
    )
    cells = math.prod(shape) if _are_sizes(shape) and len(shape) <= MOST_AXES else None
    if cells is not None and _are_sizes((longest,)) and longest < cells:
        notes.append(
            f"Documents may have {cells:,} tokens, the size of axial_pos_shape; transformers accepts {longest:,}."
        )
    return {"position": "axial", "axial_shape": shape, "axial_dims": dims, "max_positions": cells}


def _unsupported(content: Mapping[str, Any]) -> list[str]:
    """Return the settings of a `config.json` that no bundle can compute, with the reasons."""
    problems = []
    layers = _plain(content.get("attn_layers", FIELDS["attn_layers"][1]))
    if content.get("is_decoder") is not True:
        problems.append("is_decoder is not true: tokens see later ones, so the next token has no probability")
    if isinstance(layers, tuple) and any(kind not in ("local", "lsh") for kind in layers):
        problems.append(f"attn_layers is {shown(layers)}, expected layers of local and lsh")
    for kind in ("local", "lsh"):
        after = content.get(f"{kind}_num_chunks_after", 0)
        if isinstance(layers, tuple) and kind in layers and after != 0:
            problems.append(f"{kind}_num_chunks_after is {shown(after)}: a language model does not see later chunks")
    activation = content.get("hidden_act", "relu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        problems.append(f"hidden_act is {shown(activation)}, expected one of {', '.join(ACTIVATIONS)}")
    seed = content.get("hash_seed")
    if seed is not None and not _are_sizes((seed,)):
        problems.append(f"hash_seed is {shown(seed)}, expected an integer of up to 31 bits")
    return problems


def _buckets(
    content: Mapping[str, Any],
    choices: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    problems: list[str],
    notes: list[str],
) -> tuple[int, ...] | None:
    """Return the factors of the number of buckets, or None if no layer hashes or something is wrong."""
    choice, length, wrong = bucket_choices(choices)
    number, layers = content.get("num_buckets"), values["attn_layers"]
    problems += wrong
    if not isinstance(layers, tuple) or "lsh" not in layers:
        if choice or length:
            problems.append("no layer hashes: leave out num_buckets and max_length of --config")
        return None
    if number is not None:
        factors = _plain(number) if isinstance(number, list) else (number,)
        if length is not None or choice not in (None, factors):
            where = f"num_buckets is {shown(number)} in {CONFIG}"
            problems.append(f"{where}: leave out num_buckets and max_length of --config")
        return factors
    if length is None or wrong:
        return choice
    return _buckets_for(length, values, content.get("max_position_embeddings", 4096), problems, notes)


def _buckets_for(
    length: int, values: Mapping[str, Any], most: Any, problems: list[str], notes: list[str]
) -> tuple[int, ...] | None:
    """Return the factors that transformers sets at a first document of `length` tokens; None if impossible."""
    chunk, local, longest = values["chunk_length"], values["local_chunk_length"], values["max_positions"]
    if not _are_sizes((chunk, local, longest, most)) or min(chunk, local, most) < 1:
        return None  # `ReformerConfig` refuses these values
    lengths = {chunk, local} if "local" in values["attn_layers"] else {chunk}
    multiple = math.lcm(*lengths)
    padded = -(-length // multiple) * multiple if length > min(lengths) else length
    if not chunk < padded <= longest:
        problems.append(f"max_length is {length:,}, expected more than a chunk of {chunk:,} and at most {longest:,}")
        return None
    bits = (2 * (padded // chunk)).bit_length() - 1
    in_one = 1 << bits <= 2 * max(math.isqrt(most // chunk), chunk)
    factors = (1 << bits,) if in_one else (1 << bits // 2, 1 << (bits - bits // 2))
    product = "×".join(map(str, factors))
    notes.append(f"num_buckets is {product}, as transformers sets it at a first document of {length:,} tokens.")
    return factors


def seeded(config: "ReformerConfig") -> "Iterable[Tensor]":
    """Return the rotations that transformers draws on a CPU with `hash_seed`: it sets the seed again in each layer."""
    import torch

    generator = torch.Generator().manual_seed(config.hash_seed)
    shape = (config.n_head, config.d_head, config.n_hashes, config.rotation_columns)
    rotations = torch.randn(shape, generator=generator).transpose(1, 2)
    return [rotations.contiguous()] * config.attn_layers.count("lsh")


def origins_of(values: Mapping[str, Any]) -> Callable[[str, tuple[int, ...]], Origin]:
    """Return the function from our name and shape of a parameter to its place in the state dict."""

    def origin(name: str, shape: tuple[int, ...]) -> Origin:
        layer = re.fullmatch(r"layers\.(\d+)\.(\w+\.\w+)\.(weight|bias)", name)
        if layer is not None:
            return Origin((f"reformer.encoder.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}",), shape)
        if not name.startswith("positions."):
            return Origin(NAMES[name], shape)
        if values["position"] == "absolute":
            return Origin((f"{POSITIONS}.embedding.weight",), shape)
        axis = int(name.rpartition(".")[2])
        return Origin((f"{POSITIONS}.weights.{axis}",), axial_table(shape, axis, len(values["axial_shape"])))

    return origin


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _are_sizes(values: object) -> bool:
    """Return whether these are integers that a model could have; nothing is computed from other values."""
    return isinstance(values, tuple) and all(type(one) is int and abs(one) < LARGEST_SIZE for one in values)
