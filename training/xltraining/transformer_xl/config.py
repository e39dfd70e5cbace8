"""Configuration of a Transformer-XL, validated as a whole."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from xltraining.config_fields import is_boolean, is_finite, is_integer
from xltraining.errors import ConfigError
from xltraining.language_model import ModelConfig
from xltraining.messages import shown

__all__ = ["TransformerXLConfig"]

_AT_LEAST_ONE = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "tgt_len")
_INTEGERS = (*_AT_LEAST_ONE, "mem_len", "clamp_len", "div_val", "window_extra")
_BOOLEANS = ("same_length", "untie_r", "pre_lnorm", "tie_weight", "proj_same_dim", "variational")
_PROBABILITIES = ("dropout", "dropatt", "dropinp", "dropemb")
_ABSOLUTE = ("sinusoidal", "learned")
_CHOICES = {"first_memory": ("empty", "zeros"), "encoding": ("relative", "shaw", *_ABSOLUTE)}
# A file's configuration must not cause a long construction of the model, or sizes beyond torch's limits.
_MOST_LAYERS = 1000
_LARGEST_SIZE = 1 << 31
_LARGEST_MATRIX = 1 << 48
_MOST_CUTOFFS = 100


@dataclass(frozen=True)
class TransformerXLConfig(ModelConfig):
    """Hyper-parameters of a Transformer-XL, under the field's names (Dai et al. 2019).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "Transformer-XL"
    LATER: ClassVar[tuple[str, ...]] = ("encoding", "max_klen", "variational", "dropinp", "dropemb")

    n_token: int = 256
    """Size of the vocabulary."""
    n_layer: int = 6
    n_head: int = 8
    d_model: int = 256
    """Width of the hidden states; even, because the sinusoids come in pairs."""
    d_head: int = 32
    d_inner: int = 1024
    """Width inside the feed-forward blocks."""
    tgt_len: int = 128
    """Tokens in a training segment, and the default segment length afterwards."""
    mem_len: int = 128
    """Number of hidden states that each layer keeps from earlier segments."""
    clamp_len: int = -1
    """Largest distance: larger ones are treated as this one; not positive: no clamping."""
    same_length: bool = False
    """Every token attends to the same number of keys (see `window`)."""
    untie_r: bool = True
    """Each layer has its own content and position bias (u and v of the paper)."""
    pre_lnorm: bool = False
    """Layer normalisation before each block instead of after it."""
    tie_weight: bool = True
    """The output layer uses the embedding tables."""
    d_embed: int | None = None
    """Width of the embeddings (with `div_val` above 1, of the first cluster's embeddings); None: `d_model`."""
    cutoffs: tuple[int, ...] = ()
    """Token ids that cut the vocabulary into clusters of ever rarer tokens (Grave et al. 2017); empty: one cluster."""
    div_val: int = 1
    """The embeddings of cluster i are `d_embed // div_val**i` wide (Baevski and Auli 2019)."""
    tie_projs: tuple[bool, ...] = ()
    """For each cluster, whether the output layer uses the embedding's projection. Empty: for no cluster."""
    proj_same_dim: bool = True
    """With `div_val` above 1, also clusters as wide as the model have a projection."""
    dropout: float = 0.1
    dropatt: float = 0.0
    """Dropout of attention probabilities."""
    layer_norm_epsilon: float = 1e-5
    first_memory: Literal["empty", "zeros"] = "empty"
    """Memory at the start of a document: empty, or `mem_len` zero rows that queries attend to."""
    window_extra: int = 0
    """1: with `same_length` a token sees `mem_len + 1` keys, as NVIDIA's and the TensorFlow code do."""
    encoding: Literal["relative", "shaw", "sinusoidal", "learned"] = "relative"
    """Encoding of positions (`xltraining.transformer_xl.encodings`): `attn_type` 0 to 3 of the authors' code.

    `sinusoidal` and `learned` are absolute: documents are read in parts of `tgt_len` tokens, without recurrence.
    """
    max_klen: int | None = None
    """Number of distances (`shaw`) or places (`learned`) with an embedding; None: `tgt_len` + `mem_len`."""
    variational: bool = False
    """Dropout masks stay the same for a whole segment (`LockedDropout`)."""
    dropinp: float | None = None
    """Dropout of the first layer's inputs; None: `dropout`."""
    dropemb: float = 0.0
    """Dropout of words (`WordDropout`)."""

    def __post_init__(self) -> None:
        problems = [*self._type_problems()] or [*self._value_problems()]
        if problems:
            raise ConfigError(f"invalid Transformer-XL configuration: {'; '.join(problems)}.")

    def _type_problems(self) -> list[str]:
        problems = []
        for name in _INTEGERS:
            if not is_integer(getattr(self, name)):
                problems.append(f"{name} must be an integer, found {shown(getattr(self, name))}")
        for name in ("d_embed", "max_klen"):
            if getattr(self, name) is not None and not is_integer(getattr(self, name)):
                problems.append(f"{name} must be an integer or None, found {shown(getattr(self, name))}")
        for name, kind, right in (("cutoffs", "integers", is_integer), ("tie_projs", "true and false", is_boolean)):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(map(right, value)):
                problems.append(f"{name} must be a tuple of {kind}, found {shown(value)}")
        for name in _BOOLEANS:
            if not is_boolean(getattr(self, name)):
                problems.append(f"{name} must be true or false, found {shown(getattr(self, name))}")
        for name in (*_PROBABILITIES, "layer_norm_epsilon"):
            value = getattr(self, name)
            if not is_finite(value) and (name, value) != ("dropinp", None):
                problems.append(f"{name} must be a finite number, found {shown(value)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                *but_last, last = map(repr, choices)
                problems.append(f"{name} must be {', '.join(but_last)} or {last}, found {shown(getattr(self, name))}")
        return problems

    def _value_problems(self) -> list[str]:
        problems = [
            f"{name} must be at least 1, found {shown(getattr(self, name))}"
            for name in _AT_LEAST_ONE
            if getattr(self, name) < 1
        ]
        problems += [
            f"{name} must be in [0, 1), found {getattr(self, name)}"
            for name in _PROBABILITIES
            if not 0 <= (getattr(self, name) or 0) < 1
        ]
        too_large = [name for name in (*_INTEGERS, "d_embed", "max_klen") if (getattr(self, name) or 0) > _LARGEST_SIZE]
        problems += [f"{name} must be at most {_LARGEST_SIZE:,}, found a larger number" for name in too_large]
        if _MOST_LAYERS < self.n_layer <= _LARGEST_SIZE:
            problems.append(f"n_layer must be at most {_MOST_LAYERS:,}, found {self.n_layer:,}")
        if len(self.cutoffs) > _MOST_CUTOFFS:
            problems.append(f"cutoffs must be at most {_MOST_CUTOFFS}, found {len(self.cutoffs):,}")
        if self.d_model % 2:
            problems.append(f"d_model must be even (half sines, half cosines), found {self.d_model}")
        if self.mem_len < 0:
            problems.append(f"mem_len must be 0 or more, found {shown(self.mem_len)}")
        if self.same_length and self.mem_len == 0:
            problems.append("same_length needs mem_len of at least 1: a token would attend to nothing")
        if self.layer_norm_epsilon <= 0:
            problems.append(f"layer_norm_epsilon must be above 0, found {self.layer_norm_epsilon}")
        if self.window_extra not in (0, 1):
            problems.append(f"window_extra must be 0 or 1, found {shown(self.window_extra)}")
        problems += self._encoding_problems()
        return problems or [*self._matrix_problems()] or self._cluster_problems()

    def _encoding_problems(self) -> Iterator[str]:
        if self.max_klen is not None and self.max_klen < (self.tgt_len if self.encoding == "learned" else 1):
            least = "tgt_len" if self.encoding == "learned" else "1"
            yield f"max_klen must be at least {least}, found {self.max_klen}"
        if self.max_klen is not None and self.encoding not in ("shaw", "learned"):
            yield f"max_klen is for encoding shaw or learned, found {self.encoding}"
        if self.encoding != "relative" and not self.untie_r:
            yield f"untie_r must be true for encoding {self.encoding}: only relative can share its biases"
        if self.is_absolute and self.mem_len:
            yield (
                f"mem_len must be 0 for encoding {self.encoding}, found {self.mem_len}: places in one segment mean "
                "nothing in the next (Section 3.3)"
            )
        if self.is_absolute and self.first_memory == "zeros":
            yield f"first_memory must be 'empty' for encoding {self.encoding}, which has no memory"

    def _matrix_problems(self) -> Iterator[str]:
        d_embed = self.d_model if self.d_embed is None else self.d_embed
        heads = self.n_head * self.d_head
        for name, rows, columns in (
            ("n_token × d_embed", self.n_token, d_embed),
            ("d_model × d_embed", self.d_model, d_embed),
            ("3 × n_head × d_head × d_model", 3 * heads, self.d_model),
            ("d_inner × d_model", self.d_inner, self.d_model),
            ("max_klen × n_head × d_head", self.n_embedded, heads),
            ("max_klen × d_model", self.n_embedded, self.d_model),
        ):
            if rows * columns > _LARGEST_MATRIX:
                yield f"{name} must be at most {_LARGEST_MATRIX:,}, found {rows * columns:,}"

    def _cluster_problems(self) -> list[str]:
        problems = []
        edges = (0, *self.cutoffs, self.n_token)
        if any(left >= right for left, right in itertools.pairwise(edges)):
            found = shown(list(self.cutoffs))
            problems.append(f"cutoffs must rise between 0 and n_token {self.n_token}, found {found}")
        if self.div_val < 1:
            problems.append(f"div_val must be at least 1, found {shown(self.div_val)}")
        elif min(self.cluster_widths) < 1:
            found = shown(list(self.cluster_widths))
            problems.append(f"d_embed and div_val must give every cluster a width of at least 1, found widths {found}")
        if len(self.tie_projs) not in (0, len(self.cutoffs) + 1):
            problems.append(
                f"tie_projs must have a value for each of {len(self.cutoffs) + 1} clusters, found {len(self.tie_projs)}"
            )
        return problems

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
