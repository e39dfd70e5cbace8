"""Configurations of the recurrent language models, validated as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xltraining.config_fields import ModelConfig, setting
from xltraining.messages import renamed

__all__ = ["LSTMConfig", "MambaConfig", "RecurrentModelConfig"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"RecurrentConfig": "RecurrentModelConfig"})


@dataclass(frozen=True)
class RecurrentModelConfig(ModelConfig):
    """Hyper-parameters that all recurrent models have.

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    n_token: int = setting(256, minimum=1)
    """Size of the vocabulary."""
    n_layer: int = setting(
        2, "Number of layers.", minimum=1, maximum=1000, common=True
    )  # more would take long to build
    d_model: int = setting(512, "Width of the hidden states.", minimum=1, common=True)
    tgt_len: int = setting(128, "Tokens in a segment.", minimum=1, common=True)
    """Gradients end at its first token (truncated backpropagation). Also the default segment length after training."""
    tie_weight: bool = setting(True, "Use the embeddings as weights of the output layer.")
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1)
    """Of embeddings, between layers and of the last hidden states; never along the recurrence."""


@dataclass(frozen=True)
class LSTMConfig(RecurrentModelConfig):
    """Hyper-parameters of an LSTM language model (Zaremba et al. 2014, arXiv:1409.2329)."""

    NAME: ClassVar[str] = "LSTM"

    def excesses(self) -> Iterator[str]:
        """Yield the problems of matrices that are too large."""
        D = self.d_model
        yield from self.too_large({"n_token × d_model": self.n_token * D, "4 × d_model²": 4 * D**2})


@dataclass(frozen=True)
class MambaConfig(RecurrentModelConfig):
    """Hyper-parameters of a Mamba language model (Gu and Dao 2023, arXiv:2312.00752)."""

    NAME: ClassVar[str] = "Mamba"

    n_layer: int = setting(6, "Number of layers.", minimum=1, maximum=1000, common=True)
    d_model: int = setting(256, "Width of the hidden states.", minimum=1, common=True)
    expand: int = setting(2, "Width inside the blocks, as a multiple of d_model.", minimum=1, maximum=1 << 10)
    d_state: int = setting(16, "Numbers of the state of each channel.", minimum=1, maximum=1 << 16)
    d_conv: int = setting(4, "Tokens that the short convolution sees.", minimum=2, maximum=1 << 10)
    dt_rank: int | None = setting(None, "Rank of the map to step sizes.  [default: d_model / 16]", minimum=1)
    """None: `d_model` / 16, rounded up."""

    @property
    def d_inner(self) -> int:
        """Width E inside the blocks."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """Rank R of the map to step sizes."""
        return -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank

    def excesses(self) -> Iterator[str]:
        """Yield the problems of matrices that are too large."""
        D, E = self.d_model, self.d_inner
        columns = max(2 * D, self.rank + 2 * self.d_state, self.d_conv)
        yield from self.too_large({"n_token × d_model": self.n_token * D, "columns × expand × d_model": columns * E})
