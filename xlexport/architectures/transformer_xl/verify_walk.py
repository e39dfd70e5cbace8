"""The walk of a Transformer-XL: in each block of segments first the eager model, then the graphs.

For every segment the walk compares the score graph's log-probabilities and its new rows in every memory tensor. It
compares whole memories at the beginning and at the end of every block. The other step graphs also walk the first
segments, one graph at a time, until their rings have wrapped. The eager model and the graphs take turns, so that their
weights are never in memory at the same time.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures.base import Architecture
from xlexport.architectures.findings import SegmentDifference
from xlexport.architectures.transformer_xl.step import project_memory
from xlexport.verification.common_walk import common_walk
from xlexport.verification.compare import (
    NamedRows,
    check_sizes,
    compare_other,
    compare_score,
    cut,
    memory_difference,
    segments_of_others,
    segments_to_wrap,
    trim,
    with_memory,
)
from xlexport.verification.exact import ExactModel
from xlexport.verification.expected import BEST, LARGEST_TABLE, Expected, Ids, expect
from xlexport.verification.tolerances import tolerance_of
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import Memory

if TYPE_CHECKING:
    import torch

__all__ = ["walk_transformer_xl"]

LARGEST_BLOCK = 1 << 28  # bytes of figures and memory rows that are kept while the eager model is ahead of the graphs


def walk_transformer_xl(
    architecture: Architecture,
    model: Engine,
    build_eager: Callable[[], Any],
    ids: Ids,
    segments: int,
    evaluation: EvaluationSettings,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> tuple[list[SegmentDifference], None]:
    """Walk `ids` in both, up to `segments` segments; see `GraphComparison`.

    `build_eager` is called for each block of segments.

    A model with absolute places takes the common walk, which begins again after each part of the document.
    """
    if evaluation.max_positions is not None:
        found, _ = common_walk(architecture, model, build_eager, ids, segments, evaluation, progress)
        return found, None
    found = []
    memory = model.new_memory(evaluation)
    eager_memory: list[torch.Tensor] | None = None
    exact_memory: list[torch.Tensor] | None = None
    cuts = list(cut(ids[: segments * evaluation.segment_len + 1], evaluation.segment_len))
    n = _block_length(model, evaluation)
    for block in (cuts[start : start + n] for start in range(0, len(cuts), n)):
        eager = build_eager()
        check_sizes(model, eager)
        eager = architecture.under_evaluation(eager, evaluation)
        if eager_memory is None:
            eager_memory = eager.first_memory(1)
            first = memory_difference(memory, _project(eager, eager_memory))
        ahead: list[_Segment] = []
        for tokens, targets in block:
            one, eager_memory = _walk_eager(model, eager, eager_memory, tokens, targets)
            ahead.append(one)
            if len(ahead) % 4 == 0:  # freed memory adds up; returning it after every segment would be slower
                trim()
        # If the block filled the memory, its rows are the memory, so projecting them again would only double them.
        filled = sum(one.expected.tokens.shape[1] for one in ahead) >= evaluation.most_rows
        whole = _all_rows(ahead, evaluation.most_rows) if filled else list(_project(eager, eager_memory))
        exact = ExactModel(architecture, model, eager, exact_memory)
        del eager
        ahead = [dataclasses.replace(one, expected=exact.beside(one.expected)) for one in ahead]
        exact_memory = exact.memory
        del exact
        gc.collect()  # the checkpoint's reader may be in a reference cycle that keeps the tensors
        trim()
        walked: list[SegmentDifference] = []
        for one in ahead:
            log_prob = model.step("score", memory, one.expected.tokens, one.expected.targets)["log_prob"][0]
            difference = compare_score(len(found) + len(walked), one.expected, log_prob)
            walked.append(with_memory(difference, memory_difference(memory, one.rows.items())))
            if progress is not None:
                progress(walked[-1])
        model.release("score")
        trim()
        walked[-1] = with_memory(walked[-1], memory_difference(memory, whole))
        if not found:
            walked[0] = with_memory(walked[0], first)
            _walk_others(model, ahead[: segments_of_others(evaluation)], walked, evaluation)
        found += walked
    return found, None


def _walk_others(
    model: Engine, ahead: list[_Segment], found: list[SegmentDifference], evaluation: EvaluationSettings
) -> None:
    """Walk the other graphs, each with its own memory; add their differences to `found`."""
    for purpose in ("detail", "generate", "score_fixed", "generate_fixed"):
        if purpose not in model.bundle.graphs:
            continue
        memory = model.new_memory(evaluation)
        for segment, one in enumerate(ahead):
            for part, outputs in _step_in_parts(model, purpose, memory, one.expected):
                found[segment] = compare_other(found[segment], part, outputs)
        last = len(ahead) - 1
        found[last] = with_memory(found[last], memory_difference(memory, _all_rows(ahead, evaluation.most_rows)))
        model.release(purpose)
        trim()


def _block_length(model: Engine, evaluation: EvaluationSettings) -> int:
    """Return how many segments the eager model walks ahead: as many as memory allows, and enough to fill a ring."""
    row = sum(math.prod(axis for axis in entry.shape if isinstance(axis, int)) for entry in model.bundle.memory)
    kept = 4 * (evaluation.segment_len * (row + 3 * BEST) + model.bundle.vocab_size)  # bytes of a _Segment
    return max(segments_to_wrap(evaluation), LARGEST_BLOCK // kept)


@dataclass(frozen=True)
class _Segment:
    """The eager model's results for one segment."""

    expected: Expected
    rows: Mapping[str, npt.NDArray[np.float32]]  # (H, rows, d_head) added to each memory; rows <= S


