"""Differences between the graphs and the eager model: in results, in memory, in rounding, and in LSH attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.bundles import scale_of
from xlexport.errors import ParityError
from xlexport.verification.eager import MOST_NATS, Answer, Expected, NamedRows

if TYPE_CHECKING:
    from xlruntime.bundle import MemoryEntry
    from xlruntime.memory import Memory
    from xltraining.reformer import LSHTrace

__all__ = [
    "ROW_LAYOUTS",
    "LSHDifference",
    "LSHTotals",
    "RoundingErrors",
    "SegmentDifference",
    "all_errors",
    "apart",
    "compare_hashing",
    "compare_other",
    "compare_score",
    "largest",
    "memory_difference",
    "ratios",
    "rounding_errors",
]

ROW_LAYOUTS = frozenset({"ring", "window"})  # of memories that hold rows by age; others hold a state


def apart(values: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `values` minus `expected`; infinities of one sign, as of impossible tokens, are equal."""
    with np.errstate(invalid="ignore"):
        return np.where(values == expected, 0, values - expected)


def largest(*differences: npt.ArrayLike) -> float:
    """Return the largest absolute value, or NaN if any value is NaN, so that NaN never counts as small."""
    return float(np.max([np.abs(np.asarray(difference)).max(initial=0.0) for difference in differences]))


@dataclass(frozen=True)
class LSHDifference:
    """Figures of LSH attention in one segment. All except `overflow` cover all graphs that read the segment."""

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
    """Errors of the targets' log-probabilities (nats), of graph and float32 model, against the model in float64.

    Attributes:
        model_mean: with its sign.
        model_distribution: the largest error of the likeliest tokens' log-probabilities and of the entropy, relative.
        model_memory: the largest error of a number in a memory, as `memory_difference` has it.
    """

    graph_rms: float
    graph_largest: float
    model_rms: float
    model_largest: float
    model_mean: float = 0.0
    model_distribution: float = 0.0
    model_memory: float = 0.0


@dataclass(frozen=True)
class SegmentDifference:
    """The absolute differences of one segment, in the targets' log-probabilities (nats) and in memory."""

    segment: int
    tokens: int
    max_abs_log_prob_diff: float
    mean_abs_log_prob_diff: float
    max_distribution_diff: float | None  # None after the segments that the detail and generate graphs read
    max_abs_memory_diff: float | None  # None: compared with a reference, whose state has a form of its own
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


def compare_score(
    segment: int,
    expected: npt.NDArray[np.floating],
    log_prob: npt.NDArray[np.float32],
    rounding: RoundingErrors | None = None,
) -> SegmentDifference:
    """Compare the score graph's log-probabilities (S,) with the eager code's; memory is added later.

    Targets that the eager code calls impossible count in no sum.
    """
    difference, possible = apart(log_prob, expected), ~np.isneginf(expected)
    return SegmentDifference(
        segment=segment,
        tokens=len(log_prob),
        max_abs_log_prob_diff=largest(difference),
        mean_abs_log_prob_diff=float(np.abs(difference).mean()),
        max_distribution_diff=None,
        max_abs_memory_diff=None,
        top1_agreement=None,
        eager_nats=-float(expected[possible].sum(dtype=np.float64)),
        graph_nats=-float(log_prob[possible].sum(dtype=np.float64)),
        rounding=rounding,
    )


