"""Configuration of an encoder-decoder, validated as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from xltraining.config_fields import ModelConfig, setting

__all__ = ["END", "FIRST_BYTE", "PAD", "START", "EncoderDecoderConfig"]

# Ids that both vocabularies reserve; texts have none of them.
PAD = 0
START = 1
END = 2
FIRST_BYTE = 3
# A file's configuration must not cause a long construction of the model.
_MOST_LAYERS = 1000
_MOST_POSITIONS = 1 << 20


@dataclass(frozen=True)
class EncoderDecoderConfig(ModelConfig):
    """Hyper-parameters of an encoder-decoder (Vaswani et al. 2017) with reversible layers (Kitaev et al. 2020).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "encoder-decoder"
    RUN_SETTINGS: ClassVar[tuple[str, ...]] = ("reversible",)
    LATER: ClassVar[tuple[str, ...]] = ("residual", "tie_weight")

    n_token: int = setting(256 + FIRST_BYTE, minimum=FIRST_BYTE + 1)
    """Size of the vocabulary, which sources and targets share: 0 pads, 1 starts a target, 2 ends it."""
    d_model: int = setting(192, "Width of the hidden states.", minimum=1, common=True)
    """Width of each of the two streams."""
    n_head: int = setting(4, "Attention heads.", minimum=1, common=True)
    d_head: int = setting(48, "Width of each head.", minimum=1)
    d_inner: int = setting(768, "Width inside the feed-forward blocks.", minimum=1)
    n_encoder_layer: int = setting(2, "Number of layers of the encoder.", minimum=1, maximum=_MOST_LAYERS)
    n_decoder_layer: int = setting(2, "Number of layers of the decoder.", minimum=1, maximum=_MOST_LAYERS)
    source_len: int = setting(96, "Most tokens of a source.", minimum=1, maximum=_MOST_POSITIONS)
    tgt_len: int = setting(96, "Most tokens of a target.", minimum=1, maximum=_MOST_POSITIONS, common=True)
    """With the one that starts or ends it."""
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1)
    dropatt: float = setting(0.0, "Dropout rate of attention weights.", minimum=0, below=1)
    tie_weight: bool = setting(True, "Use one table for source, target and output.")
    """False: three, as in the rows without weight sharing of Table 4 of Kitaev et al. 2020."""
    layer_norm_epsilon: float = setting(1e-5, above=0)
    residual: Literal["reversible", "ordinary"] = setting(
        "reversible", "Residual connections of both sides: two streams that take turns, or one."
    )

    @property
    def position_limit(self) -> int | None:
        """Number of tokens of a target that the model reads."""
        return self.tgt_len

    def contradictions(self) -> Iterator[str]:
        """Yield the problems of values that have rules of their own, and of matrices that are too large."""
        if self.d_model % 2:
            yield f"d_model must be even, because positions are sines and cosines, found {self.d_model}"
        yield from self.too_large(
            {
                "n_token × d_model": self.n_token * self.d_model,
                "n_head × d_head × d_model": self.n_head * self.d_head * self.d_model,
                "d_inner × d_model": self.d_inner * self.d_model,
            }
        )
