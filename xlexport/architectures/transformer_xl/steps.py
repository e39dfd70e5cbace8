"""The step module of each encoding of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xlexport.architectures.transformer_xl.absolute_step import AbsoluteStep
from xlexport.architectures.transformer_xl.shaw_step import ShawStep
from xlexport.architectures.transformer_xl.step import TransformerXLStep

if TYPE_CHECKING:
    from xltraining.transformer_xl import TransformerXL

__all__ = ["STEPS", "make_step"]

STEPS: dict[str, type[TransformerXLStep]] = {
    "relative": TransformerXLStep,
    "shaw": ShawStep,
    "sinusoidal": AbsoluteStep,
    "learned": AbsoluteStep,
}


def make_step(model: TransformerXL, cuda_graphs: bool = False) -> TransformerXLStep:
    """Return the step module of a trained model; `cuda_graphs`: also in the form that CUDA graphs need."""
    return STEPS[model.config.encoding](model, cuda_graphs)
