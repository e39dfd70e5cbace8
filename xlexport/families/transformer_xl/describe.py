"""What people read about a Transformer-XL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from xlexport.families.describe import Config, ModelDescription, Row, stream_memory
from xlexport.families.transformer_xl import is_absolute
from xlruntime.bundle import Bundle

__all__ = ["TransformerXLDescription"]


class TransformerXLDescription(ModelDescription):
    """The description of a Transformer-XL."""

    evaluation_fields: ClassVar[Mapping[str, str]] = {
        "segment_len": "tgt_len",
        "mem_len": "mem_len",
        "clamp_len": "clamp_len",
        "same_length": "same_length",
    }
    fixed_fields = ("first_memory", "window_extra")

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        encoding = f", encoding {config['encoding']}" if "encoding" in config else ""
        return f"{config['n_layer']} layers, d_model {config['d_model']}, {config['n_head']} heads{encoding}"

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle."""
        settings = bundle.settings
        if is_absolute(bundle.config):
            return [
                ("segment", str(settings.segment_len)),
                ("documents", f"in parts of {settings.max_positions} tokens, each without the parts before it"),
                stream_memory(bundle),
            ]
        return [
            ("segment, memory, clamp", f"{settings.segment_len}, {settings.most_rows}, {settings['clamp_len']}"),
            ("same_length", str(not settings.segmentation_matters).lower()),
            ("first memory", settings.fresh_memory),
            stream_memory(bundle),
        ]

    def checkpoint(self, config: Config, settings: Mapping[str, Any]) -> list[Row]:
        """Return rows about a checkpoint: the keys that a token sees, and the first memory."""
        if is_absolute(config):
            return [("keys that a token sees", f"those of its part of {config['tgt_len']} tokens before it")]
        wider = "mem_len + 1" if settings["window_extra"] else "mem_len"
        otherwise = "all of memory and of its segment before it"
        window = wider if settings["same_length"] else otherwise
        if settings["same_length"] is None:
            window = f"{wider} with same_length, else {otherwise}"
        return [("keys that a token sees", window), ("first memory", settings["first_memory"])]
