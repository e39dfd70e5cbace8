"""Eager twins of the step graphs, one architecture a file.

Imports torch only where a twin is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from xlruntime import spec

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Step", "build_step", "output_names", "project_memory"]


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

    def example(self) -> tuple[Tensor, ...]:
        """Inputs to trace with."""

    def first_rows(self) -> Mapping[str, Tensor]:
        """What a slot of each memory holds that stands for a zero hidden state, by input name."""

    def discard(self) -> None:
        """Free all weights, those of the trained model too; neither can run any more."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of all purposes, each once, in the order of `output_names`."""


def output_names(purposes: Mapping[str, tuple[spec.Tensor, ...]]) -> list[str]:
    """Every output of `purposes` once, in the order in which they first appear."""
    return list(dict.fromkeys(tensor.name for outputs in purposes.values() for tensor in outputs))


def build_step(architecture: str, model: Any) -> Step:
    """The eager twin of a trained model.

    Raises:
        ExportError: there is no step graph for the architecture.
    """
    return _module(architecture).TransformerXLStep(model)


def project_memory(architecture: str, model: Any, memory: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """A trained model's own memory as the rows that each ring should hold, oldest first, with its input's name.

    Raises:
        ExportError: there is no step graph for the architecture.
    """
    return _module(architecture).project_memory(model, memory)


def _module(architecture: str) -> ModuleType:
    from xlexport.errors import ExportError

    if architecture != "transformer_xl":
        raise ExportError(f"no step graph for architecture {architecture!r}; expected 'transformer_xl'.")
    from xlexport.steps import transformer_xl

    return transformer_xl
