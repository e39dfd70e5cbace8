"""Configuration of a Reformer, validated as a whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from xltraining.config_fields import is_boolean, is_finite, is_integer
from xltraining.errors import ConfigError
from xltraining.language_model import ModelConfig
from xltraining.messages import shown

__all__ = ["ReformerConfig"]

_AT_LEAST_ONE = (
    "n_token",
    "n_head",
    "d_model",
    "d_head",
    "d_inner",
    "n_hashes",
    "chunk_length",
    "local_chunk_length",
    "tgt_len",
    "mem_len",
)
_INTEGERS = (*_AT_LEAST_ONE, "chunks_before", "local_chunks_before", "max_positions", "hash_seed", "ff_chunk")
_TUPLES_OF_INTEGERS = ("n_buckets", "axial_shape", "axial_dims")
_BOOLEANS = ("reads_last", "scale_scores", "attention_bias", "redraw_hashes")
_NUMBERS = ("dropout", "dropatt", "layer_norm_epsilon", "self_mask")
_CHOICES = {
    "rule": ("band", "paper", "chunk"),
    "position": ("axial", "axial_sum", "absolute", "sinusoid", "rotary"),
    "activation": ("relu", "gelu", "gelu_tanh"),
    "streams": ("concat", "mean"),
}
_LAYER_TYPES = ("local", "lsh", "full")
# A file's configuration must not cause a long construction of the model, or sizes beyond torch's limits.
_MOST_LAYERS = 1000
_MOST_ROUNDS = 10_000  # of hashing, in all layers together
_MOST_PARTS = 8  # factors of a number of buckets, axes of positions
_LARGEST_SIZE = 1 << 31
_LARGEST_MATRIX = 1 << 48
# Rotations are drawn for files without them, so they take memory: at most a quarter of a gigabyte.
_MOST_ROTATIONS = 1 << 26


@dataclass(frozen=True)
class ReformerConfig(ModelConfig):
    """Hyper-parameters of a Reformer (Kitaev et al. 2020).

    The defaults are for training; other values are for checkpoints of other code bases.

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "Reformer"

    n_token: int = 256
    """Size of the vocabulary."""
    d_model: int = 256
    """Width of each of the two streams."""
    n_head: int = 4
    d_head: int = 64
    d_inner: int = 1024
    """Width inside the feed-forward blocks."""
    attn_layers: tuple[str, ...] = ("local", "lsh", "local", "lsh")
    """Kind of attention of each layer: `local`, `lsh`, or `full` (shared query-key over all of the memory)."""
    n_hashes: int = 2
    """Rounds of hashing."""
    n_buckets: tuple[int, ...] = (32,)
    """Number of buckets in a round, or its even factors; the first factor is the least significant."""
    chunk_length: int = 64
    """Rows of a chunk of LSH attention; under rule `band` also W, the most keys that a query sees in a round."""
    chunks_before: int = 1
    local_chunk_length: int = 64
    local_chunks_before: int = 1
    rule: Literal["band", "paper", "chunk"] = "band"
    """Which keys LSH attention covers (see `xltraining.reformer.lsh`)."""
    reads_last: bool = False
    """Rule `chunk`: scoring also feeds a document's last token, and drops the prediction after it (Hugging Face)."""
    tgt_len: int = 512
    """Tokens in a training segment, and the default segment length afterwards."""
    mem_len: int = 512
    """M, the reach of LSH and full attention; local attention sees its own chunk and the chunks before it."""
    position: Literal["axial", "axial_sum", "absolute", "sinusoid", "rotary"] = "axial"
    axial_shape: tuple[int, ...] = (64, 128)
    """Shape of the table whose cells are the positions, row by row; `max_positions` is its size."""
    axial_dims: tuple[int, ...] = (64, 192)
    """Widths of the embeddings of each axis: they add up to `d_model` (`axial`) or are all `d_model` (`axial_sum`)."""
    max_positions: int = 8192
    """Positions that have an embedding; 0: no limit (`sinusoid`, `rotary`)."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    streams: Literal["concat", "mean"] = "concat"
    """How the two streams become the output: concatenated (2 d_model wide), or averaged."""
    layer_norm_epsilon: float = 1e-5
    scale_scores: bool = False
    """LSH scores are also divided by sqrt(d_head), not only by the key's norm (reformer-pytorch)."""
    attention_bias: bool = False
    """The output map of attention has a bias (reformer-pytorch)."""
    self_mask: float = -1e5
    """Rule `chunk`: replaces a query's score with itself."""
    hash_seed: int = 0
    """Seed of the rotations, which are drawn layer by layer and round by round."""
    redraw_hashes: bool = False
    """Training draws new rotations at each step, as in the paper; evaluation uses the fixed ones."""
    dropout: float = 0.1
    dropatt: float = 0.0
    """Dropout of attention probabilities."""
    ff_chunk: int = 0
    """Positions that training feeds to a feed-forward block at a time; 0: all. The results are the same."""

    def __post_init__(self) -> None:
        problems = [*self._type_problems()] or [*self._value_problems()] or [*self._size_problems()]
        if problems:
            raise ConfigError(f"invalid Reformer configuration: {'; '.join(problems)}.")

    @property
    def position_limit(self) -> int | None:
        """Number of positions with an embedding; None: no limit."""
        return self.max_positions or None

    @property
    def position_limit_source(self) -> str:
        """The table whose size is the limit, as the end of a message."""
        if not self.position.startswith("axial"):
            return ""
        return f", the size of axial_shape {', '.join(map(str, self.axial_shape))}"

    @property
    def whole(self) -> bool:
        """Whether each call reads a whole document, because the rule cannot carry memory."""
        return self.rule != "band"

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return len(self.attn_layers)

    @property
    def buckets(self) -> int:
        """Buckets of a round."""
        return math.prod(self.n_buckets)

    @property
    def rotation_columns(self) -> int:
        """Columns of a rotation: half the number of buckets, for each factor."""
        return sum(self.n_buckets) // 2

    @property
    def d_output(self) -> int:
        """Width of the output layer's input."""
        return 2 * self.d_model if self.streams == "concat" else self.d_model

    @property
    def local_rows(self) -> int:
        """Rows of earlier segments that a local layer keeps: enough for any place of a segment in its chunks."""
        return (self.local_chunks_before + 1) * self.local_chunk_length

    @property
    def chunk_multiple(self) -> int:
        """Rule `chunk`: documents are padded to a multiple of this common multiple of the layers' chunk lengths."""
        lengths = {"lsh": self.chunk_length, "local": self.local_chunk_length}
        return math.lcm(*(lengths[kind] for kind in self.attn_layers if kind in lengths))

    def _type_problems(self) -> Iterator[str]:
        for name in _INTEGERS:
            if not is_integer(getattr(self, name)):
                yield f"{name} must be an integer, found {shown(getattr(self, name))}"
            elif abs(getattr(self, name)) > _LARGEST_SIZE:
                yield f"{name} must be at most {_LARGEST_SIZE:,}, found a larger number"
        for name in _TUPLES_OF_INTEGERS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(map(is_integer, value)):
                yield f"{name} must be a tuple of integers, found {shown(value)}"
            elif len(value) > _MOST_PARTS or any(part > _LARGEST_SIZE for part in value):
                yield f"{name} must be at most {_MOST_PARTS} numbers of up to {_LARGEST_SIZE:,}, found {shown(value)}"
        yield from _layer_problems(self.attn_layers)
        for name in _BOOLEANS:
            if not is_boolean(getattr(self, name)):
                yield f"{name} must be true or false, found {shown(getattr(self, name))}"
        for name in _NUMBERS:
            value = getattr(self, name)
            if not is_finite(value):
                yield f"{name} must be a finite number, found {shown(value)}"
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                yield f"{name} must be one of {', '.join(choices)}, found {shown(getattr(self, name))}"

    def _value_problems(self) -> Iterator[str]:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, found {getattr(self, name)}"
        for name in ("chunks_before", "local_chunks_before", "max_positions", "ff_chunk"):
            if getattr(self, name) < 0:
                yield f"{name} must be 0 or more, found {getattr(self, name)}"
        for name in ("dropout", "dropatt"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be in [0, 1), found {getattr(self, name)}"
        if self.n_layer > _MOST_LAYERS:
            yield f"attn_layers must name at most {_MOST_LAYERS:,} layers, found {self.n_layer:,}"
        if self.layer_norm_epsilon <= 0:
            yield f"layer_norm_epsilon must be above 0, found {self.layer_norm_epsilon}"
        if not self.n_buckets or any(count < 2 or count % 2 for count in self.n_buckets):
            found = shown(self.n_buckets)
            yield f"n_buckets must be even numbers (a bucket is a direction or its opposite), found {found}"
        if self.rule != "chunk" and "lsh" in self.attn_layers and self.chunks_before != 1:
            yield f"chunks_before must be 1 under rule {self.rule}, found {self.chunks_before}"
        yield from self._position_problems()

    def _position_problems(self) -> Iterator[str]:
        if self.position in ("axial", "axial_sum"):
            if len(self.axial_shape) != len(self.axial_dims) or not self.axial_shape:
                yield f"axial_shape {self.axial_shape} and axial_dims {self.axial_dims} must have the same axes"
            if any(size < 1 for size in (*self.axial_shape, *self.axial_dims)):
                yield f"axial_shape {self.axial_shape} and axial_dims {self.axial_dims} must be at least 1"
            if self.max_positions != math.prod(self.axial_shape):
                yield f"max_positions must be the size of axial_shape, {math.prod(self.axial_shape):,}, found " + (
                    f"{self.max_positions:,}"
                )
            if self.position == "axial" and sum(self.axial_dims) != self.d_model:
                yield f"axial_dims must add up to d_model {self.d_model}, found {sum(self.axial_dims)}"
            if self.position == "axial_sum" and any(width != self.d_model for width in self.axial_dims):
                yield f"axial_dims must all be d_model {self.d_model}, found {self.axial_dims}"
        elif self.position == "absolute" and self.max_positions < 1:
            yield "max_positions must be at least 1 if positions have embeddings, found 0"
        elif self.position == "sinusoid" and self.d_model % 2:
            yield f"d_model must be even if positions are sines and cosines, found {self.d_model}"
        elif self.position == "rotary" and self.d_head % 2:
            yield f"d_head must be even if positions are rotary (they turn pairs of numbers), found {self.d_head}"
        if self.rule == "chunk" and self.chunk_multiple and self.max_positions % self.chunk_multiple:
            yield (
                f"chunk lengths must divide max_positions {self.max_positions:,}, found {self.chunk_length} (lsh) and "
                f"{self.local_chunk_length} (local)"
            )

    def _size_problems(self) -> Iterator[str]:
        if self.n_layer * self.n_hashes > _MOST_ROUNDS:
            yield f"n_hashes × layers must be at most {_MOST_ROUNDS:,}, found {self.n_layer * self.n_hashes:,}"
        heads = self.n_head * self.d_head
        for name, rows, columns in (
            ("n_token × 2 d_model", self.n_token, 2 * self.d_model),
            ("n_head × d_head × d_model", heads, self.d_model),
            ("d_inner × d_model", self.d_inner, self.d_model),
            ("max_positions × d_model", self.max_positions, self.d_model if self.position == "absolute" else 1),
        ):
            if rows * columns > _LARGEST_MATRIX:
                yield f"{name} must be at most {_LARGEST_MATRIX:,}, found {rows * columns:,}"
        rotations = heads * self.n_hashes * self.rotation_columns * self.attn_layers.count("lsh")
        if rotations > _MOST_ROTATIONS:
            yield (
                "n_head × d_head × n_hashes × n_buckets / 2 × layers (numbers of the rotations) must be at most "
                f"{_MOST_ROTATIONS:,}, found {rotations:,}"
            )
        if self.buckets > _LARGEST_SIZE:  # memories hold bucket ids as int32, and sort keys are ids times rows in int64
            yield f"the product of n_buckets must be at most {_LARGEST_SIZE:,}, found {self.buckets:,}"


def _layer_problems(layers: object) -> Iterator[str]:
    if not isinstance(layers, tuple) or not layers:
        yield f"attn_layers must name at least one layer, found {shown(layers)}"
    else:
        unknown = sorted({shown(kind) for kind in layers if kind not in _LAYER_TYPES})
        if unknown:
            yield f"attn_layers must be of {', '.join(_LAYER_TYPES)}, found {', '.join(unknown[:5])}"
