"""Prove that a bundle computes what the trained model computes, over many segments of carried memory.

The eager model walks a text with its own memory, the paper's hidden states; the graphs walk it with their rings of
projected keys and values. Every segment compares the score graph's log-probabilities and its new rows in every memory
tensor; the memories as a whole are compared at the end. The detail and generate graphs then walk the first segments on
their own, until their rings have wrapped; one graph is open at a time, so that memory stays near that of the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ParityError
from xlexport.steps import project_memory
from xlruntime.memory import RingMemory
from xlruntime.model import Model
from xlruntime.spec import Evaluation

if TYPE_CHECKING:
    import torch

__all__ = ["TOLERANCES", "ParityReport", "SegmentDifference", "Tolerance", "segments_to_wrap", "verify"]

BEST = 64  # likeliest tokens that the eager model keeps of each position; the detail graph lists fewer
LARGEST_TABLE = 1 << 22  # numbers in a table of log-probabilities


@dataclass(frozen=True)
class Tolerance:
    """How far a bundle may be from its model."""

    log_prob: float  # nats, the largest of any target; for all other tokens relative, see _scaled
    memory: float  # the largest of any number in any memory
    delta_bits_per_token: float  # of the whole text


TOLERANCES = {"float32": Tolerance(log_prob=1e-4, memory=1e-3, delta_bits_per_token=1e-6)}


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


@dataclass(frozen=True)
class ParityReport:
    """What `verify` found. The LSH fields are None for an architecture without LSH attention."""

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
    overflow_fraction: float | None
    tolerance: dict[str, float]
    passed: bool
    segment_len: int
    mem_len: int
    bits_per_token: float
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
            f"({self.tolerance['delta_bits_per_token']:g}); first segment over tolerance: "
            f"{self.first_segment_over_tolerance}. Make sure that bundle and checkpoint belong together."
        )


def verify(
    model: Model,
    eager: Any,
    ids: npt.NDArray[np.int64],
    *,
    segments: int,
    evaluation: Evaluation | None = None,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> ParityReport:
    """Walk `ids` in both, up to `segments` segments. The model's sessions are closed on the way; they open again.

    Args:
        model: the open bundle.
        eager: the trained model, in eval mode.
        ids: token ids of a real text.
        evaluation: segment and memory lengths; None is the bundle's own.
        progress: called after every segment.

    Raises:
        ParityError: `ids` are too few to compare anything.
    """
    if len(ids) < 2:
        raise ParityError(f"the text has {len(ids)} tokens; at least 2 are needed to compare. Give a longer text.")
    evaluation = evaluation or model.bundle.evaluation
    eager = eager.with_evaluation(
        mem_len=evaluation.mem_len, clamp_len=evaluation.clamp_len, same_length=evaluation.same_length
    )
    found: list[SegmentDifference] = []
    kept: list[_Expected] = []
    for segment, (expected, eager_memory, log_prob, memory) in enumerate(
        _walk_score(model, eager, ids, segments, evaluation)
    ):
        worst = _memory_difference(model, memory, eager, eager_memory, newest=len(log_prob))
        found.append(_difference(segment, expected, log_prob, worst))
        if segment < segments_to_wrap(evaluation):
            kept.append(expected)
            kept_memory = eager_memory
        if progress is not None:
            progress(found[-1])
    found[-1] = _with_memory(found[-1], _memory_difference(model, memory, eager, eager_memory))
    model.release("score")
    for purpose, compare in (("detail", _compare_detail), ("generate", _compare_generate)):
        memory = model.new_memory(evaluation)
        for segment, expected in enumerate(kept):
            for part, outputs in _step_in_parts(model, purpose, memory, expected):
                found[segment] = compare(found[segment], part, outputs)
        worst = _memory_difference(model, memory, eager, kept_memory)
        found[len(kept) - 1] = _with_memory(found[len(kept) - 1], worst)
        model.release(purpose)
    return _report(found, evaluation, TOLERANCES[model.bundle.precision])


def segments_to_wrap(evaluation: Evaluation, rounds: int = 1) -> int:
    """Segments that write the whole ring `rounds` times and begin another round."""
    return rounds * -(-evaluation.capacity() // evaluation.segment_len) + 1


@dataclass(frozen=True)
class _Expected:
    """What the eager model says of one segment."""

    tokens: npt.NDArray[np.int64]  # (1, S)
    targets: npt.NDArray[np.int64]  # (1, S)
    log_prob: npt.NDArray[np.float32]  # (S,) of each target
    entropy: npt.NDArray[np.float32]  # (S,)
    best_ids: npt.NDArray[np.int64]  # (S, k), likeliest first
    best_log_probs: npt.NDArray[np.float32]  # (S, k)
    last: npt.NDArray[np.float32] | None  # (n_token,) of every token, at the last position

    def part(self, start: int, stop: int) -> _Expected:
        """Of some of the positions."""
        tokens, targets = self.tokens[:, start:stop], self.targets[:, start:stop]
        return _Expected(
            tokens,
            targets,
            self.log_prob[start:stop],
            self.entropy[start:stop],
            self.best_ids[start:stop],
            self.best_log_probs[start:stop],
            self.last if stop == len(self.log_prob) else None,
        )


def _walk_score(
    model: Model, eager: Any, ids: npt.NDArray[np.int64], segments: int, evaluation: Evaluation
) -> Iterator[tuple[_Expected, list[torch.Tensor], npt.NDArray[np.float32], RingMemory]]:
    """The eager model and the score graph side by side: after each segment, what they say and what they remember."""
    import torch

    memory = model.new_memory(evaluation)
    eager_memory = eager.first_memory(1)
    S = evaluation.segment_len
    last = min(len(ids) - 1, segments * S)
    for start in range(0, last, S):
        stop = min(start + S, last)
        tokens, targets = ids[None, start:stop], ids[None, start + 1 : stop + 1]
        with torch.inference_mode():
            hidden, eager_memory = eager(torch.from_numpy(tokens), eager_memory)
            expected = _expect(eager, hidden, tokens, targets)
        log_prob = model.step("score", memory, tokens, targets)["log_prob"][0]
        yield expected, eager_memory, log_prob, memory


def _expect(
    eager: Any, hidden: torch.Tensor, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> _Expected:
    """Reduced a few positions at a time: all log-probabilities of a long segment may be more than the model itself."""
    import torch

    n_token = eager.config.n_token
    own, entropy, best_ids, best_log_probs = [], [], [], []
    for places in torch.arange(hidden.shape[1]).split(max(1, LARGEST_TABLE // n_token)):
        log_probs = eager.all_log_probs(hidden[:, places])[0]  # (n, n_token)
        own.append(log_probs.gather(1, torch.from_numpy(targets)[0, places, None])[:, 0])
        entropy.append(-(log_probs.exp() * log_probs).sum(dim=1))
        best = log_probs.topk(min(BEST, n_token), dim=1)
        best_ids.append(best.indices)
        best_log_probs.append(best.values)
    return _Expected(
        tokens,
        targets,
        torch.cat(own).numpy(),
        torch.cat(entropy).numpy(),
        torch.cat(best_ids).numpy(),
        torch.cat(best_log_probs).numpy(),
        log_probs[-1].numpy().copy(),
    )


def _difference(
    segment: int, expected: _Expected, log_prob: npt.NDArray[np.float32], max_abs_memory_diff: float
) -> SegmentDifference:
    difference = log_prob - expected.log_prob
    return SegmentDifference(
        segment=segment,
        tokens=len(log_prob),
        max_abs_log_prob_diff=_largest(difference),
        mean_abs_log_prob_diff=float(np.abs(difference).mean()),
        max_distribution_diff=None,
        max_abs_memory_diff=max_abs_memory_diff,
        top1_agreement=None,
        eager_nats=-float(expected.log_prob.sum(dtype=np.float64)),
        graph_nats=-float(log_prob.sum(dtype=np.float64)),
    )


def _compare_detail(
    found: SegmentDifference, expected: _Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """With the detail graph's targets, entropies and likeliest tokens."""
    ids, log_probs = outputs["top_ids"][0], outputs["top_log_probs"][0]  # (S, k)
    # Each listed token against the eager model's figure for it. One that is not among its best has at most the last's.
    same = ids[:, :, None] == expected.best_ids[:, None, :]  # (S, k, BEST)
    place = np.where(same.any(axis=2), same.argmax(axis=2), expected.best_ids.shape[1] - 1)
    wanted = np.take_along_axis(expected.best_log_probs, place, axis=1)
    return dataclasses.replace(
        found,
        max_abs_log_prob_diff=_largest(found.max_abs_log_prob_diff, outputs["log_prob"][0] - expected.log_prob),
        max_distribution_diff=_largest(
            found.max_distribution_diff or 0.0,
            _scaled(log_probs, wanted),
            _scaled(outputs["entropy"][0], expected.entropy),
        ),
        top1_agreement=(found.top1_agreement or 0.0)
        + float((ids[:, 0] == expected.best_ids[:, 0]).sum()) / found.tokens,
    )


