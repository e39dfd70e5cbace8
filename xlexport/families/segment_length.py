"""The default length of segments."""

from __future__ import annotations

__all__ = ["DEFAULT_SEGMENT_LEN"]

DEFAULT_SEGMENT_LEN = 128  # tokens, unless the model or the user says otherwise
