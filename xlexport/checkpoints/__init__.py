"""Read files of strangers: restricted pickles, tensors, vocabularies. Nothing here knows a family of models."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    """Name the replacement of what has moved."""
    if name in ("FORMATS", "CheckpointFormat", "format_names", "load"):
        raise ImportError(f"xlexport.checkpoints.{name} has moved: use xlexport.formats.{name}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
