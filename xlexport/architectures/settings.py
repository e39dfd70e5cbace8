"""Declarations of evaluation settings that several architectures share."""

from __future__ import annotations

from xlruntime.evaluation import Setting

__all__ = ["mem_len_setting"]


def mem_len_setting(default: int) -> Setting:
    """Return the declaration of `mem_len`, the rows of memory that a layer keeps."""
    return Setting("integer", default, "rows of memory that a layer keeps", input="mem_len", minimum=1)
