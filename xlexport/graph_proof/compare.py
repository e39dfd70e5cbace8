"""Measure how far two runs of a graph are apart: each tensor by its own scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xlruntime.messages import named

__all__ = ["Deviation", "Scales", "Values", "moving_axis", "rounding_of", "worst"]

Values = Mapping[str, npt.NDArray[Any]]
EXACT = 1e-5
"""Of the largest result in float32: sums in another order differ by 1e-6 in the files that were tried."""
LOWER = 20.0  # roundings, each of half the last digit, of types with fewer digits than float32
MOST = 1e-2  # however much a graph amplifies rounding
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Deviation:
    """The largest difference of two runs.

    Attributes:
        value: as a part of the largest value of the tensor; of whole numbers, the difference itself.
        place: where it is.
        share: the difference over the one that rounding explains.
    """

    value: float = 0.0
    place: str | None = None
    share: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether rounding explains it."""
        return self.share <= 1


def worst(found: Iterable[Deviation]) -> Deviation:
    """Return the largest of some differences, at the first place that rounding does not explain, if one is."""
    first, largest = None, Deviation()
    for one in found:
        first = first or (None if one.passed else one.place)
        largest = max(largest, one, key=lambda two: two.share)
    return replace(largest, place=first or largest.place)


def rounding_of(dtypes: Iterable[np.dtype[Any]]) -> float:
    """Return the difference that rounding explains, by the type with the fewest digits."""
    digits = [float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind == "f"]
    return max((LOWER * eps for eps in digits if eps > np.finfo(np.float32).eps), default=EXACT)


@dataclass
class Scales:
    """How large the values of each tensor are, and how far apart rounding may put two runs of it.

    Attributes:
        rounding: the part of a value that rounding explains.
        largest: values that two runs had in common up to rounding, by the names of the tensors. What is the same to the
            last digit does not count, as a mask of -1e9.
        shaken: the largest difference of a tensor if the last digits of all inputs change.
    """

    rounding: float
    largest: dict[str, float] = field(default_factory=dict)
    shaken: dict[str, float] = field(default_factory=dict)

    def tolerance(self, name: str) -> float:
        """Return the part of the largest value of a tensor that may differ."""
        sensitivity = self.shaken.get(name, 0.0) / max(self.largest.get(name, 0.0), TINY)
        return max(self.rounding, min(10 * sensitivity, MOST))

    def compare(self, found: Values, expected: Values, place: str, least: float = 0.0) -> Deviation:
        """Return the difference of arrays by name; infinity if shapes differ, or only one has a number at a place.

        Args:
            least: the part of the largest value that may differ in any case.
        """
        return worst(
            self._apart(name, found[name], two, f"{named(name)}, {place}", least) for name, two in expected.items()
        )

    def _apart(
        self, name: str, one: npt.NDArray[Any], two: npt.NDArray[Any], place: str, least: float = 0.0
    ) -> Deviation:
        if one.shape != two.shape:
            return Deviation(np.inf, place, np.inf)
        is_whole = two.dtype.kind in "iub"
        one, two = one.astype(np.float64), two.astype(np.float64)
        differs = (one != two) & ~(np.isnan(one) & np.isnan(two))
        if not differs.any():
            return Deviation()
        one, two = one[differs], two[differs]
        if not (np.isfinite(one).all() and np.isfinite(two).all()):
            return Deviation(np.inf, place, np.inf)
        apart = float(np.max(np.abs(one - two)))
        if is_whole:
            return Deviation(apart, place, np.inf)
        self.largest[name] = max(self.largest.get(name, TINY), float(np.max(np.abs(two))))
        value = apart / max(self.largest[name], float(np.max(np.abs(one))))
        return Deviation(value, place, value / max(least, self.tolerance(name)))

    def learn(self, before: Values, after: Values) -> None:
        """Learn how large values are that change from step to step."""
        for name, two in after.items():
            if two.dtype.kind == "f" and before[name].shape == two.shape:
                moved = np.abs(two[before[name] != two])
                most = float(np.max(moved, where=np.isfinite(moved), initial=TINY))
                self.largest[name] = max(self.largest.get(name, TINY), most)

    def shake(self, found: Values, expected: Values) -> float:
        """Learn from results of inputs whose last digits changed, and return their largest difference."""
        apart = 0.0
        for name, two in expected.items():
            value = self._apart(name, found[name], two, "").value if two.dtype.kind == "f" else 0.0
            if np.isfinite(value) and value:
                apart = max(apart, value)
                self.shaken[name] = max(self.shaken.get(name, 0.0), value * self.largest[name])
        return apart


def moving_axis(one: npt.NDArray[Any], more: npt.NDArray[Any]) -> int | None:
    """Return the first axis that is longer in the second array, or None."""
    sizes = zip(one.shape, more.shape, strict=False)
    return next((at for at, (few, many) in enumerate(sizes) if many > few), None)
