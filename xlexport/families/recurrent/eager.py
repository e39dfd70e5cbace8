"""A recurrent module in PyTorch under the interface with which `verify` and `bench` run every trained model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlruntime.messages import first_line
from xltraining.language_model import LanguageModel

__all__ = ["RecurrentConfig", "RecurrentEager", "batched"]


@dataclass(frozen=True)
class RecurrentConfig:
    """What a bundle holds of a recurrent model.

    Attributes:
        n_token: size of the vocabulary.
        tgt_len: tokens of a segment.
        model: the family, or the class of the user's module.
        form: the method that the graphs compute, `segment` or `step`.
        sizes: further sizes, for people.
    """

    n_token: int
    tgt_len: int
    model: str
    form: str
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all values, the sizes among them."""
        own = {"n_token": self.n_token, "tgt_len": self.tgt_len, "model": self.model, "form": self.form}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self.sizes.items()}
        return {**plain, **own}


class RecurrentEager(LanguageModel):
    """A `RecurrentModel`; its hidden states are the logits."""

    ARCHITECTURE: ClassVar[str] = "recurrent"

    def __init__(self, module: nn.Module, config: RecurrentConfig) -> None:
        super().__init__()
        self.module: Any = module
        self.config = config

    def first_memory(self, batch_size: int) -> dict[str, Tensor]:
        """Return the state at the start of a document, for all rows, in float64 if the weights are."""
        state = batched(self.module.first_state(), batch_size)
        if next((weight.dtype for weight in self.parameters()), None) != torch.float64:
            return state
        return {name: value.double() if value.is_floating_point() else value for name, value in state.items()}

    def forward(self, tokens: Tensor, memory: Mapping[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S) after a state; return logits (B, S, n_token) and the next state.

        Raises:
            ExportError: the module raises an exception.
        """
        try:
            return self._read(tokens, memory or self.first_memory(len(tokens)))
        except Exception as error:
            raise ExportError(
                f"{type(self.module).__name__}.{self.config.form}: {type(error).__name__} ({first_line(error)}).",
                hint="Let the module read any token, and documents without an end: no table of positions.",
            ) from error

    def _read(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if self.config.form == "segment":
            logits, state = self.module.segment(tokens, state)
            return logits, dict(state)
        logits = []
        for token in tokens.unbind(dim=1):
            one, state = self.module.step(token, state)
            logits.append(one)
        return torch.stack(logits, dim=1), dict(state)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits, which `forward` has computed."""
        return hidden


def batched(state: Mapping[str, Tensor], batch_size: int) -> dict[str, Tensor]:
    """Return a state of one row, without the batch axis, for `batch_size` rows."""
    return {name: value[None].repeat(batch_size, *[1] * value.dim()) for name, value in state.items()}
