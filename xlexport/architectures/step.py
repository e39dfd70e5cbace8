"""Describe what an emitter needs of any architecture's step module: all graphs of a bundle as PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from xlruntime import spec

T = TypeVar("T")

__all__ = ["Form", "Step", "example_of", "outputs_of", "traced_outputs"]


@dataclass(frozen=True)
class Form:
    """Another way to compute the same: such a purpose has outputs of its own, memory included.

    Attributes:
        prefix: of their names inside the step, where those of all purposes stand together.
        max_segment: tokens of a step that this way is made for; None: any number.
    """

    prefix: str
    max_segment: int | None = None


class Step(Protocol):
    """Describe what an emitter needs of any architecture's eager twin (a `torch.nn.Module`)."""

    @property
    def inputs(self) -> tuple[spec.Tensor, ...]:
        """What `forward` takes, in order."""

    @property
    def memory(self) -> tuple[spec.Memory, ...]:
        """Which of them are carried, and as which output they leave."""

    @property
    def purposes(self) -> dict[str, tuple[spec.Tensor, ...]]:
        """The graphs to cut out of `forward`, and the outputs of each."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """The purposes that `forward` computes in another way than the rest."""

    @property
    def traceable(self) -> bool:
        """Whether one example shows tracers all: no loop depends on data, and no block on sizes."""

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs to trace with, each a tensor of its own: one given twice would be traced as one input."""

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return what a slot of each memory holds for a zero hidden state, by input name."""

    def discard(self) -> None:
        """Free all weights, those of the trained model too; neither can run any more."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all purposes, each once, in the order of `traced_outputs`.

        The signature must be `*inputs`, as the sizes that stay free are given to tracers as one list.
        """


def traced_outputs(step: Step) -> dict[str, spec.Tensor]:
    """Every output of every purpose once, by its name inside the step, in the order in which they first appear."""
    outputs: dict[str, spec.Tensor] = {}
    for purpose, tensors in step.purposes.items():
        outputs |= {_prefix(step, purpose) + tensor.name: tensor for tensor in tensors}
    return outputs


def outputs_of(step: Step, purpose: str, made: Iterable[T]) -> dict[str, T]:
    """Return the outputs of a purpose by their names in its graph, from all in the order of `traced_outputs`."""
    traced = dict(zip(traced_outputs(step), made, strict=True))
    return {tensor.name: traced[_prefix(step, purpose) + tensor.name] for tensor in step.purposes[purpose]}


def _prefix(step: Step, purpose: str) -> str:
    return f"{step.forms[purpose].prefix}." if purpose in step.forms else ""


def example_of(step: Step, sizes: Mapping[str, int], values: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return inputs of zeros with these sizes of the free axes; an input named in `values` is filled with its value."""
    import torch

    made = {
        entry.name: torch.zeros(
            [axis if isinstance(axis, int) else sizes[axis] for axis in entry.shape], dtype=getattr(torch, entry.dtype)
        )
        for entry in step.inputs
    }
    return tuple(tensor.fill_(values[name]) if name in values else tensor for name, tensor in made.items())
