"""The walk of a Reformer: graphs and eager model side by side, the eager model under the buckets the graphs chose.

A hash is not continuous. Where two directions are about as good, rounding decides which bucket a token is in, and
with it which keys it sees: one such flip changes scores visibly, without anything being wrong. So after every step the
eager model is given the graph's bucket ids; then log-probabilities and memories must agree as those of any other model.
Where the eager model alone would have chosen another bucket, both must have been about as good, which is judged by
itself. What flips do to the score of the text is measured by a walk of the eager model alone.

Under rule `band` a text is walked as documents of at most as many tokens as there are positions, with memory carried:
by the graphs for long segments whole, by those for a few tokens with a small memory, from its beginning until its rings
have wrapped, and with the full memory that a graph for long segments has filled. Under rule `chunk` nothing is carried,
and documents of several lengths are walked.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.comparison import (
    Expected,
    Ids,
    NamedRows,
    check_sizes,
    compare_detail,
    compare_generate,
    compare_score,
    expect,
    memory_difference,
    segments_to_wrap,
    trim,
    with_memory,
)
from xlexport.parity import TOLERANCES, LSHDifference, LSHTotals, SegmentDifference, largest
from xlexport.settings import as_converted
from xlexport.steps import project_memory
from xlruntime.model import Model
from xlruntime.spec import Evaluation

if TYPE_CHECKING:
    import torch

    from xltraining.reformer import LSHTrace, Reformer, ReformerMemory

__all__ = ["walk_reformer"]

OTHERS = 20  # segments that the detail graph walks
OTHERS_TOKENS = 8192  # or fewer segments, where they have so many tokens, but no fewer than wrap its rings
LARGEST_TABLE = 1 << 24  # numbers in a table of the detail graph
FEW_MEMORY = 256  # memory of the graphs for a few tokens, so that it fills and wraps in few steps
LONGEST_DOCUMENT = 2048  # under rule chunk, unless the user gives a length


@dataclass(frozen=True)
class _Span:
    """Consecutive tokens of a text."""

    start: int  # of the first one in the text
    position: int  # and in its document
    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)

    def parts(self, lengths: Iterable[int]) -> Iterator[_Span]:
        """The same tokens in parts of at most the given lengths, until either ends."""
        S, start = self.tokens.shape[1], 0
        for length in lengths:
            if start >= S:
                return
            stop = min(S, start + length)
            yield _span(
                self.start + start, self.position + start, self.tokens[0, start:stop], self.targets[0, start:stop]
            )
            start = stop


@dataclass(frozen=True)
class _Step:
    """One step of both."""

    outputs: dict[str, npt.NDArray[Any]]
    expected: Expected
    lsh: LSHDifference | None  # None: no layer has LSH attention
    memory: float  # largest difference of its new rows


class _Pair:
    """A graph and the eager model on one text, each with its own memory."""

    def __init__(self, model: Model, eager: Reformer, purpose: str, evaluation: Evaluation) -> None:
        self.model, self.purpose, self.evaluation = model, purpose, evaluation
        self.eager: Reformer = eager.with_evaluation(mem_len=evaluation.mem_len, n_hashes=evaluation.n_hashes)
        graph = model.bundle.graphs[purpose]
        capacity = None if graph.max_segment is None else evaluation.capacity(graph.max_segment)
        self.memory = model.new_memory(evaluation, capacity=capacity)
        self.eager_memory: ReformerMemory | None = None

    def fork(self, purpose: str) -> _Pair:
        """Another graph, on copies of these memories."""
        other = _Pair(self.model, self.eager, purpose, self.evaluation)
        other.memory = self.memory.take([0])
        other.eager_memory = self.eager_memory
        return other

    def step(self, span: _Span) -> _Step:
        """Walk the tokens of `span`; one at position 0 begins another document."""
        import torch

        if span.position == 0 and self.eager_memory is not None:
            self.memory.restart(0)
            self.eager_memory = None
        S = span.tokens.shape[1]
        # This very graph: `Model.step` would take that for few tokens wherever it can.
        feeds = {"tokens": span.tokens, "targets": span.targets, **self.memory.feeds()}
        outputs = self.model.session(self.purpose).step(feeds, self.memory)
        self.memory.advance(S)
        trace: list[LSHTrace] = []
        with torch.inference_mode():
            hidden, self.eager_memory = self.eager(
                torch.from_numpy(span.tokens), self.eager_memory, buckets=self._buckets(outputs, S), trace=trace
            )
        tolerance = TOLERANCES[self.model.bundle.precision].log_prob
        expected = expect(self.eager, hidden, span.tokens, span.targets, tolerance)
        lsh = _lsh_difference(trace, outputs.get("overflow")) if "lsh" in self.eager.config.attn_layers else None
        new_rows = 0.0 if self.evaluation.whole else memory_difference(self.memory, self._project(S))
        return _Step(outputs, expected, lsh, new_rows)

    def whole_memory(self) -> float:
        """Largest difference of all that the memories hold."""
        if self.evaluation.whole:
            return 0.0
        return memory_difference(self.memory, self._project(self.evaluation.capacity()))

    def _buckets(self, outputs: dict[str, npt.NDArray[Any]], S: int) -> list[torch.Tensor | None]:
        """The graph's bucket ids of the S tokens just walked: (1, H, R, S) for each LSH layer, None for others."""
        import torch

        buckets: list[torch.Tensor | None] = []
        entries = {entry.input: entry for entry in self.memory.entries}
        slots = (self.memory.offset - S + np.arange(S)) % self.memory.capacity
        for layer, kind in enumerate(self.eager.config.attn_layers):
            if kind != "lsh":
                buckets.append(None)
                continue
            if self.evaluation.whole:
                found = outputs[f"bucket_{layer}"]
            else:
                found = self.memory.array(entries[f"memory_bucket_{layer}"])[..., slots]
            rounds = found[:, :, : self.eager.config.n_hashes].astype(np.int64)
            buckets.append(torch.from_numpy(rounds))
        return buckets

    def _project(self, count: int) -> Iterator[NamedRows]:
        """The newest rows of the eager model's memory as the graph's memories should hold them."""
        import torch

        assert self.eager_memory is not None
        layers = [
            (
                rows[:, max(0, rows.shape[1] - count) :],
                None if ids is None else ids[..., max(0, ids.shape[3] - count) :],
            )
            for rows, ids in self.eager_memory.layers
        ]
        newest = dataclasses.replace(self.eager_memory, layers=layers)
        with torch.inference_mode():
            for name, rows in project_memory(self.model.bundle.architecture, self.eager, newest):
                yield name, rows[0].numpy()


