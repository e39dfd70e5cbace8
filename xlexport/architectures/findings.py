"""What a walk of graphs and eager model finds: figures of one segment, and of LSH attention in all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LSHDifference", "LSHTotals", "SegmentDifference", "largest"]


def largest(*differences: npt.ArrayLike | None) -> float:
    """Return the largest absolute value; NaN if any is NaN, so that it cannot pass for small."""
    return float(np.max([np.abs(np.asarray(difference)).max(initial=0.0) for difference in differences]))


@dataclass(frozen=True)
class LSHDifference:
    """What one segment's LSH attention did. Figures but `overflow` are of all the graphs that walked it."""

    bucket_flips: int = 0  # hashes for which the eager model alone would have chosen another bucket
    largest_flip_margin: float = 0.0
    overflow: list[int] | None = None  # of each layer: queries that saw not all they could; None: not counted
    overflow_mismatches: int = 0  # tokens and layers where graph and eager model count another overflow

    def __add__(self, other: LSHDifference) -> LSHDifference:
        counts = [one.overflow for one in (self, other) if one.overflow is not None]
        return LSHDifference(
            self.bucket_flips + other.bucket_flips,
            largest(self.largest_flip_margin, other.largest_flip_margin),
            [sum(layer) for layer in zip(*counts, strict=True)] if counts else None,
            self.overflow_mismatches + other.overflow_mismatches,
        )


@dataclass(frozen=True)
class SegmentDifference:
    """How one segment differs: absolute differences of the targets' log-probabilities (nats) and of memory."""

    segment: int
    tokens: int
    max_abs_log_prob_diff: float
    mean_abs_log_prob_diff: float
    max_distribution_diff: float | None  # None behind the segments that the detail and generate graphs walked
    max_abs_memory_diff: float
    top1_agreement: float | None
    eager_nats: float
    graph_nats: float
    lsh: LSHDifference | None = None


@dataclass(frozen=True)
class LSHTotals:
    """What is known of LSH attention only when all segments were walked."""

    hashes_per_token: int  # heads times rounds of one layer
    flip_effect_bits_per_token: float  # of the eager model that chooses its own buckets, against that with the graph's
