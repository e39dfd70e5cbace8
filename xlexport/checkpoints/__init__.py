"""Read files of strangers: restricted pickles, tensors, vocabularies. Nothing here knows a family of models."""

from __future__ import annotations

from xltraining.messages import renamed

MOVED = ("FORMATS", "CheckpointFormat", "format_names", "load")

__getattr__ = renamed(__name__, {name: f"xlexport.formats.{name}" for name in MOVED})
