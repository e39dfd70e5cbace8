"""Prove that a bundle computes what the trained model computes, over many segments of carried memory.

The eager model walks a text with its own memory, the paper's hidden states; the graphs walk it with their rings of
projected keys and values. Every segment compares the score graph's log-probabilities and its new rows in every memory
tensor; whole memories are compared at the beginning and at the end of every block of segments. The
detail and generate graphs walk the first segments too, each on its own, until their rings have wrapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ParityError
from xlexport.parity import TOLERANCES, ParityReport, SegmentDifference, largest, make_report
from xlexport.steps import project_memory
from xlruntime.memory import RingMemory
from xlruntime.model import Model
from xlruntime.spec import Evaluation

if TYPE_CHECKING:
    import torch

__all__ = ["segments_to_wrap", "verify"]

BEST = 64  # likeliest tokens that the eager model keeps of each position; the detail graph lists fewer
OTHERS = 20  # segments of the detail and generate graphs, or more where their rings need more to wrap
# Without these equal nothing can be compared.
SIZES = ("n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner")
LARGEST_TABLE = 1 << 22  # numbers in a table of log-probabilities
LARGEST_BLOCK = 1 << 28  # bytes of figures and memory rows that the eager model is ahead of the graphs

Ids = npt.NDArray[np.int64]
NamedRows = tuple[str, npt.NDArray[np.float32]]  # input of a memory, and (H, rows, d_head) of it, oldest first


def verify(
    model: Model,
    build_eager: Callable[[], Any],
    ids: npt.NDArray[np.int64],
    *,
    segments: int,
    evaluation: Evaluation | None = None,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> ParityReport:
    """Walk `ids` in both, up to `segments` segments.

    The eager model and the graphs take turns, block by block, so that their weights are not in memory together.

    Args:
        model: the open bundle; its sessions are closed on the way, and open again.
        build_eager: makes the trained model, in eval mode; called for each block of segments.
        ids: token ids of a real text.
        evaluation: segment and memory lengths; None is the bundle's own.
        progress: called after every segment.

    Raises:
        ParityError: `ids` are too few to compare anything, or the trained model is of other sizes than the bundle.
    """
    if len(ids) < 2:
        raise ParityError(f"the text has {len(ids)} tokens; at least 2 are needed to compare. Give a longer text.")
    evaluation = evaluation or model.bundle.evaluation
    for purpose in model.bundle.graphs:
        model.release(purpose)
    found: list[SegmentDifference] = []
    memory = model.new_memory(evaluation)
    eager_memory: list[torch.Tensor] | None = None
    ahead = list(_segments(ids, evaluation.segment_len, segments))
    n = _block_length(model, evaluation)
    for block in (ahead[start : start + n] for start in range(0, len(ahead), n)):
        eager = build_eager().with_evaluation(
            mem_len=evaluation.mem_len, clamp_len=evaluation.clamp_len, same_length=evaluation.same_length
        )
        if eager_memory is None:
            _check_sizes(model, eager)
            eager_memory = eager.first_memory(1)
            first = _memory_difference(memory, _project(model, eager, eager_memory))
        expected = []
        for tokens, targets in block:
            one, eager_memory = _expect(model, eager, eager_memory, tokens, targets)
            expected.append(one)
            if len(expected) % 4 == 0:  # what every segment frees adds up; giving it back each time would cost more
                _trim()
        # Where the block filled the memory, its rows are the memory; projected anew, they would be there twice.
        filled = sum(one.tokens.shape[1] for one in expected) >= evaluation.mem_len
        whole = _all_rows(expected, evaluation.mem_len) if filled else list(_project(model, eager, eager_memory))
        del eager
        gc.collect()  # what has read the checkpoint may hold itself, and the tensors with it
        _trim()
        walked: list[SegmentDifference] = []
        for one in expected:
            log_prob = model.step("score", memory, one.tokens, one.targets)["log_prob"][0]
            difference = _memory_difference(memory, one.rows.items())
            walked.append(_difference(len(found) + len(walked), one, log_prob, difference))
            if progress is not None:
                progress(walked[-1])
        model.release("score")
        _trim()
        walked[-1] = _with_memory(walked[-1], _memory_difference(memory, whole))
        if not found:
            walked[0] = _with_memory(walked[0], first)
            _walk_others(model, expected[: max(OTHERS, segments_to_wrap(evaluation))], walked, evaluation)
        found += walked
    return make_report(found, evaluation, TOLERANCES[model.bundle.precision])


def _check_sizes(model: Model, eager: Any) -> None:
    wrong = [
        f"{name} is {model.bundle.config[name]:,} in the bundle, {getattr(eager.config, name):,} in the trained model"
        for name in SIZES
        if model.bundle.config[name] != getattr(eager.config, name)
    ]
    if wrong:
        raise ParityError(f"{'; '.join(wrong)}. Give the checkpoint that the bundle was converted from.")


def _walk_others(
    model: Model, expected: list[_Expected], found: list[SegmentDifference], evaluation: Evaluation
) -> None:
    """The detail and generate graphs, each with a memory of its own; what they differ by goes into `found`."""
    for purpose, compare in (("detail", _compare_detail), ("generate", _compare_generate)):
        memory = model.new_memory(evaluation)
        for segment, one in enumerate(expected):
            for part, outputs in _step_in_parts(model, purpose, memory, one):
                found[segment] = compare(found[segment], part, outputs)
        last = len(expected) - 1
        found[last] = _with_memory(found[last], _memory_difference(memory, _all_rows(expected, evaluation.mem_len)))
        model.release(purpose)
        _trim()


def _trim() -> None:
    """Give freed memory to the system, which glibc does not do of itself."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _segments(ids: npt.NDArray[np.int64], segment_len: int, segments: int) -> Iterator[tuple[Ids, Ids]]:
    """Tokens and targets of each segment, (1, S); the last one may be shorter."""
    last = min(len(ids) - 1, segments * segment_len)
    for start in range(0, last, segment_len):
        stop = min(start + segment_len, last)
        yield ids[None, start:stop], ids[None, start + 1 : stop + 1]


