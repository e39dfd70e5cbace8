"""Measure how far two runs of a graph are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlruntime.messages import named

__all__ = ["Deviation", "difference", "largest", "moving_axis", "tolerance_of"]

Values = Mapping[str, npt.NDArray[Any]]
EXACT = 1e-5
"""Of results of about 1 in float32: sums in another order differ by 1e-6 in the files that were tried."""
LOWER = 20.0  # roundings, each of half the last digit, of types with fewer digits than float32
MOST = 1e-2  # however much a graph amplifies rounding


@dataclass(frozen=True)
class Deviation:
    """The largest difference of two runs, as a part of the largest value or of 1, and where it is."""

    value: float = 0.0
    place: str | None = None


def tolerance_of(dtypes: Sequence[np.dtype[Any]], sensitivity: float) -> float:
    """Return the difference that rounding explains.

    Args:
        dtypes: of inputs and outputs; the one with the fewest digits counts.
        sensitivity: the difference of results if the last digit of all inputs changes.
    """
    digits = [float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind == "f"]
    rounding = max((LOWER * eps for eps in digits if eps > np.finfo(np.float32).eps), default=EXACT)
    return max(rounding, min(10 * sensitivity, MOST))


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return how far two arrays are apart; infinity if their shapes differ, or only one has a number at a place."""
    if found.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    if expected.dtype.kind in "iub":
        return float(np.max(np.abs(found.astype(np.float64) - expected.astype(np.float64))))
    one, two = found.astype(np.float64), expected.astype(np.float64)
    equal = (one == two) | (np.isnan(one) & np.isnan(two))
    if equal.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(equal, 0.0, np.abs(one - two))
        scale = max(1.0, float(np.max(np.abs(two), where=np.isfinite(two) & ~equal, initial=0.0)))
    worst = float(np.max(apart))
    return worst / scale if np.isfinite(worst) else float("inf")


def largest(found: Sequence[Values], expected: Sequence[Values], limit: float) -> Deviation:
    """Return the largest difference of two runs, call by call; its place is the first beyond `limit`, if one is."""
    worst, first = Deviation(), None
    for at, (one, two) in enumerate(zip(found, expected, strict=True)):
        for name, values in two.items():
            apart = difference(one[name], values)
            place = f"{named(name)}, step {at}"
            if not apart <= limit and first is None:
                first = place
            if apart > worst.value:
                worst = Deviation(apart, place)
    return Deviation(worst.value, first or worst.place)


def moving_axis(one: npt.NDArray[Any], more: npt.NDArray[Any]) -> int | None:
    """Return the first axis that is longer in the second array, or None."""
    sizes = zip(one.shape, more.shape, strict=False)
    return next((at for at, (few, many) in enumerate(sizes) if many > few), None)
