"""Configurations of the recurrent language models, validated as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xltraining.config_fields import ModelConfig, setting

__all__ = ["LSTMConfig", "MambaConfig"]

_MOST_LAYERS = 1000  # a file's configuration must not cause a long construction of the model


@dataclass(frozen=True)
class LSTMConfig(ModelConfig):
    """Hyper-parameters of an LSTM language model (Zaremba et al. 2014, arXiv:1409.2329).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "LSTM"

    n_token: int = setting(256, minimum=1)
    """Size of the vocabulary."""
    n_layer: int = setting(2, "Number of layers.", minimum=1, maximum=_MOST_LAYERS, common=True)
    d_model: int = setting(512, "Width of the hidden states.", minimum=1, common=True)
    tgt_len: int = setting(128, "Tokens in a segment.", minimum=1, common=True)
    """Gradients flow back to its first token (truncated backpropagation). Also the default length after training."""
    tie_weight: bool = setting(False, "Use the embeddings as weights of the output layer.")
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1, common=True)
    """Between layers, of embeddings and of the last hidden states; never along the recurrence."""

    def excesses(self) -> Iterator[str]:
        """Yield the problems of matrices that are too large."""
        yield from self.too_large(
            {"n_token × d_model": self.n_token * self.d_model, "4 × d_model²": 4 * self.d_model**2}
        )


@dataclass(frozen=True)
class MambaConfig(ModelConfig):
    """Hyper-parameters of a Mamba language model (Gu and Dao 2023, arXiv:2312.00752).

    Raises:
        ConfigError: fields are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "Mamba"

    n_token: int = setting(256, minimum=1)
    """Size of the vocabulary."""
    n_layer: int = setting(6, "Number of layers.", minimum=1, maximum=_MOST_LAYERS, common=True)
    d_model: int = setting(256, "Width of the hidden states.", minimum=1, common=True)
    expand: int = setting(2, "Width inside the blocks, as a multiple of d_model.", minimum=1, maximum=1 << 10)
    d_state: int = setting(16, "Numbers of the state of each channel.", minimum=1, maximum=1 << 16)
    d_conv: int = setting(4, "Tokens that the short convolution sees.", minimum=2, maximum=1 << 10)
    dt_rank: int | None = setting(None, "Rank of the map to step sizes.  [default: d_model / 16]", minimum=1)
    """None: `d_model` / 16, rounded up."""
    tgt_len: int = setting(128, "Tokens in a segment.", minimum=1, common=True)
    """Gradients flow back to its first token (truncated backpropagation). Also the default length after training."""
    tie_weight: bool = setting(True, "Use the embeddings as weights of the output layer.")
    dropout: float = setting(0.1, "Dropout rate.", minimum=0, below=1, common=True)
    """Of embeddings, of what each block adds, and of the last hidden states. The authors use none."""

    @property
    def d_inner(self) -> int:
        """Width E inside the blocks."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """Rank R of the map from hidden states to step sizes."""
        return -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank

    def excesses(self) -> Iterator[str]:
        """Yield the problems of matrices that are too large."""
        E = self.d_inner
        yield from self.too_large(
            {
                "n_token × d_model": self.n_token * self.d_model,
                "2 × expand × d_model²": 2 * E * self.d_model,
                "expand × d_model × (dt_rank + 2 d_state)": E * (self.rank + 2 * self.d_state),
            }
        )
