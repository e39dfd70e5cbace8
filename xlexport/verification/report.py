"""What `verify` finds, and how it is judged: tolerances by precision, figures by segment, and the whole report."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ParityError
from xlruntime.evaluation import EvaluationSettings
from xlruntime.spec import Bundle

__all__ = [
    "TOLERANCES",
    "LSHDifference",
    "LSHTotals",
    "ParityReport",
    "SegmentDifference",
    "Tolerance",
    "largest",
    "make_report",
    "tolerance_of",
]


@dataclass(frozen=True)
class Tolerance:
    """How far a bundle may be from its model."""

    log_prob: float  # nats, the largest of any target; for all other tokens relative, see _scaled
    memory: float  # the largest of any number in any memory
    delta_bits_per_token: float  # of the whole text
    flip_margin: float  # where the eager model would choose another bucket: how much better, relative


# Of float32, what two orders of adding up may differ by. Of the others, three to five times what rounding came to on
# the two samples (docs/quantization.md): single tokens, unlikely ones above all, differ by far more than the mean. That
# may differ by twice the limit of the quantization: another text, or a shorter one, costs more or less by chance.
TOLERANCES = {
    "float32": Tolerance(log_prob=1e-4, memory=1e-3, delta_bits_per_token=1e-6, flip_margin=1e-4),
    "float16": Tolerance(log_prob=0.15, memory=0.1, delta_bits_per_token=0.02, flip_margin=0.02),
    "int8": Tolerance(log_prob=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int8": Tolerance(log_prob=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int4": Tolerance(log_prob=5.0, memory=2.5, delta_bits_per_token=0.02, flip_margin=1.0),
}


def tolerance_of(bundle: Bundle) -> Tolerance:
    """What holds for a bundle of its precision, and for the limit that it was quantized with.

    Raises:
        ParityError: its precision is unknown.
    """
    if bundle.precision not in TOLERANCES:
        raise ParityError(f"precision {bundle.precision!r} is not one of {', '.join(TOLERANCES)}. Upgrade xlexport.")
    tolerance, quantization = TOLERANCES[bundle.precision], bundle.provenance.get("quantization")
    if quantization is None:
        return tolerance
    return dataclasses.replace(tolerance, delta_bits_per_token=2 * quantization["max_delta_bits"])


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


@dataclass(frozen=True)
class ParityReport:
    """What `verify` found. The LSH fields are None for an architecture without LSH attention.

    Under a rule that carries no memory a segment is a whole document, `mem_len` is 0, and overflow is None.
    """

    segments: int
    tokens: int
    max_abs_log_prob_diff: float
    mean_abs_log_prob_diff: float
    max_abs_memory_diff: float
    top1_agreement: float
    delta_bits_per_token: float
    detail_segments: int  # the first ones, which the detail and generate graphs walked too
    max_distribution_diff: float  # of any token the detail and generate graphs list, over max(1, |log-probability|)
    drift: float | None  # mean difference in the last third of the segments over that in the first third
    first_segment_over_tolerance: int | None
    bucket_flips: int | None
    largest_flip_margin: float | None
    overflow_fraction: float | None  # of queries, heads and rounds: there were more keys to see than the rule allows
    tolerance: dict[str, float]
    passed: bool
    segment_len: int
    mem_len: int
    bits_per_token: float
    flip_effect_bits_per_token: float | None
    overflow_fraction_per_layer: list[float] | None  # of the LSH layers
    overflow_mismatches: int | None  # tokens and layers where graph and eager model do not agree on it
    per_segment: list[SegmentDifference]

    def to_dict(self, per_segment: bool = True) -> dict[str, Any]:
        """For JSON; `per_segment` includes the figures of each segment."""
        fields = dataclasses.asdict(self)
        if not per_segment:
            del fields["per_segment"]
        return fields

    def require_passed(self) -> None:
        """Raise ParityError, with what differs and where, unless the bundle passed."""
        if self.passed:
            return
        raise ParityError(
            "the graphs differ from the trained model: "
            f"log-probabilities by up to {self.max_abs_log_prob_diff:.3g} nats, those of other tokens by "
            f"{self.max_distribution_diff:.3g} of their size "
            f"(tolerance {self.tolerance['log_prob']:g}), memories by up to {self.max_abs_memory_diff:.3g} "
            f"({self.tolerance['memory']:g}), {self.delta_bits_per_token:+.3g} bits per token "
            f"({self.tolerance['delta_bits_per_token']:g}){self._lsh_failure()}; first segment over tolerance: "
            f"{self.first_segment_over_tolerance}. Make sure that bundle and checkpoint belong together."
        )

    def _lsh_failure(self) -> str:
        if self.bucket_flips is None:
            return ""
        return (
            f", {self.bucket_flips:,} buckets by a margin of up to {self.largest_flip_margin:.3g} "
            f"({self.tolerance['flip_margin']:g}), overflow counts in {self.overflow_mismatches or 0:,} places"
        )


def make_report(
    found: list[SegmentDifference],
    evaluation: EvaluationSettings,
    tolerance: Tolerance,
    totals: LSHTotals | None = None,
) -> ParityReport:
    """The figures of all segments as one, judged; `totals` where the architecture has LSH attention."""
    tokens = sum(segment.tokens for segment in found)
    eager_nats = sum(segment.eager_nats for segment in found)
    graph_nats = sum(segment.graph_nats for segment in found)
    detailed = [(segment, segment.top1_agreement) for segment in found if segment.top1_agreement is not None]
    delta_bits = (graph_nats - eager_nats) / tokens / math.log(2)
    over = [
        segment.segment
        for segment in found
        if not (
            segment.max_abs_log_prob_diff <= tolerance.log_prob
            and (segment.max_distribution_diff is None or segment.max_distribution_diff <= tolerance.log_prob)
            and segment.max_abs_memory_diff <= tolerance.memory
            and (segment.lsh is None or segment.lsh.largest_flip_margin <= tolerance.flip_margin)
            and (segment.lsh is None or segment.lsh.overflow_mismatches == 0)
        )
    ]
    lsh = sum((segment.lsh for segment in found if segment.lsh is not None), LSHDifference())
    overflow = None
    if totals is not None and lsh.overflow is not None:
        overflow = [count / (tokens * totals.hashes_per_token) for count in lsh.overflow]
    return ParityReport(
        segments=len(found),
        tokens=tokens,
        max_abs_log_prob_diff=largest(np.array([segment.max_abs_log_prob_diff for segment in found])),
        mean_abs_log_prob_diff=sum(segment.mean_abs_log_prob_diff * segment.tokens for segment in found) / tokens,
        max_abs_memory_diff=largest(np.array([segment.max_abs_memory_diff for segment in found])),
        top1_agreement=sum(agreement * segment.tokens for segment, agreement in detailed)
        / sum(segment.tokens for segment, _ in detailed),
        delta_bits_per_token=delta_bits,
        max_distribution_diff=largest(*(segment.max_distribution_diff or 0.0 for segment in found)),
        detail_segments=len(detailed),
        drift=_drift(found),
        first_segment_over_tolerance=over[0] if over else None,
        bucket_flips=None if totals is None else lsh.bucket_flips,
        largest_flip_margin=None if totals is None else lsh.largest_flip_margin,
        overflow_fraction=None if overflow is None else float(np.mean(overflow)),
        tolerance=dataclasses.asdict(tolerance),
        passed=not over and abs(delta_bits) <= tolerance.delta_bits_per_token,
        segment_len=evaluation.segment_len,
        mem_len=evaluation.most_rows,
        bits_per_token=eager_nats / tokens / math.log(2),
        flip_effect_bits_per_token=None if totals is None else totals.flip_effect_bits_per_token,
        overflow_fraction_per_layer=overflow,
        overflow_mismatches=None if overflow is None else lsh.overflow_mismatches,
        per_segment=found,
    )


def _drift(found: list[SegmentDifference]) -> float | None:
    """Around 1 where differences do not grow with the segments; None where there are too few to tell."""
    third = len(found) // 3
    if not third:
        return None
    first, last = (
        float(np.mean([segment.mean_abs_log_prob_diff for segment in part])) for part in (found[:third], found[-third:])
    )
    return last / first if first > 0 else None


def largest(*differences: npt.ArrayLike | None) -> float:
    """Largest absolute value; NaN where any is NaN, so that it cannot pass for small."""
    return float(np.max([np.abs(np.asarray(difference)).max(initial=0.0) for difference in differences]))
