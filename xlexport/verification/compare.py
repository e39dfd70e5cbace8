"""Differences between the graphs and the eager model, in results and in memory."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures import architecture
from xlexport.architectures.findings import SegmentDifference, largest
from xlexport.bundles import scale_of
from xlexport.errors import ParityError
from xlexport.verification.exact import rounding_errors
from xlexport.verification.expected import Expected, Ids

if TYPE_CHECKING:
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationSettings
    from xlruntime.memory import Memory

__all__ = [
    "NamedRows",
    "check_architecture",
    "check_sizes",
    "compare_other",
    "compare_score",
    "cut",
    "memory_difference",
    "segments_of_others",
    "segments_to_wrap",
    "trim",
    "with_memory",
]


ROW_LAYOUTS = frozenset({"ring", "window"})  # of memories that hold rows by age; others hold a state
NamedRows = tuple[
    str, npt.NDArray[Any]
]  # input of a memory, and its rows (H, rows, d_head), oldest first, or its state


def compare_score(segment: int, expected: Expected, log_prob: npt.NDArray[np.float32]) -> SegmentDifference:
    """Compare the score graph's log-probabilities (S,) with the expected ones; memory is added later."""
    difference = log_prob - expected.log_prob
    return SegmentDifference(
        segment=segment,
        tokens=len(log_prob),
        max_abs_log_prob_diff=largest(difference),
        mean_abs_log_prob_diff=float(np.abs(difference).mean()),
        max_distribution_diff=None,
        max_abs_memory_diff=0.0,
        top1_agreement=None,
        eager_nats=-float(expected.log_prob.sum(dtype=np.float64)),
        graph_nats=-float(log_prob.sum(dtype=np.float64)),
        rounding=None if expected.exact is None else rounding_errors(log_prob, expected.log_prob, expected.exact),
    )


