"""Outputs of the detail graph: the rank of each token, the entropy of its prediction, and the likeliest tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .errors import OptionError

__all__ = ["check_detail", "detail_of", "no_detail"]


def check_detail(engine: Engine, detail: int) -> None:
    """Refuse more tokens than the detail graph lists, or any if the bundle lacks this graph."""
    engine.session("detail")
    (top_ids,) = (tensor for tensor in engine.bundle.graphs["detail"].outputs if tensor.name == "top_ids")
    most = top_ids.shape[-1]
    if detail < 0 or (isinstance(most, int) and detail > most):
        raise OptionError(f"detail is {detail}, expected 0 to {most}, the likeliest tokens that this bundle lists.")


def detail_of(outputs: Mapping[str, npt.NDArray[Any]], row: int, at: slice, k: int) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the detail outputs for the positions `at` of a row, with `k` likeliest tokens."""
    return {
        "rank": outputs["rank"][row, at].astype(np.int64),
        "entropy": outputs["entropy"][row, at].astype(np.float64),
        "top_ids": outputs["top_ids"][row, at, :k].astype(np.int64),
        "top_log_probs": outputs["top_log_probs"][row, at, :k].astype(np.float64),
    }


def no_detail(k: int) -> dict[str, npt.NDArray[Any]]:
    """Return detail outputs for no positions."""
    none, no_ids = np.zeros((1, 0)), np.zeros((1, 0, k))
    return detail_of({"rank": none, "entropy": none, "top_ids": no_ids, "top_log_probs": no_ids}, 0, slice(0), k)