def _compare_generate(
    found: SegmentDifference, expected: _Expected, outputs: dict[str, npt.NDArray[Any]]
) -> SegmentDifference:
    """With the generate graph's distribution behind the last token."""
    if expected.last is None:  # the eager model's was kept for the segment's last position only
        return found
    difference = _scaled(_log_softmax(outputs["logits"][0]), expected.last)
    return dataclasses.replace(found, max_distribution_diff=_largest(found.max_distribution_diff, difference))


def _step_in_parts(
    model: Model, purpose: str, memory: RingMemory, expected: _Expected
) -> Iterator[tuple[_Expected, dict[str, npt.NDArray[Any]]]]:
    """Run a segment as steps of few tokens, with what each should give: whole, its tables may be more than the model.

    The memory's length grows within the segment instead of stopping at mem_len, so every query reaches as far back as
    in one step. The ring has room for that: a row it still reaches is not overwritten before the segment ends.
    """
    S = expected.tokens.shape[1]
    length = memory.memory_length.copy()
    n = max(1, LARGEST_TABLE // model.bundle.vocab_size)
    for start in range(0, S, n):
        part = expected.part(start, min(start + n, S))
        memory.memory_length = length + start
        yield part, model.step(purpose, memory, part.tokens, part.targets)
    memory.memory_length = np.minimum(length + S, memory.evaluation.mem_len)


def _memory_difference(
    model: Model, memory: RingMemory, eager: Any, eager_memory: list[torch.Tensor], newest: int | None = None
) -> float:
    """Largest difference of the memory rows that may be seen, or of the newest: the eager ones projected, by age."""
    import torch

    entries = {entry.input: entry for entry in memory.entries}
    seen = eager_memory if newest is None else [rows[:, max(0, rows.shape[1] - newest) :] for rows in eager_memory]
    worst = []
    with torch.inference_mode():
        for name, rows in project_memory(model.bundle.architecture, eager, seen):
            wanted = rows[0].numpy()  # (H, M, d_head)
            found = memory.by_age(entries.pop(name), 0)
            worst.append(_largest(found[:, found.shape[1] - wanted.shape[1] :] - wanted))
    if entries:
        raise ParityError(f"memories that the trained model does not have: {', '.join(entries)}. Convert it again.")
    return _largest(*worst)


def _with_memory(found: SegmentDifference, worst: float) -> SegmentDifference:
    return dataclasses.replace(found, max_abs_memory_diff=_largest(found.max_abs_memory_diff, worst))


def _report(found: list[SegmentDifference], evaluation: Evaluation, tolerance: Tolerance) -> ParityReport:
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
        )
    ]
    return ParityReport(
        segments=len(found),
        tokens=tokens,
        max_abs_log_prob_diff=_largest(np.array([segment.max_abs_log_prob_diff for segment in found])),
        mean_abs_log_prob_diff=sum(segment.mean_abs_log_prob_diff * segment.tokens for segment in found) / tokens,
        max_abs_memory_diff=_largest(np.array([segment.max_abs_memory_diff for segment in found])),
        top1_agreement=sum(agreement * segment.tokens for segment, agreement in detailed)
        / sum(segment.tokens for segment, _ in detailed),
        delta_bits_per_token=delta_bits,
        max_distribution_diff=_largest(*(segment.max_distribution_diff or 0.0 for segment in found)),
        detail_segments=len(detailed),
        drift=_drift(found),
        first_segment_over_tolerance=over[0] if over else None,
        bucket_flips=None,
        largest_flip_margin=None,
        overflow_fraction=None,
        tolerance=dataclasses.asdict(tolerance),
        passed=not over and abs(delta_bits) <= tolerance.delta_bits_per_token,
        segment_len=evaluation.segment_len,
        mem_len=evaluation.mem_len,
        bits_per_token=eager_nats / tokens / math.log(2),
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


def _largest(*differences: npt.ArrayLike | None) -> float:
    """Largest absolute value; NaN where any is NaN, so that it cannot pass for small."""
    return float(np.max([np.abs(np.asarray(difference)).max(initial=0.0) for difference in differences]))


def _scaled(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Differences of log-probabilities over their size where that is above one nat.

    Lists of tokens include unlikely ones, of -10 to -40 nats. There float32 rounding of the logits alone comes to
    1e-4 nats, in the eager model as in the graph: each is as far from a float64 model as from the other.
    """
    return (found - wanted) / np.maximum(1.0, np.abs(wanted))


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return scores - np.log(np.exp(scores).sum())