def _lsh_difference(trace: Sequence[LSHTrace], overflow: npt.NDArray[Any] | None) -> LSHDifference:
    """What the eager model says of the buckets it was given, and of the graph's overflow (1, S, LSH layers)."""
    flips, margin = 0, 0.0
    for one in trace:
        flipped = one.own != one.buckets
        flips += int(flipped.sum())
        margin = largest(margin, one.margin[flipped].numpy())
    if overflow is None or not trace:
        return LSHDifference(flips, margin)
    wanted = np.stack([one.overflow.numpy() for one in trace], axis=2)
    return LSHDifference(flips, margin, wanted.sum(axis=(0, 1)).tolist(), int((overflow != wanted).sum()))


def walk_reformer(
    model: Model,
    build_eager: Callable[[], Reformer],
    ids: Ids,
    segments: int,
    evaluation: Evaluation,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> tuple[list[SegmentDifference], LSHTotals | None]:
    """Walk `ids` with every graph of `model`, and with the eager model beside each, up to `segments` segments.

    Returns:
        What differs in each segment (under rule `chunk` each document), and what is known of all together; None
        where no layer has LSH attention.

    Raises:
        ParityError: the trained model is of other sizes than the bundle.
    """
    eager = as_converted(build_eager(), model.bundle.config)
    check_sizes(model, eager)
    config = eager.config
    if evaluation.whole:
        longest = _longest_document(evaluation, model.bundle.evaluation)
        cuts = _documents(ids, longest, config.chunk_length)
    else:
        cuts = _segments(ids, evaluation.segment_len, evaluation.max_positions)
    spans = list(itertools.islice(cuts, segments))
    full = _first_with_full_memory(spans, evaluation)
    found: list[SegmentDifference] = []
    pair, filled = _Pair(model, eager, "score", evaluation), None
    for segment, span in enumerate(spans):
        if segment == full:
            filled = pair.fork("score")
        step = pair.step(span)
        one = compare_score(segment, step.expected, step.outputs["log_prob"][0])
        one = with_memory(dataclasses.replace(one, lsh=step.lsh), step.memory)
        if segment + 1 == len(spans) or spans[segment + 1].position == 0:
            one = with_memory(one, pair.whole_memory())
        found.append(one)
        if progress is not None:
            progress(one)
        trim()
    model.release("score")
    totals = None
    if "lsh" in config.attn_layers:
        flipped = any(one.lsh is not None and one.lsh.bucket_flips for one in found)
        effect = _unforced_nats(pair.eager, spans) - sum(one.eager_nats for one in found) if flipped else 0.0
        tokens = sum(one.tokens for one in found)
        totals = LSHTotals(config.n_head * pair.eager.config.n_hashes, effect / tokens / math.log(2))
    assert filled is not None
    for other, others_spans in _others(model, eager, spans, evaluation, filled):
        _compare_other(other, others_spans, spans, found)
        model.release(other.purpose)
        trim()
    return found, totals


def _others(
    model: Model, eager: Reformer, spans: Sequence[_Span], evaluation: Evaluation, filled: _Pair
) -> Iterator[tuple[_Pair, Iterator[_Span]]]:
    """The other graphs, and what each walks."""
    for purpose, graph in model.bundle.graphs.items():
        if purpose == "score":
            continue
        most = graph.max_segment
        if evaluation.whole:
            yield _Pair(model, eager, purpose, evaluation), iter(spans)
        elif most is None:
            n = max(segments_to_wrap(evaluation), min(OTHERS, OTHERS_TOKENS // evaluation.segment_len))
            parts = itertools.repeat(max(1, LARGEST_TABLE // model.bundle.vocab_size))
            yield _Pair(model, eager, purpose, evaluation), (part for span in spans[:n] for part in span.parts(parts))
        else:
            small = evaluation.with_options(mem_len=min(evaluation.mem_len, FEW_MEMORY))
            pair = _Pair(model, eager, purpose, small)
            last = spans[-1]
            ids = np.concatenate([*(span.tokens[0] for span in spans), last.targets[0, -1:]])
            documents = _segments(ids[: 2 * pair.memory.capacity + 1], len(ids), evaluation.max_positions)
            lengths = itertools.cycle((most, 1, most // 2 + 1))
            yield pair, (part for document in documents for part in document.parts(lengths))
            if evaluation.mem_len > small.mem_len:
                full = spans[_first_with_full_memory(spans, evaluation)]
                yield filled.fork(purpose), full.parts((most, 1))


def _compare_other(
    pair: _Pair, walked: Iterable[_Span], spans: Sequence[_Span], found: list[SegmentDifference]
) -> None:
    """Walk with another graph than `score`; what it differs by goes into `found`, of `spans`."""
    starts = [span.start for span in spans]
    for span in walked:
        step = pair.step(span)
        segment = bisect.bisect_right(starts, span.start) - 1
        one = with_memory(found[segment], step.memory)
        if one.lsh is not None and step.lsh is not None:
            one = dataclasses.replace(
                one, lsh=one.lsh + dataclasses.replace(step.lsh, overflow=None)
            )  # counted already
        if "log_prob" in step.outputs:
            difference = largest(one.max_abs_log_prob_diff, step.outputs["log_prob"][0] - step.expected.log_prob)
            one = dataclasses.replace(one, max_abs_log_prob_diff=difference)
        if "top_ids" in step.outputs:
            one = compare_detail(one, step.expected, step.outputs)
        if "logits" in step.outputs:
            one = compare_generate(one, step.expected, step.outputs)
        found[segment] = one
    found[segment] = with_memory(found[segment], pair.whole_memory())


def _unforced_nats(eager: Reformer, spans: Sequence[_Span]) -> float:
    """Of the whole text, where the eager model chooses its buckets itself."""
    import torch

    nats, memory = 0.0, None
    with torch.inference_mode():
        for span in spans:
            hidden, memory = eager(torch.from_numpy(span.tokens), memory if span.position else None)
            nats -= float(eager.log_probs(hidden, torch.from_numpy(span.targets)).sum(dtype=torch.float64))
    return nats


def _first_with_full_memory(spans: Sequence[_Span], evaluation: Evaluation) -> int:
    """The segment before which memory holds as much as it ever does, and the ring has wrapped, if that is so early."""
    wrapped = segments_to_wrap(evaluation) - 1

    def order(segment: int) -> tuple[int, int, int]:
        return min(spans[segment].position, evaluation.mem_len), min(segment, wrapped), -segment

    return max(range(len(spans)), key=order)


def _segments(ids: Ids, segment_len: int, max_positions: int | None) -> Iterator[_Span]:
    """Documents of as many tokens as there are positions, in segments; the last of each may be shorter."""
    last = len(ids) - 1
    longest = max_positions or last
    for first in range(0, last, longest):
        end = min(first + longest, last)
        for start in range(first, end, segment_len):
            stop = min(start + segment_len, end)
            yield _span(start, start - first, ids[start:stop], ids[start + 1 : stop + 1])


def _documents(ids: Ids, longest: int, chunk_length: int) -> Iterator[_Span]:
    """Documents of several lengths: the longest, one that no chunk length divides, and some around a chunk's."""
    wanted = (longest, longest - chunk_length // 2 - 1, chunk_length // 2, chunk_length, chunk_length + 1)
    lengths = itertools.cycle([length for length in wanted if 1 <= length <= longest])
    start = 0
    while start < len(ids) - 1:
        stop = min(start + next(lengths), len(ids) - 1)
        yield _span(start, 0, ids[start:stop], ids[start + 1 : stop + 1])
        start = stop


def _longest_document(evaluation: Evaluation, own: Evaluation) -> int:
    """Tokens of a document under rule chunk: of the length that was asked for, if one was."""
    longest = evaluation.longest_part or evaluation.segment_len
    return longest if evaluation.segment_len != own.segment_len else min(longest, LONGEST_DOCUMENT)


def _span(start: int, position: int, tokens: Ids, targets: Ids) -> _Span:
    return _Span(start, position, tokens[None], targets[None])
