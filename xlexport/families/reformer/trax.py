"""A pickle of weights that trax wrote for `ReformerLM`, with the `config.json` of its Hugging Face counterpart.

The layout is the one that transformers' own converter reads: in the entry `weights` of a dict, nested tuples of arrays
by layer, without names. Attention has a matrix for each head. That converter also gives the meaning: the bundle
computes Hugging Face's model with these weights, by rule `chunk`, which is the rule of trax' later code.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xlexport.checkpoints.safe_pickle import Record, read, summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError, MissingAnswerError
from xlexport.extras import require
from xlexport.families.reformer import huggingface
from xlexport.families.reformer.tensors import EVALUATION_SETTINGS, reformer_source
from xlruntime.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAME", "load", "matches"]

NAME = "trax"
WEIGHTS = "weights"
# How numpy writes arrays: in two ways, under the names of two versions.
WITH_STATE = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
OF_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
ARRAYS = (*WITH_STATE, *OF_BUFFER)
TRAX = ("opt_state", "slots", "history", "input_signature")  # files of trax also have one of these
GZIP_MAGIC = b"\x1f\x8b"
TYPES = ("f2", "f4", "f8")
HINT = "Give the pickle of a ReformerLM that transformers' converter reads, and its config.json."
# Places in `weights`, and in the four entries of a layer.
EMBEDDING, POSITIONS, LAYERS, NORM, HEAD = 1, 3, 5, 7, 9
ENTRIES = 4
ATTENTION_NORM, ATTENTION, FEED_FORWARD = (0, 0, 0), (0, 1), (2, 0, 1, 2)
INNER_NORM, INNER, OUTER = 0, 1, 4
EMBEDDINGS, ENCODER = "reformer.embeddings", "reformer.encoder"


def matches(path: Path) -> bool:
    """Return whether `path` is a pickle of trax: arrays of numpy under names that its files have, nothing of torch."""
    if path.is_dir():
        return False
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            return _is_gzipped_pickle(path)
    summary = summarize(path)
    if summary is None or WEIGHTS not in summary.strings or any(name.startswith("torch") for name in summary.globals):
        return False
    return bool(set(TRAX) & set(summary.strings)) and any(name in ARRAYS for name in summary.globals)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        config: the content of Hugging Face's `config.json`; `num_buckets`, if that lacks it; evaluation settings.
    """
    require("convert")
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            raise CheckpointError(f"{path}: compressed by gzip.", hint="Unpack it, and give what gunzip writes.")
    if "attn_layers" not in (config or {}):
        raise CheckpointError(
            f"{path}: a pickle of trax, which does not hold its settings.",
            hint="Give --config FILE with the config.json of its Hugging Face counterpart.",
        )
    evaluation = {name: value for name, value in (config or {}).items() if name in EVALUATION_SETTINGS}
    # The max_length of a config.json is a setting of generation, so it cannot be a choice of buckets.
    content = {name: value for name, value in (config or {}).items() if name not in (*evaluation, "max_length")}
    if content.get("num_buckets") is None and "lsh" in content["attn_layers"]:
        raise MissingAnswerError(
            f"{path}: its config.json has no num_buckets.",
            "Give --config num_buckets=N, or N,M for two factors.",
            {"num_buckets": 2},
            ("n_buckets",),
        )
    if isinstance(buckets := content.get("num_buckets"), tuple):
        content["num_buckets"] = list(buckets)  # from the command line
    values, notes = huggingface.settings_of(path, content, evaluation)
    if values["position"] != "axial":
        raise CheckpointError(
            f"{path}: axial_pos_embds is false, but only axial positions of trax are known.", hint=HINT
        )
    notes.append(
        "The weights are read as transformers' converter reads them, and the bundle computes Hugging Face's model. In "
        "trax a document begins with token 0, which is not scored: give it first for the same scores."
    )
    pickled = read(path)
    tree = pickled.get(WEIGHTS) if isinstance(pickled, dict) else None
    tensors = _Tree(path, tree).tensors(len(values["attn_layers"]), len(values["axial_shape"]))
    return reformer_source(
        path,
        NAME,
        values,
        tensors,
        huggingface.origins_of(values),
        rotations=None if content.get("hash_seed") is None else huggingface.seeded,
        code_base="trax",
        files=[path],
        tokenizer="bytes" if values["n_token"] == huggingface.BYTES else None,
        notes=notes,
    )


def _is_gzipped_pickle(path: Path) -> bool:
    """Return whether a compressed file begins as a pickle; only a few of its bytes are unpacked."""
    try:
        with gzip.open(path) as file:
            return file.read(1) == b"\x80"
    except (OSError, EOFError, zlib.error):
        return False


