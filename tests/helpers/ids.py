"""Random token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def random_ids(*shape: int, seed: int = 0, vocab_size: int = 256) -> npt.NDArray[np.int64]:
    """Return token ids of this shape."""
    return np.random.default_rng(seed).integers(0, vocab_size, shape)