def compare_other(
    found: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the differences of a graph other than `score`; its outputs decide what is compared."""
    if "log_prob" in outputs:
        worst = largest(found.max_abs_log_prob_diff, outputs["log_prob"][0] - expected.log_prob)
        found = dataclasses.replace(found, max_abs_log_prob_diff=worst)
    if "top_ids" in outputs:
        found = _compare_detail(found, expected, outputs)
    if "logits" in outputs:
        found = _compare_generate(found, expected, outputs)
    return found


def _compare_detail(
    found: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the differences of the detail graph's ranks, entropies and top tokens."""
    ids, log_probs = outputs["top_ids"][0], outputs["top_log_probs"][0]  # (S, k)
    rank = outputs["rank"][0]  # (S,)
    # Compare each listed token with the eager model's value for it. For a token outside its best, the last is a bound.
    same = ids[:, :, None] == expected.best_ids[:, None, :]  # (S, k, BEST)
    place = np.where(same.any(axis=2), same.argmax(axis=2), expected.best_ids.shape[1] - 1)
    wanted = np.take_along_axis(expected.best_log_probs, place, axis=1)
    return dataclasses.replace(
        found,
        max_distribution_diff=largest(
            found.max_distribution_diff or 0.0,
            _scaled(log_probs, wanted),
            _scaled(log_probs, expected.best_log_probs[:, : log_probs.shape[1]]),  # no more probable token is missing
            _scaled(outputs["entropy"][0], expected.entropy),
            # In ranks: a difference of one rank is far above any tolerance.
            np.maximum(0, np.maximum(expected.ranks[0] - rank, rank - expected.ranks[1])),
        ),
        top1_agreement=(found.top1_agreement or 0.0)
        + float((ids[:, 0] == expected.best_ids[:, 0]).sum()) / found.tokens,
    )


def _compare_generate(
    found: SegmentDifference, expected: Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """Add the difference of the generate graph's distribution after the last token."""
    if expected.last is None:
        return found
    difference = _scaled(_log_softmax(outputs["logits"][0]), expected.last)
    return dataclasses.replace(found, max_distribution_diff=largest(found.max_distribution_diff or 0.0, difference))


def with_memory(found: SegmentDifference, *worst: float) -> SegmentDifference:
    """Add the differences of memories."""
    return dataclasses.replace(found, max_abs_memory_diff=largest(found.max_abs_memory_diff, *worst))


def memory_difference(memory: Memory, rows: Iterable[NamedRows]) -> float:
    """Return the largest difference of memories from `rows`; rings are compared aligned at the newest row.

    Raises:
        ParityError: the graphs carry a memory that the eager model does not have.
    """
    entries = {entry.input: entry for entry in memory.entries}
    worst = []
    for name, wanted in rows:
        entry = entries.pop(name)
        if entry.layout not in ROW_LAYOUTS:
            worst.append(largest(memory.array(entry)[0] - wanted))
            continue
        found = memory.by_age(entry, 0)
        if (scale := entries.pop(scale_of(name), None)) is not None:
            found = found * memory.by_age(scale, 0)[..., None]
        if entry.row_axis is None:
            worst.append(largest(found - wanted))
            continue
        axis = entry.row_axis - 1  # of one batch row
        before = found.shape[axis] - wanted.shape[axis]
        # The model may have the bucket ids of the first rounds only.
        newest = (*(slice(size) for size in wanted.shape[:axis]), slice(max(0, before), None))
        worst.append(math.inf if before < 0 else largest(found[newest] - wanted))
    if entries:
        raise ParityError(
            f"memories that the trained model does not have: {', '.join(entries)}.", hint="Convert the model again."
        )
    return largest(*worst)


def cut(ids: Ids, segment_len: int, part_len: int | None = None) -> Iterator[tuple[Ids, Ids]]:
    """Yield tokens and targets of each segment, (1, S); the last one may be shorter.

    Args:
        part_len: tokens after which a document begins again, which also ends a segment; None: it never does.
    """
    start, last = 0, len(ids) - 1
    while start < last:
        stop = min(start + segment_len, last)
        if part_len is not None:
            stop = min(stop, (start // part_len + 1) * part_len)
        yield ids[None, start:stop], ids[None, start + 1 : stop + 1]
        start = stop


def segments_to_wrap(evaluation: EvaluationSettings, rounds: int = 1) -> int:
    """Return how many segments write the whole ring `rounds` times and begin another round."""
    return rounds * -(-evaluation.capacity() // evaluation.segment_len) + 1


def segments_of_others(evaluation: EvaluationSettings) -> int:
    """Return how many segments graphs other than `score` walk: 20, or as many as wrap their rings."""
    return max(20, segments_to_wrap(evaluation))


def check_architecture(model: Engine, eager: Any) -> None:
    """Raise ParityError if model and bundle have different architectures."""
    from xltraining.architectures import architecture_of

    if (found := architecture_of(eager.config)) != model.bundle.architecture:
        raise ParityError(
            f"{model.folder}: the bundle holds a {model.bundle.architecture} model, the checkpoint a {found} model.",
            hint="Give the checkpoint that the bundle was converted from.",
        )


def check_sizes(model: Engine, eager: Any) -> None:
    """Raise ParityError, with all differences, if the trained model and the bundle have different sizes."""
    check_architecture(model, eager)
    found = architecture(model.bundle.architecture)
    config = found.comparable_sizes(eager.config.to_dict())
    wrong = [
        f"{name} is {_shown(value)} in the bundle, {_shown(config.get(name))} in the trained model"
        for name, value in found.comparable_sizes(model.bundle.config).items()
        if value != config.get(name)
    ]
    if wrong:
        raise ParityError(f"{'; '.join(wrong)}.", hint="Give the checkpoint that the bundle was converted from.")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def trim() -> None:
    """Return freed memory to the system, which glibc does not do by itself."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _scaled(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return differences of log-probabilities, divided by their size if it is above one nat.

    Lists of tokens include improbable ones, of -10 to -40 nats. For these, float32 rounding of the logits alone causes
    errors of 1e-4 nats, in the eager model and in the graph. Each is as far from a float64 model as from the other.
    """
    return (found - wanted) / np.maximum(1.0, np.abs(wanted))


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return scores - np.log(np.exp(scores).sum())
