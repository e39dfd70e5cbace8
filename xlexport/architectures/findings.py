"""The results of comparing graphs with the eager model: differences per segment, and totals of LSH attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LSHDifference", "LSHTotals", "RoundingErrors", "SegmentDifference", "largest"]


def largest(*differences: npt.ArrayLike | None) -> float:
    """Return the largest absolute value, or NaN if any value is NaN, so that NaN never counts as small."""
    return float(np.max([np.abs(np.asarray(difference)).max(initial=0.0) for difference in differences]))


@dataclass(frozen=True)
class LSHDifference:
    """Figures of LSH attention in one segment. All except `overflow` cover all graphs that walked the segment."""

    bucket_flips: int = 0  # hashes for which the eager model alone would have chosen another bucket
    largest_flip_margin: float = 0.0
    overflow: list[int] | None = None  # of each layer: queries that missed keys they could see; None: not counted
    overflow_mismatches: int = 0  # tokens and layers for which graph and eager model count different overflow

    def __add__(self, other: LSHDifference) -> LSHDifference:
        counts = [one.overflow for one in (self, other) if one.overflow is not None]
        return LSHDifference(
            self.bucket_flips + other.bucket_flips,
            largest(self.largest_flip_margin, other.largest_flip_margin),
            [sum(layer) for layer in zip(*counts, strict=True)] if counts else None,
            self.overflow_mismatches + other.overflow_mismatches,
        )


@dataclass(frozen=True)
class RoundingErrors:
    """Errors of the targets' log-probabilities (nats), of graph and float32 model, against the model in float64."""

    graph_rms: float
    graph_largest: float
    model_rms: float
    model_largest: float


@dataclass(frozen=True)
class SegmentDifference:
    """The absolute differences of one segment, in the targets' log-probabilities (nats) and in memory."""

    segment: int
    tokens: int
    max_abs_log_prob_diff: float
    mean_abs_log_prob_diff: float
    max_distribution_diff: float | None  # None after the segments that the detail and generate graphs walked
    max_abs_memory_diff: float
    top1_agreement: float | None
    eager_nats: float
    graph_nats: float
    rounding: RoundingErrors | None = None  # None: not compared with float64
    lsh: LSHDifference | None = None


@dataclass(frozen=True)
class LSHTotals:
    """Totals of LSH attention over all segments."""

    hashes_per_token: int  # heads times rounds of one layer
    flip_effect_bits_per_token: float  # bits with the eager model's own buckets, minus bits with the graph's buckets