def _block_length(model: Model, evaluation: Evaluation) -> int:
    """Segments that the eager model walks ahead: as many as memory allows, and no fewer than fill a ring."""
    row = sum(math.prod(axis for axis in entry.shape if isinstance(axis, int)) for entry in model.bundle.memory)
    kept = 4 * (evaluation.segment_len * (row + 3 * BEST) + model.bundle.vocab_size)  # bytes of an _Expected
    return max(segments_to_wrap(evaluation), LARGEST_BLOCK // kept)


def segments_to_wrap(evaluation: Evaluation, rounds: int = 1) -> int:
    """Segments that write the whole ring `rounds` times and begin another round."""
    return rounds * -(-evaluation.capacity() // evaluation.segment_len) + 1


@dataclass(frozen=True)
class _Expected:
    """What the eager model says of one segment."""

    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)
    log_prob: npt.NDArray[np.float32]  # (S,) of each target
    entropy: npt.NDArray[np.float32]  # (S,)
    best_ids: Ids  # (S, k), likeliest first
    best_log_probs: npt.NDArray[np.float32]  # (S, k)
    ranks: Ids  # (2, S) lowest and highest rank of each target that differences within tolerance can give
    last: npt.NDArray[np.float32] | None  # (n_token,) of every token, at the last position
    rows: Mapping[str, npt.NDArray[np.float32]]  # that the segment adds to each memory, (H, rows, d_head)

    def part(self, start: int, stop: int) -> _Expected:
        """Of some of the positions."""
        return _Expected(
            self.tokens[:, start:stop],
            self.targets[:, start:stop],
            self.log_prob[start:stop],
            self.entropy[start:stop],
            self.best_ids[start:stop],
            self.best_log_probs[start:stop],
            self.ranks[:, start:stop],
            self.last if stop == len(self.log_prob) else None,
            {},  # a segment may add fewer rows than it has tokens
        )


def _expect(
    model: Model, eager: Any, memory: list[torch.Tensor], tokens: Ids, targets: Ids
) -> tuple[_Expected, list[torch.Tensor]]:
    """One segment of the eager model, and its memory behind it.

    Log-probabilities are reduced a few positions at a time: all of a long segment may be more than the model itself.
    """
    import torch

    n_token = eager.config.n_token
    tolerance = TOLERANCES[model.bundle.precision].log_prob
    own, entropy, best_ids, best_log_probs, ranks = [], [], [], [], []
    with torch.inference_mode():
        hidden, memory = eager(torch.from_numpy(tokens), memory)
        S = hidden.shape[1]
        for places in torch.arange(S).split(max(1, LARGEST_TABLE // n_token)):
            log_probs = eager.all_log_probs(hidden[:, places])[0]  # (n, n_token)
            target = log_probs.gather(1, torch.from_numpy(targets)[0, places, None])  # (n, 1)
            own.append(target[:, 0])
            # The target may differ within tolerance, and so may the token that it is compared with.
            slack = 2 * tolerance * target.abs().clamp(min=1)
            better = [(log_probs > target + slack).sum(dim=1) + 1, (log_probs > target - slack).sum(dim=1)]
            ranks.append(torch.stack(better))
            entropy.append(-(log_probs.exp() * log_probs).sum(dim=1))
            best = log_probs.topk(min(BEST, n_token), dim=1)
            best_ids.append(best.indices)
            best_log_probs.append(best.values)
        newest = [rows[:, max(0, rows.shape[1] - S) :] for rows in memory]
    expected = _Expected(
        tokens,
        targets,
        torch.cat(own).numpy(),
        torch.cat(entropy).numpy(),
        torch.cat(best_ids).numpy(),
        torch.cat(best_log_probs).numpy(),
        torch.cat(ranks, dim=1).numpy(),
        log_probs[-1].numpy().copy(),
        dict(_project(model, eager, newest)),
    )
    return expected, memory


def _difference(
    segment: int, expected: _Expected, log_prob: npt.NDArray[np.float32], max_abs_memory_diff: float
) -> SegmentDifference:
    difference = log_prob - expected.log_prob
    return SegmentDifference(
        segment=segment,
        tokens=len(log_prob),
        max_abs_log_prob_diff=largest(difference),
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
    """With the detail graph's targets, their ranks, entropies and likeliest tokens."""
    ids, log_probs = outputs["top_ids"][0], outputs["top_log_probs"][0]  # (S, k)
    rank = outputs["rank"][0]  # (S,)
    # Each listed token against the eager model's figure for it. One that is not among its best has at most the last's.
    same = ids[:, :, None] == expected.best_ids[:, None, :]  # (S, k, BEST)
    place = np.where(same.any(axis=2), same.argmax(axis=2), expected.best_ids.shape[1] - 1)
    wanted = np.take_along_axis(expected.best_log_probs, place, axis=1)
    return dataclasses.replace(
        found,
        max_abs_log_prob_diff=largest(found.max_abs_log_prob_diff, outputs["log_prob"][0] - expected.log_prob),
        max_distribution_diff=largest(
            found.max_distribution_diff or 0.0,
            _scaled(log_probs, wanted),
            _scaled(log_probs, expected.best_log_probs[:, : log_probs.shape[1]]),  # none likelier was left out
            _scaled(outputs["entropy"][0], expected.entropy),
            # In places, so one place outside is far above any tolerance.
            np.maximum(0, np.maximum(expected.ranks[0] - rank, rank - expected.ranks[1])),
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
    return dataclasses.replace(found, max_distribution_diff=largest(found.max_distribution_diff, difference))


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


def _project(model: Model, eager: Any, memory: list[torch.Tensor]) -> Iterator[NamedRows]:
    """The eager model's memory as the rings should hold it, one by one: name and (H, M, d_head), oldest first."""
    import torch

    with torch.inference_mode():
        for name, rows in project_memory(model.bundle.architecture, eager, memory):
            yield name, rows[0].numpy()


def _all_rows(expected: list[_Expected], mem_len: int) -> Iterator[NamedRows]:
    """The last rows of consecutive segments in each memory, (H, M, d_head), oldest first."""
    for name in expected[0].rows:
        rows = np.concatenate([one.rows[name] for one in expected], axis=1)
        yield name, rows[:, max(0, rows.shape[1] - mem_len) :]


def _memory_difference(memory: RingMemory, rows: Iterable[NamedRows]) -> float:
    """Largest difference of what may be seen of the rings from `rows`, newest against newest; rows are not to lack."""
    entries = {entry.input: entry for entry in memory.entries}
    worst = []
    for name, wanted in rows:
        found = memory.by_age(entries.pop(name), 0)
        before = found.shape[1] - wanted.shape[1]
        worst.append(math.inf if before < 0 else largest(found[:, before:] - wanted))
    if entries:
        raise ParityError(f"memories that the trained model does not have: {', '.join(entries)}. Convert it again.")
    return largest(*worst)


def _with_memory(found: SegmentDifference, worst: float) -> SegmentDifference:
    return dataclasses.replace(found, max_abs_memory_diff=largest(found.max_abs_memory_diff, worst))


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
