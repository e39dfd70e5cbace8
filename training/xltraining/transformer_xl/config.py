"""Configuration of a Transformer-XL, validated as a whole."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from xltraining.config_fields import ModelConfig, setting
from xltraining.messages import shown

__all__ = ["TransformerXLConfig"]

_ABSOLUTE = ("sinusoidal", "learned")


@dataclass(frozen=True)
class TransformerXLConfig(ModelConfig):
    """Hyper-parameters of a Transformer-XL, under the field's names (Dai et al. 2019).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "Transformer-XL"
    LATER: ClassVar[tuple[str, ...]] = ("encoding", "shaw_biases", "max_klen", "variational", "dropinp", "dropemb")
    RUN_SETTINGS: ClassVar[tuple[str, ...]] = ("auxiliary",)

    n_token: int = setting(256, minimum=1)
    """Size of the vocabulary."""
    n_layer: int = setting(
        6, "Number of layers.", minimum=1, maximum=1000, common=True
    )  # more would take long to build
    n_head: int = setting(8, "Number of attention heads.", minimum=1, common=True)
    d_model: int = setting(256, "Width of the hidden states.", minimum=1, common=True)
    """Even, because the sinusoids come in pairs."""
    d_head: int = setting(32, "Width of each head.", minimum=1)
    d_inner: int = setting(1024, "Width inside the feed-forward blocks.", minimum=1)
    tgt_len: int = setting(128, "Tokens in a segment.", minimum=1, common=True)
    """Also the default segment length after training."""
    mem_len: int = setting(128, "Tokens of memory in each layer.", minimum=0, common=True)
    clamp_len: int = setting(-1, "Largest distinct distance in tokens; -1: no limit.")
    """Larger distances are treated as this one; not positive: no clamping."""
    same_length: bool = setting(False, "Let every token see the same number of earlier tokens.")
    """See `window`."""
    untie_r: bool = setting(True, "Give each layer its own biases u and v.")
    """The content and position biases of the paper."""
    pre_lnorm: bool = setting(False, "Normalise the inputs of layers instead of their outputs.")
    tie_weight: bool = setting(
        True, "Use the embeddings as weights of the output layer; in an encoder-decoder also one table for both texts."
    )
    d_embed: int | None = setting(None, "Width of the embeddings.  [default: d_model]")
    """With `div_val` above 1, of the first cluster's embeddings; None: `d_model`."""
    cutoffs: tuple[int, ...] = setting(
        (), "Token ids at which a new cluster begins, such as 128,192.  [default: one cluster]", longest=100
    )
    """They cut the vocabulary into clusters of ever rarer tokens (Grave et al. 2017); empty: one cluster."""
    div_val: int = setting(1, "Factor by which embeddings become narrower from each cluster to the next.", minimum=1)
    """The embeddings of cluster i are `d_embed // div_val**i` wide (Baevski and Auli 2019)."""
    tie_projs: tuple[bool, ...] = setting(
        (),
        "For each cluster, whether the output layer uses the embedding's projection, such as false,true,true,true.  "
        "[default: for no cluster]",
        longest=101,
    )
    proj_same_dim: bool = setting(True)
    """With `div_val` above 1, also clusters as wide as the model have a projection."""
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1)
    dropatt: float = setting(0.0, "Dropout rate of attention weights.", minimum=0, below=1)
    layer_norm_epsilon: float = setting(1e-5, above=0)
    first_memory: Literal["empty", "zeros"] = setting(
        "empty", "Memory at the start of a document: no rows, or rows of zeros."
    )
    """Empty, or `mem_len` zero rows that queries attend to."""
    window_extra: int = setting(0, minimum=0, maximum=1)
    """1: with `same_length` a token sees `mem_len + 1` keys, as NVIDIA's and the TensorFlow code do."""
    encoding: Literal["relative", "shaw", "sinusoidal", "learned"] = setting(
        "relative", "Encoding of positions; in the authors' code, these are attn_type 0, 1, 2 and 3."
    )
    """Each is a module of `xltraining.transformer_xl.encodings`.

    `sinusoidal` and `learned` are absolute: documents are read in parts of `tgt_len` tokens, without recurrence.
    """
    shaw_biases: bool = setting(
        True, "Give encoding shaw the authors' four terms; false: the two that the paper describes, without biases."
    )
    """False: q_i . k_j + q_i . E[d], scaled (Dai et al. 2019, section 3.3)."""
    max_klen: int | None = setting(
        None, "Number of distances or positions with a learned embedding.  [default: tgt_len + mem_len]"
    )
    """For `shaw` distances, for `learned` places; None: `tgt_len` + `mem_len`."""
    variational: bool = setting(False, "Use the same dropout masks for a whole segment.")
    dropinp: float | None = setting(
        None, "Dropout rate of the first layer's inputs.  [default: dropout]", minimum=0, below=1
    )
    dropemb: float = setting(0.0, "Dropout rate of whole words, whose embeddings become zero.", minimum=0, below=1)

    @classmethod
    def without_effect(cls, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the problems of chosen values that would have no effect on a new model."""
        if "shaw_biases" in values and values.get("encoding") != "shaw":
            yield "shaw_biases: only with encoding shaw"
        if True in values.get("tie_projs", ()) and values.get("div_val", 1) == 1 and "d_embed" not in values:
            yield "tie_projs: embeddings as wide as the model have no projection; give div_val or d_embed"

    def contradictions(self) -> Iterator[str]:
        """Yield the problems of values that do not go together, or have rules of their own."""
        if self.d_model % 2:
            yield f"d_model must be even (half sines, half cosines), found {self.d_model}"
        if self.same_length and self.mem_len == 0:
            yield "same_length needs mem_len of at least 1: a token would attend to nothing"
        if self.max_klen is not None and self.max_klen < (self.tgt_len if self.encoding == "learned" else 1):
            least = "tgt_len" if self.encoding == "learned" else "1"
            yield f"max_klen must be at least {least}, found {self.max_klen}"
        if self.max_klen is not None and self.encoding not in ("shaw", "learned"):
            yield f"max_klen is for encoding shaw or learned, found {self.encoding}"
        if not self.shaw_biases and self.encoding != "shaw":
            yield f"shaw_biases must be true for encoding {self.encoding}: only shaw can lack them"
        if self.encoding != "relative" and not self.untie_r:
            yield f"untie_r must be true for encoding {self.encoding}: only relative can share its biases"
        if self.is_absolute and self.mem_len:
            yield (
                f"mem_len must be 0 for encoding {self.encoding}, found {self.mem_len}: places in one segment mean "
                "nothing in the next (Section 3.3)"
            )
        if self.is_absolute and self.first_memory == "zeros":
            yield f"first_memory must be 'empty' for encoding {self.encoding}, which has no memory"

    def excesses(self) -> Iterator[str]:
        """Yield the problems of matrices that are too large, and of clusters that do not fit the vocabulary."""
        d_embed = self.d_model if self.d_embed is None else self.d_embed
        heads = self.n_head * self.d_head
        yield from self.too_large(
            {
                "n_token × d_embed": self.n_token * d_embed,
                "d_model × d_embed": self.d_model * d_embed,
                "3 × n_head × d_head × d_model": 3 * heads * self.d_model,
                "d_inner × d_model": self.d_inner * self.d_model,
                "max_klen × n_head × d_head": self.n_embedded * heads,
                "max_klen × d_model": self.n_embedded * self.d_model,
            }
        )
        if any(left >= right for left, right in self.cluster_bounds):
            yield f"cutoffs must rise between 0 and n_token {self.n_token}, found {shown(list(self.cutoffs))}"
        if min(self.cluster_widths) < 1:
            widths = shown(list(self.cluster_widths))
            yield f"d_embed and div_val must give every cluster a width of at least 1, found widths {widths}"
        if len(self.tie_projs) not in (0, len(self.cutoffs) + 1):
            yield (
                f"tie_projs must have a value for each of {len(self.cutoffs) + 1} clusters, found {len(self.tie_projs)}"
            )

    @property
    def is_absolute(self) -> bool:
        """Whether positions are places in a part of `tgt_len` tokens, not distances."""
        return self.encoding in _ABSOLUTE

    @property
    def position_limit(self) -> int | None:
        """Number of places: after so many tokens a document begins again; None: no limit."""
        return self.tgt_len if self.is_absolute else None

    @property
    def position_limit_source(self) -> str:
        """Origin of the limit, as the end of a message."""
        return f" (tgt_len, because encoding {self.encoding} is absolute)" if self.is_absolute else ""

    @property
    def kept_rows(self) -> int:
        """Rows of earlier tokens that each layer keeps: `mem_len`, or for absolute encodings a whole part."""
        return self.tgt_len if self.is_absolute else self.mem_len

    @property
    def n_embedded(self) -> int:
        """Number of distances or places that have an embedding, if the encoding has embeddings."""
        return self.tgt_len + self.mem_len if self.max_klen is None else self.max_klen

    @property
    def window(self) -> int | None:
        """Number of keys that a query may see, including itself; None if only the memory's length limits it."""
        return self.mem_len + self.window_extra if self.same_length else None

    @property
    def cluster_bounds(self) -> tuple[tuple[int, int], ...]:
        """First token id of each cluster, and the id after its last."""
        return tuple(itertools.pairwise((0, *self.cutoffs, self.n_token)))

    @property
    def cluster_widths(self) -> tuple[int, ...]:
        """Width of the embeddings of each cluster."""
        d_embed = self.d_model if self.d_embed is None else self.d_embed
        return tuple(d_embed // self.div_val**index for index in range(len(self.cutoffs) + 1))

    def has_projection(self, cluster: int) -> bool:
        """Return whether a linear map turns a cluster's embeddings into the model's width."""
        same_dim = self.cluster_widths[cluster] == self.d_model
        return not same_dim if self.div_val == 1 else self.proj_same_dim or not same_dim

    def ties_projection(self, cluster: int) -> bool:
        """Return whether a cluster's output layer uses the projection of its embeddings."""
        return self.has_projection(cluster) and bool(self.tie_projs) and self.tie_projs[cluster]
