"""Compare what an action gave with what the kit expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Comparison"]

# Numbers in nats that a runtime computes; all others must be equal.
COMPUTED = {"log_probs", "entropy", "top_log_probs", "totals"}
SHOWN = 100  # characters of a value in a message


@dataclass
class Comparison:
    """Differences between expected and found values, and the largest one in nats.

    Attributes:
        within: allowed difference of log-probabilities and entropies, in nats.
        totals: allowed difference of totals, relative to the expected value; None: the same number.
        low_precision: whether the case states its own bounds, because roundings flip.
    """

    within: float
    totals: float | None = None
    low_precision: bool = False
    largest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
        """Compare all fields that are expected; further ones may be found."""
        for name, value in expected.items():
            if name not in found:
                self.problems.append(f"{where}: {name} is missing")
            elif name in COMPUTED:
                self._numbers(value, found[name], f"{where}: {name}", relative=name == "totals")
            elif name == "top_ids":
                self._likeliest(expected, found, f"{where}: {name}")
            elif value != found[name]:
                self.problems.append(f"{where}: {name} is {_short(found[name])}, expected {_short(value)}")

    def _numbers(self, expected: Any, found: Any, where: str, relative: bool = False) -> None:
        wanted, given = list(_flat(expected)), list(_flat(found))
        if len(wanted) != len(given) or not all(map(_alike, wanted, given)):
            self.problems.append(f"{where} is {_short(found)}, expected {_short(expected)}")
            return
        pairs = [(a, b) for a, b in zip(wanted, given, strict=True) if isinstance(a, float | int)]
        differences = [abs(a - b) / (max(1.0, abs(a)) if relative else 1.0) for a, b in pairs]
        largest = math.inf if any(map(math.isnan, differences)) else max(differences, default=0.0)
        if not relative:
            self.largest = max(self.largest, largest)
        allowed = self.totals if relative and self.totals is not None else self.within
        if not largest <= allowed:
            self.problems.append(f"{where} differs by up to {largest:g}, allowed {allowed:g}")

    def _likeliest(self, expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
        """Compare lists of ids. Equally likely ones, up to rounding, may be in another order."""
        for place, (wanted, given) in enumerate(zip(expected["top_ids"], found["top_ids"], strict=True)):
            values = expected["top_log_probs"][place]
            for rank, (a, b) in enumerate(zip(wanted, given, strict=True)):
                near = [other for other in range(len(values)) if abs(values[other] - values[rank]) <= 2 * self.within]
                last = abs(values[-1] - values[rank]) <= 2 * self.within  # the next one is not in the list
                if a != b and not last and b not in [wanted[other] for other in near]:
                    self.problems.append(f"{where}: place {place} has {given}, expected {wanted}")
                    return


def _alike(a: Any, b: Any) -> bool:
    """Return whether both are numbers, or else equal."""
    return isinstance(b, float | int) if isinstance(a, float | int) else bool(a == b)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
