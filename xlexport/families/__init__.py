"""The architectures: one object for each holds all code that an export of it needs.

A further one is a folder whose module defines `ARCHITECTURE`, and a line in `ARCHITECTURES`. The rest of xlexport asks
here. Importing this package is fast, because adapters import torch inside their methods.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xlexport.errors import ExportError
from xlexport.families.base import Architecture
from xlexport.families.step import Form, Step, StepTensor, traced_outputs
from xltraining.config_fields import Option

if TYPE_CHECKING:
    from xlexport.families.describe import ModelDescription
    from xlexport.families.workload import Workload

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Form",
    "Option",
    "Step",
    "StepTensor",
    "architecture",
    "architectures",
    "description_of",
    "find",
    "title_of",
    "traced_outputs",
    "workload_of",
]

ARCHITECTURES = {
    "transformer_xl": "xlexport.families.transformer_xl",
    "encoder_decoder": "xlexport.families.encoder_decoder",
    "reformer": "xlexport.families.reformer",
    "recurrent": "xlexport.families.recurrent",
    "step_model": "xlexport.families.step_model",
}
"""The module of each architecture, which is imported on first use."""


def find(name: str) -> Architecture | None:
    """Return the architecture with this name, or None if the name is unknown."""
    if name not in ARCHITECTURES:
        return None
    architecture: Architecture = importlib.import_module(ARCHITECTURES[name]).ARCHITECTURE
    return architecture


def architecture(name: str) -> Architecture:
    """Return the architecture with this name.

    Raises:
        ExportError: the name is unknown; the message lists the known names.
    """
    architecture = find(name)
    if architecture is None:
        names = ", ".join(ARCHITECTURES)
        raise ExportError(
            f"architecture {name!r} is unknown, expected one of {names}.",
            hint="Add it to xlexport.families.ARCHITECTURES, or upgrade xlexport.",
        )
    return architecture


def architectures() -> tuple[Architecture, ...]:
    """Return all architectures."""
    return tuple(map(architecture, ARCHITECTURES))


def title_of(name: str, config: Mapping[str, Any] | None = None) -> str:
    """Return the display name of an architecture, or of the model with this configuration.

    An unknown name is returned unchanged.
    """
    architecture = find(name)
    return name if architecture is None else architecture.title_of(config or {})


def description_of(name: str) -> ModelDescription:
    """Return what people read about models of an architecture; the default if its name is unknown."""
    from xlexport.families.describe import ModelDescription

    architecture = find(name)
    return ModelDescription() if architecture is None else architecture.description()


def workload_of(name: str) -> Workload:
    """Return the work of an architecture's steps; the default if its name is unknown."""
    from xlexport.families.workload import Workload

    architecture = find(name)
    return Workload() if architecture is None else architecture.workload()
