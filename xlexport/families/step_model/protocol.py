"""The interface of a step model: a PyTorch module that maps named tensors and a state to named tensors and a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["StatefulModule"]


class StatefulModule(Protocol):
    """A `torch.nn.Module` with these methods; of `segment` and `step`, one is enough, and both compute the same.

    Inputs and outputs are mappings of float32, integers or booleans by name. The rules of a state are those of
    `RecurrentModel`. A series gives the same outputs however it is cut, and no output depends on a later input.

        def segment(self, inputs, state):  # {name: (B, S, ...)}, {name: (B, ...)}; returns outputs (B, S, ...), state
        def step(self, inputs, state):     # {name: (B, ...)}, {name: (B, ...)}; returns outputs (B, ...), new state

    Attributes: `inputs` says what the module takes, unless the caller does; see `InputSpec`. Optional are
    `segment_len`, the steps of a usual segment, and `max_positions`, the most steps from a first state on.
    """

    def first_state(self) -> Mapping[str, Tensor]:
        """Return the first state, for one row, without the batch axis."""
