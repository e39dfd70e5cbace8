"""What people read about a model: the sizes in a bundle's README, and the rows of `inspect`.

A family whose folder has no `describe.py` gets the defaults of `ModelDescription`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xlruntime.bundle import Bundle

__all__ = ["Config", "ModelDescription", "Row", "stream_memory", "stream_size"]

Config = Mapping[str, Any]
Row = tuple[str, str]  # name and value, in a table


class ModelDescription:
    """The description of a model, with defaults that suit a plain recurrent model.

    Attributes:
        evaluation_fields: settings of an evaluation, and the fields of the configuration that hold them.
        fixed_fields: fields that decide how the model is evaluated, but that users cannot choose.
    """

    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len"}
    fixed_fields: ClassVar[Sequence[str]] = ()

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        hidden = {*self.evaluation_fields.values(), "n_token", "dropout", "dropatt"}
        return ", ".join(f"{name} {value}" for name, value in config.items() if name not in hidden)

    def layers(self, config: Config) -> list[Row]:
        """Return rows about the layers, in addition to the configuration."""
        return []

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle: its layers, its evaluation and its memory."""
        return [*self.layers(bundle.config), ("segment", f"{bundle.evaluation.segment_len:,}"), stream_memory(bundle)]

    def checkpoint_settings(self, config: Config, needs: Collection[str]) -> dict[str, Any]:
        """Return the evaluation settings that a checkpoint holds; None for a setting that the user must give."""
        fields = self.evaluation_fields.items()
        held = {name: None if name in needs else config[field] for name, field in fields}
        return {**held, **{name: config[name] for name in self.fixed_fields}}

    def checkpoint(self, config: Config, settings: Mapping[str, Any]) -> list[Row]:
        """Return further rows about a checkpoint, after its configuration and `checkpoint_settings`."""
        return self.layers(config)


def stream_memory(bundle: Bundle) -> Row:
    """Return the row about the size of one stream's memory."""
    return "memory of a stream", f"{stream_size(bundle)} in {len(bundle.memory)} tensors"


def stream_size(bundle: Bundle) -> str:
    """Return the size of one stream's memory in words."""
    free = {"batch": 1, **{symbol: bundle.settings.slots(symbol) for symbol in bundle.evaluation.rings}}
    total = sum(
        np.dtype(entry.dtype).itemsize
        * math.prod(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        for entry in bundle.memory
    )
    return f"{total / 1e6:,.1f} MB" if total >= 1e6 else f"{total / 1e3:,.1f} kB"
