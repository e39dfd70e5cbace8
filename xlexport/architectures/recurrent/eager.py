"""A recurrent module in PyTorch under the interface with which `verify` and `bench` run every trained model."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        self.is_wide = False  # whether it computes in float64

    def first_memory(self, batch_size: int) -> dict[str, Tensor]:
        """Return the state at the start of a document, for all rows."""
        state = batched(self.module.first_state(), batch_size)
        wide = {name: value.double() for name, value in state.items() if self.is_wide and value.is_floating_point()}
        return state | wide

    def forward(self, tokens: Tensor, memory: Mapping[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S) after a state; return logits (B, S, n_token) and the next state."""
        try:
            with _numbers_in_float64() if self.is_wide else contextlib.nullcontext():
                return self._read(tokens, memory or self.first_memory(len(tokens)))
        except Exception as error:
            if self.is_wide:  # it mixes types
                raise
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

    def in_float64(self) -> RecurrentEager | None:
        """Return a copy in float64; None if the module computes anything in float32 all the same."""
        exact, types = copy.deepcopy(self).double(), _FloatTypes()
        exact.is_wide = True
        state = exact.first_memory(1)
        try:
            with torch.inference_mode(), types:
                exact(torch.zeros(1, 2, dtype=torch.int64), state)
        except RuntimeError:  # it mixes types
            return None
        return None if types.narrow else exact


@contextlib.contextmanager
def _numbers_in_float64() -> Iterator[None]:
    """Make float64 the type of Python's numbers, and of integers times these."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _FloatTypes(TorchDispatchMode):
    """Note whether any operator returns floating-point numbers with fewer bits than float64."""

    narrow = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        # Zeros are exact in any type.
        self.narrow |= any(tensor.dtype != torch.float64 and bool(tensor.any()) for tensor in tensors)
        return result


def batched(state: Mapping[str, Tensor], batch_size: int) -> dict[str, Tensor]:
    """Return a state of one row, without the batch axis, for `batch_size` rows."""
    return {name: value[None].repeat(batch_size, *[1] * value.dim()) for name, value in state.items()}