def _walk_eager(
    model: Engine, eager: Any, memory: list[torch.Tensor], tokens: Ids, targets: Ids
) -> tuple[_Segment, list[torch.Tensor]]:
    """Run the eager model on one segment; return its results, and the memory after it."""
    import torch

    with torch.inference_mode():
        hidden, memory = eager(torch.from_numpy(tokens), memory)
        newest = [rows[:, max(0, rows.shape[1] - tokens.shape[1]) :] for rows in memory]
    expected = expect(eager, hidden, tokens, targets, tolerance_of(model.bundle).log_prob)
    return _Segment(expected, dict(_project(eager, newest))), memory


def _step_in_parts(
    model: Engine, purpose: str, memory: Memory, expected: Expected
) -> Iterator[tuple[Expected, dict[str, npt.NDArray[Any]]]]:
    """Run a segment in steps of few tokens, because its tables could be larger than the model; yield each part.

    The memory's length grows within the segment instead of stopping at mem_len, so every query reaches as far back as
    in one step. The ring has room for this: no row that is still needed is overwritten before the segment ends.

    Yields:
        The eager model's results for the part, and the graph's outputs.
    """
    S = expected.tokens.shape[1]
    length = memory.memory_length.copy()
    n = max(1, LARGEST_TABLE // model.bundle.vocab_size)
    for start in range(0, S, n):
        part = expected.part(start, min(start + n, S))
        memory.memory_length = length + start
        yield part, model.step(purpose, memory, part.tokens, part.targets)
    memory.memory_length = np.minimum(length + S, memory.evaluation.most_rows)


def _project(eager: Any, memory: list[torch.Tensor]) -> Iterator[NamedRows]:
    """Yield the eager model's memory in the form of the rings: name and (H, M, d_head), oldest first."""
    import torch

    with torch.inference_mode():
        for name, rows in project_memory(eager, memory):
            yield name, rows[0].numpy()


def _all_rows(segments: list[_Segment], mem_len: int) -> Iterator[NamedRows]:
    """Yield the last rows of consecutive segments for each memory, (H, M, d_head), oldest first."""
    for name in segments[0].rows:
        rows = np.concatenate([one.rows[name] for one in segments], axis=1)
        yield name, rows[:, max(0, rows.shape[1] - mem_len) :]
