"""What `inspect` shows of bundles of every architecture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from xlruntime.spec import Bundle

__all__ = ["stream_memory"]


def stream_memory(bundle: Bundle) -> str:
    """Return how much memory one stream takes."""
    free = {"batch": 1, **{symbol: bundle.settings.slots(symbol) for symbol in bundle.evaluation.rings}}
    total = sum(
        np.dtype(entry.dtype).itemsize
        * math.prod(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        for entry in bundle.memory
    )
    return f"{total / 1e6:,.1f} MB in {len(bundle.memory)} tensors"
