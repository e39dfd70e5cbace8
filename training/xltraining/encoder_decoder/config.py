"""Configuration of an encoder-decoder, validated as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xltraining.config_fields import is_finite, is_integer
from xltraining.errors import ConfigError
from xltraining.language_model import ModelConfig
from xltraining.messages import shown

__all__ = ["END", "FIRST_BYTE", "PAD", "START", "EncoderDecoderConfig"]

# Ids that both vocabularies reserve; texts have none of them.
PAD = 0
START = 1
END = 2
FIRST_BYTE = 3
_INTEGERS = (
    *("n_token", "d_model", "n_head", "d_head", "d_inner"),
    *("n_encoder_layer", "n_decoder_layer", "source_len", "tgt_len"),
)
_NUMBERS = ("dropout", "dropatt", "layer_norm_epsilon")
# A file's configuration must not cause a long construction of the model, or sizes beyond torch's limits.
_MOST_LAYERS = 1000
_LARGEST_SIZE = 1 << 31
_LARGEST_MATRIX = 1 << 48
_MOST_POSITIONS = 1 << 20


@dataclass(frozen=True)
class EncoderDecoderConfig(ModelConfig):
    """Hyper-parameters of an encoder-decoder (Vaswani et al. 2017) with reversible layers (Kitaev et al. 2020).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "encoder-decoder"

    n_token: int = 256 + FIRST_BYTE
    """Size of the vocabulary, which sources and targets share: 0 pads, 1 starts a target, 2 ends it."""
    d_model: int = 192
    """Width of each of the two streams."""
    n_head: int = 4
    d_head: int = 48
    d_inner: int = 768
    """Width inside the feed-forward blocks."""
    n_encoder_layer: int = 2
    n_decoder_layer: int = 2
    source_len: int = 96
    """Most tokens of a source."""
    tgt_len: int = 96
    """Most tokens of a target, with the one that starts or ends it."""
    dropout: float = 0.1
    dropatt: float = 0.0
    """Dropout of attention probabilities."""
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        problems = [*self._type_problems()] or [*self._value_problems()]
        if problems:
            raise ConfigError(f"invalid encoder-decoder configuration: {'; '.join(problems)}.")

    @property
    def position_limit(self) -> int | None:
        """Number of tokens of a target that the model reads."""
        return self.tgt_len

    def _type_problems(self) -> Iterator[str]:
        for name in _INTEGERS:
            if not is_integer(getattr(self, name)):
                yield f"{name} must be an integer, found {shown(getattr(self, name))}"
        for name in _NUMBERS:
            if not is_finite(getattr(self, name)):
                yield f"{name} must be a finite number, found {shown(getattr(self, name))}"

    def _value_problems(self) -> Iterator[str]:
        for name in _INTEGERS:
            least, value = (FIRST_BYTE + 1 if name == "n_token" else 1), getattr(self, name)
            if not least <= value <= _LARGEST_SIZE:
                yield f"{name} must be {least} to {_LARGEST_SIZE:,}, found {shown(value)}"
        if self.d_model % 2:
            yield f"d_model must be even, because positions are sines and cosines, found {self.d_model}"
        for name in ("source_len", "tgt_len"):
            if getattr(self, name) > _MOST_POSITIONS:
                yield f"{name} must be at most {_MOST_POSITIONS:,}, found {getattr(self, name):,}"
        for name in ("dropout", "dropatt"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be in [0, 1), found {getattr(self, name)}"
        if self.layer_norm_epsilon <= 0:
            yield f"layer_norm_epsilon must be above 0, found {self.layer_norm_epsilon}"
        for name in ("n_encoder_layer", "n_decoder_layer"):
            if getattr(self, name) > _MOST_LAYERS:
                yield f"{name} must be at most {_MOST_LAYERS:,}, found {getattr(self, name):,}"
        for name, size in (
            ("n_token × d_model", self.n_token * self.d_model),
            ("n_head × d_head × d_model", self.n_head * self.d_head * self.d_model),
            ("d_inner × d_model", self.d_inner * self.d_model),
        ):
            if size > _LARGEST_MATRIX:
                yield f"{name} must be at most {_LARGEST_MATRIX:,}, found {size:,}"
