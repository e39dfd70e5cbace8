"""The walk of a Reformer: graphs and eager model side by side; the eager model uses the buckets that the graphs chose.

A hash is not continuous. If two directions are almost equally large, rounding decides the bucket of a token, and the
bucket decides which keys the token sees. One such flip changes scores visibly although nothing is wrong. So after
every step the eager model gets the graph's bucket ids. Then log-probabilities and memories must agree as for any other
model. If the eager model alone would have chosen another bucket, a separate check requires that both were almost
equally good. A further walk of the eager model alone measures the effect of flips on the score of the text.

Under rule `band` a text is walked with carried memory, as documents of at most as many tokens as there are positions.
Graphs for long segments walk all of it. Graphs for a few tokens walk it twice: with a small memory from the beginning
until their rings have wrapped, and with the full memory that a graph for long segments has filled. Under the rules
`paper` and `chunk` no memory is carried, and documents of several lengths are walked.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlexport.architectures.base import Architecture
from xlexport.architectures.findings import LSHTotals, SegmentDifference
from xlexport.architectures.reformer.verify_step import Eager, Pair, Span, Step, span_of
from xlexport.verification.compare import (
    check_architecture,
    check_sizes,
    compare_other,
    compare_score,
    segments_to_wrap,
    trim,
    with_memory,
)
from xlexport.verification.exact import ExactModel
from xlexport.verification.expected import Ids
from xlexport.verification.tolerances import tolerance_of
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings

if TYPE_CHECKING:
    from xltraining.reformer import Reformer

__all__ = ["walk_reformer"]

OTHERS = 20  # segments that the detail graph walks
OTHERS_TOKENS = 8192  # or fewer segments, if they have this many tokens, but enough to wrap its rings
LARGEST_TABLE = 1 << 25  # numbers in a table of the detail graph
FEW_MEMORY = 256  # rows of memory of the graphs for a few tokens; small, so that it fills and wraps soon
LONGEST_WALKED = 2048  # tokens of a document that is read whole, unless the user gives a length


def walk_reformer(
    architecture: Architecture,
    model: Engine,
    build_eager: Callable[[], Reformer],
    ids: Ids,
    segments: int,
    evaluation: EvaluationSettings,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> tuple[list[SegmentDifference], LSHTotals | None]:
    """Walk `ids` with every graph and the eager model; see `GraphComparison`.

    If documents are read whole, each is a segment.
    """
    eager_model = build_eager()
    check_architecture(model, eager_model)
    trained: Reformer = architecture.as_converted(eager_model, model.bundle.config)
    check_sizes(model, trained)
    eager = Eager(architecture.under_evaluation(trained, evaluation), tolerance_of(model.bundle).log_prob)
    if evaluation.full_document:
        longest = _longest_document(evaluation, model.bundle.settings)
        cuts = _documents(ids, longest, trained.config.chunk_length)
    else:
        cuts = _segments(ids, evaluation.segment_len, evaluation.max_positions)
    spans = list(itertools.islice(cuts, segments))
    exact = ExactModel(architecture, model, eager.model)
    found, flips = _walk_long(model, eager, exact, spans, evaluation, progress)
    totals = None
    if "lsh" in trained.config.attn_layers:
        eager_nats = sum(one.eager_nats for one in found)
        effect = _unforced_nats(eager.model, spans) - eager_nats if flips else 0.0
        per_token = effect / sum(one.tokens for one in found) / math.log(2)
        totals = LSHTotals(trained.config.n_head * eager.model.config.n_hashes, per_token)
    if few := _few(model):
        _walk_few(architecture, model, trained, few, spans, found, evaluation)
    return found, totals


def _few(model: Engine) -> dict[str, int]:
    """Return the graphs that are made for few tokens, with the most tokens of one step."""
    return {
        purpose: graph.max_segment for purpose, graph in model.bundle.graphs.items() if graph.max_segment is not None
    }


def _walk_long(
    model: Engine,
    eager: Eager,
    exact: ExactModel,
    spans: Sequence[Span],
    evaluation: EvaluationSettings,
    progress: Callable[[SegmentDifference], None] | None,
) -> tuple[list[SegmentDifference], int]:
    """Walk all graphs that take segments of any length; return the differences and the bucket flips of `score`."""
    others = [
        Pair(model, eager, purpose, evaluation)
        for purpose in model.bundle.graphs
        if purpose not in ("score", *_few(model))
    ]
    n = len(spans) if evaluation.full_document else _segments_of_others(evaluation)
    parts = itertools.repeat(max(1, LARGEST_TABLE // model.bundle.vocab_size))
    full = _first_with_full_memory(spans, evaluation)
    pair = Pair(model, eager, "score", evaluation, exact)
    found: list[SegmentDifference] = []
    flips = 0
    for segment, span in enumerate(spans):
        ends = segment + 1 == len(spans) or spans[segment + 1].position == 0
        early = []
        if segment == full and evaluation.most_rows > FEW_MEMORY:
            for purpose, most in _few(model).items():  # each on a copy of the memory that the score graph has filled
                filled = pair.fork(purpose)
                early += [filled.step(part) for part in span.parts((most, 1))]
                model.release(purpose)
        step = pair.step(span)
        flips += step.lsh.bucket_flips if step.lsh is not None else 0
        one = compare_score(segment, step.expected, step.outputs["log_prob"][0])
        one = with_memory(dataclasses.replace(one, lsh=step.lsh), step.memory)
        if ends:
            one = with_memory(one, pair.whole_memory())
        for other in others if segment < n else ():
            for part in [span] if evaluation.full_document else span.parts(parts):
                one = _with_other(one, other.step(part))
            if ends or segment + 1 == n:
                one = with_memory(one, other.whole_memory())
        for early_step in early:
            one = _with_other(one, early_step)
        found.append(one)
        if progress is not None:
            progress(one)
        trim()
    for walked in (pair, *others):
        model.release(walked.purpose)
    return found, flips


def _walk_few(
    architecture: Architecture,
    model: Engine,
    trained: Reformer,
    few: Mapping[str, int],
    spans: Sequence[Span],
    found: list[SegmentDifference],
    evaluation: EvaluationSettings,
) -> None:
    """Walk the graphs for few tokens from the beginning, with a small memory; add their differences to `found`."""
    small = evaluation.changed(mem_len=min(evaluation.most_rows, FEW_MEMORY))
    eager = Eager(architecture.under_evaluation(trained, small), tolerance_of(model.bundle).log_prob)
    pairs = [Pair(model, eager, purpose, small) for purpose in few]
    ids = np.concatenate([*(span.tokens[0] for span in spans), spans[-1].targets[0, -1:]])
    ids = ids[: 2 * max(pair.memory.capacity for pair in pairs) + 1]  # twice round their rings
    most = min(few.values())
    starts = [span.start for span in spans]
    for document in _segments(ids, len(ids), evaluation.max_positions):
        for part in document.parts(itertools.cycle((most, 1, most // 2 + 1))):
            segment = bisect.bisect_right(starts, part.start) - 1
            for pair in pairs:
                found[segment] = _with_other(found[segment], pair.step(part))
        for pair in pairs:
            found[segment] = with_memory(found[segment], pair.whole_memory())
    for purpose in few:
        model.release(purpose)
    trim()


def _segments_of_others(evaluation: EvaluationSettings) -> int:
    """Return how many segments the detail graph walks."""
    return max(segments_to_wrap(evaluation), min(OTHERS, OTHERS_TOKENS // evaluation.segment_len))


def _with_other(found: SegmentDifference, step: Step) -> SegmentDifference:
    """Add the differences of a graph other than `score`."""
    found = with_memory(found, step.memory)
    if found.lsh is not None and step.lsh is not None:
        others = dataclasses.replace(step.lsh, overflow=None)  # already counted
        found = dataclasses.replace(found, lsh=found.lsh + others)
    return compare_other(found, step.expected, step.outputs)


def _unforced_nats(eager: Reformer, spans: Sequence[Span]) -> float:
    """Return the nats of the whole text if the eager model chooses its own buckets."""
    import torch

    nats, memory = 0.0, None
    with torch.inference_mode():
        for span in spans:
            hidden, memory = eager(torch.from_numpy(span.tokens), memory if span.position else None)
            nats -= float(eager.log_probs(hidden, torch.from_numpy(span.targets)).sum(dtype=torch.float64))
    return nats


def _first_with_full_memory(spans: Sequence[Span], evaluation: EvaluationSettings) -> int:
    """Return the earliest segment with the fullest memory before it, after the ring has wrapped if possible."""
    wrapped = segments_to_wrap(evaluation) - 1

    def order(segment: int) -> tuple[int, int, int]:
        return min(spans[segment].position, evaluation.most_rows), min(segment, wrapped), -segment

    return max(range(len(spans)), key=order)


def _segments(ids: Ids, segment_len: int, max_positions: int | None) -> Iterator[Span]:
    """Yield the segments of documents with as many tokens as there are positions; last segments may be shorter."""
    last = len(ids) - 1
    longest = max_positions or last
    for first in range(0, last, longest):
        end = min(first + longest, last)
        for start in range(first, end, segment_len):
            stop = min(start + segment_len, end)
            yield span_of(start, start - first, ids[start:stop], ids[start + 1 : stop + 1])


def _documents(ids: Ids, longest: int, chunk_length: int) -> Iterator[Span]:
    """Yield documents of several lengths: the longest, one that no chunk length divides, and some near one chunk."""
    wanted = (longest, longest - chunk_length // 2 - 1, chunk_length // 2, chunk_length, chunk_length + 1)
    lengths = itertools.cycle([length for length in wanted if 1 <= length <= longest])
    start = 0
    while start < len(ids) - 1:
        stop = min(start + next(lengths), len(ids) - 1)
        yield span_of(start, 0, ids[start:stop], ids[start + 1 : stop + 1])
        start = stop


def _longest_document(evaluation: EvaluationSettings, own: EvaluationSettings) -> int:
    """Return the length of a document that is read whole: the length that the user gave, if any."""
    longest = evaluation.longest_part or evaluation.segment_len
    return longest if evaluation.segment_len != own.segment_len else min(longest, LONGEST_WALKED)
