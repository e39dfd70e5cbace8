"""Differences between two models of a table, in bits and in standard errors over the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.running import print_rows

__all__ = ["Difference", "Ordering", "difference", "print_orderings"]


@dataclass(frozen=True)
class Ordering:
    """An ordering that the paper reports: the names of two models, of which the first has fewer bits."""

    claim: str
    better: str
    worse: str


@dataclass(frozen=True)
class Difference:
    """Bits that the better model saves.

    Attributes:
        error: its standard error if the seeds of the two models are independent.
        paired: its standard error if a seed gives both models the same order of the text: that of the differences.
    """

    bits: float
    error: float
    paired: float


def difference(better: Sequence[float], worse: Sequence[float]) -> Difference:
    """Compare the bits of two models, each with two seeds or more, in the same order."""
    saved = [w - b for b, w in zip(better, worse, strict=True)]
    of_means = [statistics.variance(bits) / len(bits) for bits in (better, worse)]
    paired = statistics.stdev(saved) / math.sqrt(len(saved))
    return Difference(statistics.fmean(saved), math.sqrt(sum(of_means)), paired)


def print_orderings(orderings: Sequence[Ordering], scores: Mapping[str, Sequence[float]]) -> None:
    """Print the orderings whose models are in `scores`, if the scores have two seeds or more."""
    rows = []
    for ordering in orderings:
        pair = scores.get(ordering.better, ()), scores.get(ordering.worse, ())
        if min(map(len, pair)) < 2:
            continue
        found = difference(*pair)
        errors = (f"{found.bits / error:.1f}" if error else "" for error in (found.error, found.paired))
        rows.append((ordering.claim, f"{found.bits:.4f} ± {found.error:.4f}", *errors))
    if rows:
        print_rows(("the paper's ordering", "bits saved", "in standard errors", "paired"), rows)