def compare_other(
    segment: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the differences of a graph other than `score`; its outputs decide what is compared."""
    if "log_prob" in outputs:
        worst = largest(segment.max_abs_log_prob_diff, apart(outputs["log_prob"][0], expected.log_prob))
        segment = dataclasses.replace(segment, max_abs_log_prob_diff=worst)
    if "top_ids" in outputs:
        segment = _compare_detail(segment, expected, outputs)
    if "logits" in outputs:
        segment = _compare_generate(segment, expected, outputs)
    return segment


def _compare_detail(
    segment: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the differences of the detail graph's ranks, entropies and top tokens."""
    ids, log_probs = outputs["top_ids"][0], outputs["top_log_probs"][0]  # (S, k)
    rank = outputs["rank"][0]  # (S,)
    # Compare each listed token with the eager model's value for it. For a token outside its best, the last is a bound.
    same = ids[:, :, None] == expected.best_ids[:, None, :]  # (S, k, BEST)
    place = np.where(same.any(axis=2), same.argmax(axis=2), expected.best_ids.shape[1] - 1)
    values = np.take_along_axis(expected.best_log_probs, place, axis=1)
    return dataclasses.replace(
        segment,
        max_distribution_diff=largest(
            segment.max_distribution_diff or 0.0,
            _scaled(log_probs, values),
            _scaled(log_probs, expected.best_log_probs[:, : log_probs.shape[1]]),  # no more probable token is missing
            _scaled(outputs["entropy"][0], expected.entropy),
            # In ranks: a difference of one rank is far above any tolerance.
            np.maximum(0, np.maximum(expected.ranks[0] - rank, rank - expected.ranks[1])),
        ),
        top1_agreement=(segment.top1_agreement or 0.0)
        + float((ids[:, 0] == expected.best_ids[:, 0]).sum()) / segment.tokens,
    )


def _compare_generate(
    segment: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the difference of the generate graph's distribution after the last token."""
    if expected.last is None:
        return segment
    difference = _scaled(_log_softmax(outputs["logits"][0]), expected.last)
    return dataclasses.replace(segment, max_distribution_diff=largest(segment.max_distribution_diff or 0.0, difference))


def compare_hashing(trace: Sequence[LSHTrace], overflow: npt.NDArray[np.int32] | None) -> LSHDifference | None:
    """Compare the graph's buckets and overflow (1, S, LSH layers) with those of the eager model.

    Returns:
        The figures, or None if no layer has LSH attention.
    """
    if not trace:
        return None
    flips, margin = 0, 0.0
    for layer in trace:
        flipped = layer.own != layer.buckets
        flips += int(flipped.sum())
        margin = largest(margin, layer.margin[flipped].numpy())
    if overflow is None:
        return LSHDifference(flips, margin)
    expected = np.stack([layer.overflow.numpy() for layer in trace], axis=2)
    return LSHDifference(flips, margin, expected.sum(axis=(0, 1)).tolist(), int((overflow != expected).sum()))


def memory_difference(memory: Memory, rows: Iterable[NamedRows]) -> float:
    """Return the largest difference of memories from `rows`; rings are compared aligned at the newest row.

    Numbers of a state have no bound, so their differences are divided by max(1, |number|).

    Raises:
        ParityError: the graphs carry a memory that the eager model does not have.
    """
    entries = {entry.input: entry for entry in memory.entries}
    worst = [0.0]
    for name, expected in rows:
        entry = entries.pop(name)
        if entry.layout not in ROW_LAYOUTS:
            worst.append(_state_difference(memory.array(entry)[0], expected))
            continue
        array = memory.by_age(entry, 0)
        array = array.reshape(array.shape[: expected.ndim] if entry.layout == "window" else array.shape)
        if (scale := entries.pop(scale_of(name), None)) is not None:
            array = array * memory.by_age(scale, 0)[..., None]
        if entry.row_axis is None:
            worst.append(largest(array - expected))
            continue
        axis = entry.row_axis - 1  # of one batch row
        before = array.shape[axis] - expected.shape[axis]
        # The model may have the bucket ids of the first rounds only.
        newest = (*(slice(size) for size in expected.shape[:axis]), slice(max(0, before), None))
        worst.append(math.inf if before < 0 else largest(array[newest] - expected))
    if entries:
        raise ParityError(
            f"memories that the trained model does not have: {', '.join(entries)}.", hint="Convert the model again."
        )
    return largest(*worst)


def _state_difference(state: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    exact = expected.astype(np.float64)  # of integers and booleans too
    return largest((state - exact) / np.maximum(1, np.abs(exact)))


def rounding_errors(
    graph: npt.NDArray[np.float32], answer: Answer, entries: Sequence[MemoryEntry]
) -> RoundingErrors | None:
    """Return the errors of a graph's log-probabilities (S,) and of the float32 model; None without one in float64."""
    if answer.exact is None:
        return None
    model, exact = answer.expected, answer.exact.expected
    by_graph, by_model = apart(graph, exact.log_prob), apart(model.log_prob, exact.log_prob)
    rings = {entry.input for entry in entries if entry.layout in ROW_LAYOUTS}
    memories = [
        largest(row - expected) if name in rings else _state_difference(row, expected)
        for (name, row), (_, expected) in zip(answer.rows, answer.exact.rows, strict=False)
    ]
    # A sorted list is at most as far apart as its numbers.
    pairs = ((getattr(model, name), getattr(exact, name)) for name in ("best_log_probs", "entropy", "last"))
    own = float(by_model.mean()), largest(*(_scaled(*pair) for pair in pairs)), largest(*memories, 0.0)
    return RoundingErrors(_rms(by_graph), largest(by_graph), _rms(by_model), largest(by_model), *own)


def all_errors(segments: Sequence[SegmentDifference]) -> RoundingErrors | None:
    """Return the errors over all tokens of all segments; None if they were not compared with float64."""
    parts = [(one.tokens, one.rounding) for one in segments if one.rounding is not None]
    if not parts:
        return None
    tokens, errors = np.array([n for n, _ in parts]), np.array([dataclasses.astuple(one) for _, one in parts])
    graph_rms, graph_largest, model_rms, model_largest, model_mean, model_distribution, model_memory = errors.T
    return RoundingErrors(
        graph_rms=math.sqrt(np.average(graph_rms**2, weights=tokens)),
        graph_largest=largest(graph_largest),
        model_rms=math.sqrt(np.average(model_rms**2, weights=tokens)),
        model_largest=largest(model_largest),
        model_mean=float(np.average(model_mean, weights=tokens)),
        model_distribution=largest(model_distribution),
        model_memory=largest(model_memory),
    )


def ratios(errors: RoundingErrors, nats: float) -> tuple[float, float]:
    """Return the graph's errors divided by those of the float32 model: root mean square, and largest.

    A log-probability is the difference of a logit and a logarithm of a sum. The logarithm and the difference each round
    by up to half a unit in the last place of numbers of about this size, however exact all before them is. So an error
    of the float32 model below one unit counts as one unit. Otherwise chance would decide in very small models.

    Args:
        nats: mean negative log-probability of a token, whose last place in float32 is the unit; at least that of 1.
    """
    unit = float(np.spacing(np.float32(max(1.0, nats))))
    return errors.graph_rms / max(errors.model_rms, unit), errors.graph_largest / max(errors.model_largest, unit)


def _scaled(values: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return differences of log-probabilities, divided by their size if it is above one nat.

    Lists of tokens include improbable ones, of -10 to -40 nats. For these, float32 rounding of the logits alone causes
    errors of 1e-4 nats, in the eager model and in the graph. Each is as far from a float64 model as from the other.
    """
    return apart(values, expected) / np.clip(np.abs(expected), 1.0, MOST_NATS)


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return scores - np.log(np.exp(scores).sum())


def _rms(errors: npt.NDArray[np.float64]) -> float:
    return math.sqrt(np.square(errors).mean())
