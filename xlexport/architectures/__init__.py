"""Eager twins of the step graphs, one architecture a file.

Imports torch only where a twin is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from xlruntime import spec

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ARCHITECTURES", "Form", "Step", "build_step", "project_memory", "traced_outputs"]

ARCHITECTURES = ("transformer_xl", "reformer")  # a module here for each


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
    """What an emitter needs of an eager twin (a `torch.nn.Module`), whatever its architecture."""

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
        """Inputs to trace with."""

    def first_rows(self) -> Mapping[str, Tensor]:
        """What a slot of each memory holds that stands for a zero hidden state, by input name."""

    def discard(self) -> None:
        """Free all weights, those of the trained model too; neither can run any more."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of all purposes, each once, in the order of `traced_outputs`."""


def traced_outputs(step: Step) -> dict[str, spec.Tensor]:
    """Every output of every purpose once, by its name inside the step, in the order in which they first appear."""
    outputs: dict[str, spec.Tensor] = {}
    for purpose, tensors in step.purposes.items():
        prefix = f"{step.forms[purpose].prefix}." if purpose in step.forms else ""
        outputs |= {prefix + tensor.name: tensor for tensor in tensors}
    return outputs


def build_step(architecture: str, model: Any, *, cuda_graphs: bool = False) -> Step:
    """The eager twin of a trained model.

    Args:
        cuda_graphs: have graphs whose every shape follows from those of the inputs, too (Transformer-XL).

    Raises:
        ExportError: there is no step graph for the architecture.
    """
    options = {"cuda_graphs": True} if cuda_graphs else {}
    step: Step = _module(architecture).build_step(model, **options)
    return step


def project_memory(architecture: str, model: Any, memory: Any) -> Iterator[tuple[str, Tensor]]:
    """A trained model's own memory as the rows that each ring should hold, oldest first, with its input's name.

    Raises:
        ExportError: there is no step graph for the architecture.
    """
    return _module(architecture).project_memory(model, memory)


def _module(architecture: str) -> ModuleType:
    from xlexport.errors import ExportError

    if architecture not in ARCHITECTURES:
        known = " or ".join(map(repr, ARCHITECTURES))
        raise ExportError(f"no step graph for architecture {architecture!r}; expected {known}.")
    return importlib.import_module(f"xlexport.architectures.{architecture}.step")
