"""Configuration of a Reformer, validated as a whole."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from xltraining.config_fields import ModelConfig, setting
from xltraining.messages import shown

__all__ = ["ReformerConfig"]

_LAYERS = ("local", "lsh", "full", "separate")
# A file's configuration must not cause a long construction of the model.
_MOST_LAYERS = 1000
_MOST_ROUNDS = 10_000  # of hashing, in all layers together
_MOST_PARTS = 8  # factors of a number of buckets, axes of positions
# Rotations are drawn for files without them, so they take memory: at most a quarter of a gigabyte.
_MOST_ROTATIONS = 1 << 26
# Settings of some kinds of layers.
_LAYER_SETTINGS = {
    ("lsh",): ("rule", "n_hashes", "n_buckets", "chunk_length", "hash_seed", "hash_turned", "redraw_hashes"),
    ("local",): ("local_chunk_length", "local_chunks_before"),
    ("lsh", "full"): ("scale_scores",),
}


@dataclass(frozen=True)
class ReformerConfig(ModelConfig):
    """Hyper-parameters of a Reformer (Kitaev et al. 2020).

    The defaults are those of checkpoints that lack a field. New models have those of `for_training`.

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "Reformer"
    LATER: ClassVar[tuple[str, ...]] = ("full_chunk", "residual", "hash_turned")
    RUN_SETTINGS: ClassVar[tuple[str, ...]] = ("reversible", "swap_layers")
    INSTEAD: ClassVar[Mapping[str, str]] = {"n_layer": "attn_layers names a Reformer's layers"}

    n_token: int = setting(256, minimum=1)
    """Size of the vocabulary."""
    d_model: int = setting(256, "Width of the hidden states.", minimum=1, common=True)
    """Width of each of the two streams."""
    n_head: int = setting(4, "Attention heads.", minimum=1, common=True)
    d_head: int = setting(64, "Width of each head.", minimum=1)
    d_inner: int = setting(1024, "Width inside the feed-forward blocks.", minimum=1)
    attn_layers: tuple[str, ...] = setting(
        ("local", "lsh", "local", "lsh"),
        "Attention of each layer: local, lsh, full or separate.",
        choices=_LAYERS,
        longest=_MOST_LAYERS,
        common=True,
    )
    """`full` shares queries and keys over all of the memory; `separate` has both, as a Transformer, to compare."""
    n_hashes: int = setting(2, "Rounds of hashing.", minimum=1)
    n_buckets: tuple[int, ...] = setting(
        (32,), "Buckets of a round, or even factors of that number, such as 64,128.", longest=_MOST_PARTS
    )
    """The first factor is the least significant."""
    chunk_length: int = setting(64, "Most keys that a token sees in a round of hashing.", minimum=1)
    """Rows of a chunk of LSH attention; under rule `band` also W, the most keys that a query sees in a round."""
    chunks_before: int = setting(1, minimum=0)
    local_chunk_length: int = setting(64, "Tokens in a chunk of local attention.", minimum=1)
    local_chunks_before: int = setting(1, "Earlier chunks that local attention sees in addition to its own.", minimum=0)
    rule: Literal["band", "paper", "chunk"] = setting(
        "band", "Keys that LSH attention covers; under `paper` and `chunk`, each segment is a document."
    )
    """See `xltraining.reformer.lsh`."""
    reads_last: bool = setting(False)
    """Rule `chunk`: scoring also feeds a document's last token, and drops the prediction after it (Hugging Face)."""
    tgt_len: int = setting(512, "Tokens in a segment.", minimum=1, common=True)
    """Also the default segment length after training."""
    mem_len: int = setting(512, "Tokens of memory in each layer.", minimum=1, common=True)
    """M, the reach of LSH and full attention; local attention sees its own chunk and the chunks before it."""
    position: Literal["axial", "axial_sum", "absolute", "sinusoid", "rotary"] = setting(
        "axial",
        "Encoding of positions: rotary or sinusoid for documents of any length; axial, axial_sum or absolute for "
        "max_positions. Setting axial_shape and axial_dims chooses axial.",
    )
    axial_shape: tuple[int, ...] = setting(
        (64, 128), "Rows and columns of the table of axial positions.", longest=_MOST_PARTS
    )
    """The cells of the table are the positions, row by row; `max_positions` is its size."""
    axial_dims: tuple[int, ...] = setting(
        (64, 192),
        "Widths of the axial embeddings; by default a quarter of d_model and the rest.",
        longest=_MOST_PARTS,
    )
    """They add up to `d_model` (`axial`) or are all `d_model` (`axial_sum`)."""
    max_positions: int = setting(
        8192, "Number of positions with an embedding; for axial positions, the size of the table.", minimum=0
    )
    """0: no limit (`sinusoid`, `rotary`)."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = setting("relu", "Activation in feed-forward blocks.")
    streams: Literal["concat", "mean"] = setting("concat")
    """How the two streams become the output: concatenated (2 d_model wide), or averaged."""
    layer_norm_epsilon: float = setting(1e-5, above=0)
    scale_scores: bool = setting(
        False, "Divide scores of lsh and full layers by the root of d_head, as in the paper's text, not its code."
    )
    """Always divided by the key's norm. Section 2 of the paper has 1/sqrt(d_k); reformer-pytorch divides too."""
    attention_bias: bool = setting(False)
    """The output map of attention has a bias (reformer-pytorch)."""
    self_mask: float = setting(-1e5)
    """Rule `chunk`: replaces a query's score with itself."""
    hash_seed: int = setting(0, "Seed of the hash rotations.")
    """They are drawn layer by layer and round by round."""
    hash_turned: bool = setting(
        False, "With rotary positions, hash vectors as scores take them: turned by their positions."
    )
    """The paper's h(q) is of the q in q . k (section 2). Otherwise vectors are hashed before they are turned."""
    redraw_hashes: bool = setting(False, "Draw new hash rotations at each update; the paper fixes them.")
    """Evaluation uses the fixed ones."""
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1)
    dropatt: float = setting(0.0, "Dropout rate of attention weights.", minimum=0, below=1)
    ff_chunk: int = setting(
        0, "Positions that a feed-forward block computes together; fewer save memory; 0: all.", minimum=0
    )
    full_chunk: int = setting(0, "Queries that full attention computes together; fewer save memory; 0: all.", minimum=0)
    """The paper calls this memory-efficient attention: no matrix of all queries and keys is kept."""
    residual: Literal["reversible", "ordinary"] = setting(
        "reversible",
        "Residual connections: two reversible streams, or the ordinary one of a Transformer for comparison.",
    )

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
    def whole_document(self) -> bool:
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

    @classmethod
    def for_training(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a new model: positions without end, unless the user chooses embeddings for them."""
        axial = "axial_shape" in values or "axial_dims" in values
        chosen = {"position": "axial" if axial else "rotary", **values}
        if chosen["position"] in ("sinusoid", "rotary"):
            return {"max_positions": 0, **chosen}
        if chosen["position"] in ("axial", "axial_sum"):
            width, shape = chosen.get("d_model", cls.d_model), chosen.get("axial_shape", cls.axial_shape)
            parts = (width // 4, width - width // 4) if chosen["position"] == "axial" else (width,) * len(shape)
            return {"max_positions": math.prod(shape), "axial_dims": parts, **chosen}
        return chosen

    @classmethod
    def without_effect(cls, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the problems of chosen values that would have no effect, and of axes that do not match."""
        layers = values.get("attn_layers", cls.attn_layers)
        for kinds, names in _LAYER_SETTINGS.items():
            idle = [name for name in names if name in values]
            if idle and set(_LAYERS).difference(kinds).issuperset(layers):  # an unknown kind is reported elsewhere
                yield f"{', '.join(idle)}: only with {' or '.join(kinds)} layers, but attn_layers is {','.join(layers)}"
        chosen = cls.for_training(values)["position"]
        if "hash_turned" in values and chosen != "rotary":
            yield f"hash_turned: only for position rotary, found {chosen}"
        axes = [name for name in ("axial_dims", "axial_shape") if name in values]
        position = values.get("position", "axial")
        if axes and position not in ("axial", "axial_sum"):
            yield f"{', '.join(axes)}: only for position axial or axial_sum"
        elif axes and position == "axial":
            rows, widths = len(values.get("axial_shape", (0, 0))), len(values.get("axial_dims", (0, 0)))
            if rows != widths:
                default = "" if len(axes) == 2 else " by default"
                yield (
                    f"axial_shape has {rows} and axial_dims {widths} numbers{default}: give both, with equally many "
                    "numbers"
                )

    def contradictions(self) -> Iterator[str]:
        """Yield the problems of values that do not go together, or have rules of their own."""
        if not self.attn_layers:
            yield "attn_layers must name at least one layer, found ()"
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

    def excesses(self) -> Iterator[str]:
        """Yield the problems of sizes that follow from several fields."""
        if self.n_layer * self.n_hashes > _MOST_ROUNDS:
            yield f"n_hashes × layers must be at most {_MOST_ROUNDS:,}, found {self.n_layer * self.n_hashes:,}"
        heads = self.n_head * self.d_head
        yield from self.too_large(
            {
                "n_token × 2 d_model": self.n_token * 2 * self.d_model,
                "n_head × d_head × d_model": heads * self.d_model,
                "d_inner × d_model": self.d_inner * self.d_model,
                "max_positions × d_model": self.max_positions * (self.d_model if self.position == "absolute" else 1),
            }
        )
        rotations = heads * self.n_hashes * self.rotation_columns * self.attn_layers.count("lsh")
        if rotations > _MOST_ROTATIONS:
            yield (
                "n_head × d_head × n_hashes × n_buckets / 2 × layers (numbers of the rotations) must be at most "
                f"{_MOST_ROTATIONS:,}, found {rotations:,}"
            )
        if self.buckets > self.LARGEST:  # memories hold bucket ids as int32, and sort keys are ids times rows in int64
            yield f"the product of n_buckets must be at most {self.LARGEST:,}, found {self.buckets:,}"