class _Tree:
    """The nested tuples of a file, whose arrays are taken one by one."""

    def __init__(self, path: Path, tree: object) -> None:
        self.path, self.tree = path, tree
        self.taken: set[int] = set()

    def tensors(self, layers: int, axes: int) -> dict[str, Tensor]:
        """Return all arrays under the names of Hugging Face's state dict.

        Raises:
            CheckpointError: an array is missing, of another kind, or has no place in the model.
        """
        tensors = {f"{EMBEDDINGS}.word_embeddings.weight": self.array(EMBEDDING)}
        for axis in range(axes):
            tensors[f"{EMBEDDINGS}.position_embeddings.weights.{axis}"] = self.array(POSITIONS, axis, 0)
        entries = self.at(LAYERS)
        if len(entries) != ENTRIES * layers:
            raise self.error(
                f"{WEIGHTS}[{LAYERS}] has {len(entries)} entries, expected {ENTRIES} for each of {layers} layers"
            )
        for layer in range(layers):
            tensors |= self.layer(LAYERS, layer)
        tensors |= self.pair(f"{ENCODER}.layer_norm", NORM)
        tensors |= self.dense("lm_head.decoder", HEAD)
        tensors["lm_head.bias"] = tensors.pop("lm_head.decoder.bias")
        unused = _count(self.tree) - len(self.taken)
        if unused:
            raise self.error(f"{unused} of its arrays have no place in a ReformerLM")
        return tensors

    def layer(self, place: int, layer: int) -> dict[str, Tensor]:
        """Return the tensors of a layer: its attention, an empty swap, its feed-forward block, and a swap again."""
        name, first = f"{ENCODER}.layers.{layer}", ENTRIES * layer

        def inside(places: tuple[int, ...]) -> tuple[int, ...]:
            return (place, first + places[0], *places[1:])

        tensors = self.pair(f"{name}.attention.layer_norm", *inside(ATTENTION_NORM))
        parts = self.at(*inside(ATTENTION))
        names = ("query_key", "value") if len(parts) == 3 else ("query", "key", "value")
        if len(parts) != len(names) + 1:
            raise self.error(f"attention of layer {layer} has {len(parts)} arrays, expected 3 (lsh) or 4 (local)")
        for number, part in enumerate(names):
            heads = self.heads(*inside(ATTENTION), number)  # (H, D, d)
            tensors[f"{name}.attention.self_attention.{part}.weight"] = heads.transpose(1, 2).flatten(0, 1)
        output = self.heads(*inside(ATTENTION), len(names))  # (H, d, D)
        tensors[f"{name}.attention.output.dense.weight"] = output.flatten(0, 1).T.contiguous()
        block = inside(FEED_FORWARD)
        if len(self.at(*block)) == 4:  # computed in chunks: one level deeper
            block = (*block, 2)
        tensors |= self.pair(f"{name}.feed_forward.layer_norm", *block, INNER_NORM)
        tensors |= self.dense(f"{name}.feed_forward.dense.dense", *block, INNER)
        return tensors | self.dense(f"{name}.feed_forward.output.dense", *block, OUTER)

    def pair(self, name: str, *places: int) -> dict[str, Tensor]:
        """Return a weight and a bias."""
        return {f"{name}.weight": self.array(*places, 0), f"{name}.bias": self.array(*places, 1)}

    def dense(self, name: str, *places: int) -> dict[str, Tensor]:
        """Return the weight (out, in) and the bias of a linear map, which trax stores as (in, out)."""
        tensors = self.pair(name, *places)
        return tensors | {f"{name}.weight": tensors[f"{name}.weight"].T.contiguous()}

    def heads(self, *places: int) -> Tensor:
        """Return an array with one matrix for each head."""
        matrices = self.array(*places)
        if matrices.ndim != 3:
            raise self.error(f"{_place(places)} has {matrices.ndim} axes, expected 3: heads, rows and columns")
        return matrices

    def at(self, *places: int) -> tuple[Any, ...]:
        """Return the tuple at these places."""
        entry = self.tree
        for number in range(len(places) + 1):
            if not isinstance(entry, tuple | list):
                raise self.error(f"{_place(places[:number])} is {_kind(entry)}, expected a tuple")
            if number < len(places):
                if places[number] >= len(entry):
                    raise self.error(f"{_place(places[:number])} has {len(entry)} entries, expected more")
                entry = entry[places[number]]
        return tuple(entry)  # type: ignore[arg-type]  # the loop ends with a tuple or list

    def array(self, *places: int) -> Tensor:
        """Return the array at these places."""
        import torch

        parent, number = self.at(*places[:-1]), places[-1]
        if number >= len(parent):
            raise self.error(f"{_place(places[:-1])} has {len(parent)} entries, expected more")
        record = parent[number]
        try:
            numbers = _numbers(record)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise self.error(f"{_place(places)} is {_kind(record)}, expected an array of floats") from error
        self.taken.add(id(record))
        return torch.from_numpy(numbers)

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: not the layout of trax' ReformerLM: {problem}.", hint=HINT)


def _numbers(record: Any) -> np.ndarray[Any, Any]:
    """Return the array that a record describes, in one of the two ways in which numpy writes arrays.

    Raises:
        TypeError, ValueError, IndexError, KeyError: it describes something else.
    """
    if not isinstance(record, Record) or record.name not in ARRAYS:
        raise TypeError("not an array")
    if record.name in WITH_STATE:
        _, shape, kind, by_columns, data = record.state
    else:
        data, kind, shape, order_of_axes = record.arguments
        by_columns = order_of_axes == "F"
    order = kind.state[1]
    if kind.name != "numpy.dtype" or kind.arguments[0] not in TYPES or order not in ("<", ">"):
        raise ValueError("not numbers")
    if isinstance(data, str) or not all(type(size) is int and size >= 0 for size in shape):
        raise TypeError("not data of an array")
    array = np.frombuffer(data, order + kind.arguments[0]).reshape(shape, order="F" if by_columns else "C")
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def _count(tree: object) -> int:
    """Count the arrays of a tree."""
    if isinstance(tree, tuple | list):
        return sum(map(_count, tree))
    return int(isinstance(tree, Record) and tree.name in ARRAYS)


def _place(places: tuple[int, ...]) -> str:
    return WEIGHTS + "".join(f"[{place}]" for place in places)


def _kind(value: object) -> str:
    """Return what a value is, in a word that may be printed."""
    return shown(value.name) if isinstance(value, Record) else type(value).__name__
