"""Prove that a bundle computes what the trained model computes, over many segments of carried memory.

The eager model walks a text with its own memory, the paper's hidden states; the graphs walk it with their rings of
projected keys and values. Every segment compares the log-probabilities, every memory tensor, and all three graphs.
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
from xlexport.steps import Step, build_step
from xlruntime.memory import RingMemory
from xlruntime.model import Model
from xlruntime.spec import Evaluation

if TYPE_CHECKING:
    import torch

__all__ = ["TOLERANCES", "ParityReport", "SegmentDifference", "Tolerance", "verify"]


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
    max_distribution_diff: float
    max_abs_memory_diff: float
    top1_agreement: float
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
    eager: torch.nn.Module,
    ids: npt.NDArray[np.int64],
    *,
    segments: int,
    evaluation: Evaluation | None = None,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> ParityReport:
    """Walk `ids` in both, up to `segments` segments.

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
    found = []
    for difference in _walk(model, eager, ids, segments, evaluation):
        found.append(difference)
        if progress is not None:
            progress(difference)
    return _report(found, evaluation, TOLERANCES[model.bundle.precision])


def _walk(
    model: Model, eager: Any, ids: npt.NDArray[np.int64], segments: int, evaluation: Evaluation
) -> Iterator[SegmentDifference]:
    import torch

    eager = eager.with_evaluation(
        mem_len=evaluation.mem_len, clamp_len=evaluation.clamp_len, same_length=evaluation.same_length
    )
    step = build_step(model.bundle.architecture, eager)
    memory = model.new_memory(evaluation)
    eager_memory = eager.first_memory(1)
    S = evaluation.segment_len
    last = min(len(ids) - 1, segments * S)
    for segment, start in enumerate(range(0, last, S)):
        stop = min(start + S, last)
        tokens, targets = ids[None, start:stop], ids[None, start + 1 : stop + 1]
        with torch.inference_mode():
            hidden, eager_memory = eager(torch.from_numpy(tokens), eager_memory)
            wanted = torch.log_softmax(eager.logits(hidden), dim=-1)[0].numpy()  # (S, n_token)
        detail, generated = (_run_pure(model, purpose, memory, tokens, targets) for purpose in ("detail", "generate"))
        log_prob = model.step("score", memory, tokens, targets)["log_prob"][0]

        places = np.arange(stop - start)
        target_log_prob = wanted[places, targets[0]]
        yield SegmentDifference(
            segment=segment,
            tokens=stop - start,
            max_abs_log_prob_diff=_largest(
                log_prob - target_log_prob,
                detail["log_prob"][0] - target_log_prob,
            ),
            max_distribution_diff=_largest(
                _scaled(detail["top_log_probs"][0], np.take_along_axis(wanted, detail["top_ids"][0], axis=1)),
                _scaled(detail["entropy"][0], -(np.exp(wanted) * wanted).sum(axis=1)),
                _scaled(_log_softmax(generated["logits"][0]), wanted[-1]),
            ),
            mean_abs_log_prob_diff=float(np.abs(log_prob - target_log_prob).mean()),
            max_abs_memory_diff=_memory_difference(step, memory, eager_memory),
            top1_agreement=float((detail["top_ids"][0, :, 0] == wanted.argmax(axis=1)).mean()),
            eager_nats=-float(target_log_prob.sum(dtype=np.float64)),
            graph_nats=-float(log_prob.sum(dtype=np.float64)),
        )


def _run_pure(
    model: Model,
    purpose: str,
    memory: RingMemory,
    tokens: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[Any]]:
    """One step of another graph from the same memory, which stays as it is."""
    feeds = {"tokens": tokens, "targets": targets, **memory.feeds()}
    feeds |= {entry.input: memory.array(entry) for entry in memory.entries}
    feeds |= {name: value.numpy() for name, value in memory.constants.items()}
    return model.session(purpose).run(feeds)


def _memory_difference(step: Step, memory: RingMemory, eager_memory: list[torch.Tensor]) -> float:
    """Largest difference of any memory row that may be seen: the eager one projected, the ring unrolled by age."""
    import torch

    with torch.inference_mode():
        wanted = {name: rows[0].numpy() for name, rows in step.carried(eager_memory).items()}
    return _largest(*(memory.by_age(entry, 0) - wanted[entry.input] for entry in memory.entries))


def _report(found: list[SegmentDifference], evaluation: Evaluation, tolerance: Tolerance) -> ParityReport:
    tokens = sum(segment.tokens for segment in found)
    eager_nats = sum(segment.eager_nats for segment in found)
    graph_nats = sum(segment.graph_nats for segment in found)
    delta_bits = (graph_nats - eager_nats) / tokens / math.log(2)
    over = [
        segment.segment
        for segment in found
        if not (
            segment.max_abs_log_prob_diff <= tolerance.log_prob
            and segment.max_distribution_diff <= tolerance.log_prob
            and segment.max_abs_memory_diff <= tolerance.memory
        )
    ]
    return ParityReport(
        segments=len(found),
        tokens=tokens,
        max_abs_log_prob_diff=_largest(np.array([segment.max_abs_log_prob_diff for segment in found])),
        mean_abs_log_prob_diff=sum(segment.mean_abs_log_prob_diff * segment.tokens for segment in found) / tokens,
        max_abs_memory_diff=_largest(np.array([segment.max_abs_memory_diff for segment in found])),
        top1_agreement=sum(segment.top1_agreement * segment.tokens for segment in found) / tokens,
        delta_bits_per_token=delta_bits,
        max_distribution_diff=_largest(np.array([segment.max_distribution_diff for segment in found])),
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


def _largest(*differences: npt.NDArray[Any]) -> float:
    """Largest absolute value; NaN where any is NaN, so that it cannot pass for small."""
    return float(np.max([np.abs(difference).max(initial=0.0) for difference in differences]))


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
