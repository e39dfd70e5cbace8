"""The interface of a recurrent language model: a PyTorch module that maps tokens and a state to logits and a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RecurrentModel"]


class RecurrentModel(Protocol):
    """A `torch.nn.Module` with these methods; of `segment` and `step`, one is enough, and both compute the same.

    A state maps names to tensors of float32, float16, integers or booleans, whose first axis is the batch. The model
    keeps its names, shapes and dtypes, and writes into no tensor that it was given. A document gives the same logits
    however it is cut.

        def segment(self, tokens, state):  # (B, S) int64, {name: (B, ...)}; returns logits (B, S, n_token), new state
        def step(self, token, state):      # (B,) int64, {name: (B, ...)}; returns logits (B, n_token), new state

    Optional attributes: `n_token`, the size of the vocabulary; `segment_len`, the tokens of a usual segment; and
    `max_positions`, the most tokens of a document, for a module that cannot read documents without an end.
    """

    def first_state(self) -> Mapping[str, Tensor]:
        """Return the state at the start of a document, for one row, without the batch axis."""
