"""The interface of a step module, which computes all graphs of a bundle in PyTorch, for the emitters."""

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
    """Another way to compute the same results. Purposes of a form have their own outputs, memory included.

    Attributes:
        prefix: the beginning of their names inside the step, which returns the outputs of all purposes.
        max_segment: the most tokens of a step for which this form is made; None: any number.
    """

    prefix: str
    max_segment: int | None = None


class Step(Protocol):
    """The interface of an architecture's step module (a `torch.nn.Module`), the eager twin of the graphs."""

    @property
    def inputs(self) -> tuple[spec.Tensor, ...]:
        """The inputs of `forward`, in order."""

    @property
    def memory(self) -> tuple[spec.Memory, ...]:
        """The inputs that are carried from step to step, and the output that becomes each of them."""

    @property
    def purposes(self) -> dict[str, tuple[spec.Tensor, ...]]:
        """The graphs that are cut out of `forward`, and the outputs of each."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """The purposes that `forward` computes in another form than the rest."""

    @property
    def traceable(self) -> bool:
        """Whether one example is enough to trace everything: no loop depends on data, and no block on sizes."""

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with, each a separate tensor: a tracer merges inputs that are one tensor."""

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the content of a slot of each memory for a zero hidden state, by input name."""

    def discard(self) -> None:
        """Release all weights, including the trained model's; neither can run afterwards."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all purposes, each once, in the order of `traced_outputs`.

        The signature must be `*inputs`, because tracers take the free sizes as one list.
        """


def traced_outputs(step: Step) -> dict[str, spec.Tensor]:
    """Return each output of all purposes once, by its name inside the step, in the order of first appearance."""
    outputs: dict[str, spec.Tensor] = {}
    for purpose, tensors in step.purposes.items():
        outputs |= {_prefix(step, purpose) + tensor.name: tensor for tensor in tensors}
    return outputs


def outputs_of(step: Step, purpose: str, made: Iterable[T]) -> dict[str, T]:
    """Select the outputs of a purpose, by their names in its graph, from all outputs as in `traced_outputs`."""
    traced = dict(zip(traced_outputs(step), made, strict=True))
    return {tensor.name: traced[_prefix(step, purpose) + tensor.name] for tensor in step.purposes[purpose]}


def _prefix(step: Step, purpose: str) -> str:
    return f"{step.forms[purpose].prefix}." if purpose in step.forms else ""


def example_of(step: Step, sizes: Mapping[str, int], values: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return zero inputs with these sizes of the free axes; `values` gives another fill value by input name."""
    import torch

    made = {
        entry.name: torch.zeros(
            [axis if isinstance(axis, int) else sizes[axis] for axis in entry.shape], dtype=getattr(torch, entry.dtype)
        )
        for entry in step.inputs
    }
    return tuple(tensor.fill_(values[name]) if name in values else tensor for name, tensor in made.items())
