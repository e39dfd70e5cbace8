"""Configuration of a Transformer-XL, validated as a whole."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from xltraining.errors import ConfigError

__all__ = ["TransformerXLConfig"]

_AT_LEAST_ONE = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "tgt_len")
_BOOLEANS = ("same_length", "untie_r", "pre_lnorm", "tie_weight")
_PROBABILITIES = ("dropout", "dropatt")


@dataclass(frozen=True)
class TransformerXLConfig:
    """Hyper-parameters of a Transformer-XL, under the names that the field uses (Dai et al. 2019).

    Raises:
        ConfigError: lists every field that is wrong.
    """

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
    """Hidden states that each layer keeps of earlier segments."""
    clamp_len: int = -1
    """Distances above this are treated as this one; not positive: no clamping."""
    same_length: bool = False
    """Every token attends to the same number of keys (see `window`)."""
    untie_r: bool = True
    """Each layer has its own content and position bias (u and v of the paper)."""
    pre_lnorm: bool = False
    """Layer normalisation before each block instead of after it."""
    tie_weight: bool = True
    """The output projection is the embedding matrix."""
    dropout: float = 0.1
    dropatt: float = 0.0
    """Dropout of attention probabilities."""
    layer_norm_epsilon: float = 1e-5
    first_memory: Literal["empty", "zeros"] = "empty"
    """What a document starts with: no memory, or `mem_len` zero rows that are attended to."""

    def __post_init__(self) -> None:
        problems = [*self._type_problems()] or [*self._value_problems()]
        if problems:
            raise ConfigError("invalid Transformer-XL configuration: " + "; ".join(problems))

    def _type_problems(self) -> list[str]:
        problems = []
        for name in (*_AT_LEAST_ONE, "mem_len", "clamp_len"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                problems.append(f"{name} must be an integer, found {value!r}")
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                problems.append(f"{name} must be true or false, found {getattr(self, name)!r}")
        for name in (*_PROBABILITIES, "layer_norm_epsilon"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                problems.append(f"{name} must be a finite number, found {value!r}")
        if self.first_memory not in ("empty", "zeros"):
            problems.append(f"first_memory must be 'empty' or 'zeros', found {self.first_memory!r}")
        return problems

    def _value_problems(self) -> list[str]:
        problems = [
            f"{name} must be at least 1, found {getattr(self, name)}"
            for name in _AT_LEAST_ONE
            if getattr(self, name) < 1
        ]
        problems += [
            f"{name} must be in [0, 1), found {getattr(self, name)}"
            for name in _PROBABILITIES
            if not 0 <= getattr(self, name) < 1
        ]
        if self.d_model % 2:
            problems.append(f"d_model must be even (sines and cosines take half each), found {self.d_model}")
        if self.mem_len < 0:
            problems.append(f"mem_len must be 0 or more, found {self.mem_len}")
        if self.same_length and self.mem_len == 0:
            problems.append("same_length needs mem_len of at least 1: a token would attend to nothing")
        if self.layer_norm_epsilon <= 0:
            problems.append(f"layer_norm_epsilon must be above 0, found {self.layer_norm_epsilon}")
        return problems

    @property
    def window(self) -> int | None:
        """Number of keys that a query may see, itself included; None where only the memory's length limits it."""
        return self.mem_len if self.same_length else None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransformerXLConfig":
        """Build from a plain mapping, as a checkpoint holds it.

        Raises:
            ConfigError: lists every unknown name, or every invalid value.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigError(
                f"unknown names in the Transformer-XL configuration: {', '.join(unknown)}; "
                f"remove them or spell one of: {', '.join(sorted(known))}"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON; `from_dict` reads them back."""
        return asdict(self)
