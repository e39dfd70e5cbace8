"""What people read about a step model: its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.families.describe import Config, ModelDescription, Row, stream_memory
from xlruntime.bundle import Bundle

__all__ = ["StepDescription"]


class StepDescription(ModelDescription):
    """The description of a step model."""

    def summary(self, config: Config) -> str:
        """Return what goes in and what comes out, in words."""
        return f"{config['model']}: {_tensors(config['inputs'])} → {_tensors(config['outputs'])}"

    def layers(self, config: Config) -> list[Row]:
        """Return rows about inputs and outputs."""
        return [("inputs", _tensors(config["inputs"])), ("outputs", _tensors(config["outputs"]))]

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle: its inputs and outputs, and its memory."""
        most = bundle.evaluation.max_positions
        rows = [*self.layers(bundle.config), ("steps of a call", f"at most {bundle.evaluation.segment_len:,}")]
        return [*rows, ("steps of a series", "any number" if most is None else f"{most:,}"), stream_memory(bundle)]


def _tensors(specs: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} {spec['dtype']} {tuple(spec['shape'])}" for name, spec in specs.items())
