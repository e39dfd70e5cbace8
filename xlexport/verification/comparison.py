"""The walk through a text: graphs and eager model read it segment by segment, and are compared after each.

The score graph reads the whole text. The others read its beginning, until their rings have wrapped. After every segment
the results and the new rows of all memories are compared, at the end of every document the whole memories.

The eager model reads a block of segments ahead of the graphs, which then read it one after the other. So the weights of
graphs and eager model are never in memory at the same time. There are two reasons to run them side by side instead:

* A hash is not continuous. If two directions are almost equally large, rounding decides the bucket of a token, and the
  bucket decides which keys the token sees. One such flip changes scores visibly although nothing is wrong. So the eager
  model takes the buckets that the graph chose (`Architecture.buckets`), and results must agree as for any other model.
  A separate check requires that the eager model's own choice was almost as good. Reading the text once more without the
  graph's buckets measures the effect of flips on the score.
* Graphs for a few tokens read the text in their own steps: with a small memory from the beginning, until their rings
  have wrapped, and one segment with the full memory that the score graph has filled.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import dataclasses
import functools
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.peak_memory import phase
from xlexport.verification.differences import (
    ROW_LAYOUTS,
    LSHDifference,
    LSHTotals,
    SegmentDifference,
    compare_hashing,
    compare_other,
    compare_score,
    largest,
    memory_difference,
    rounding_errors,
)
from xlexport.verification.eager import BEST, LARGEST_TABLE, Answer, Eager, NamedRows
from xlexport.verification.spans import Ids, Span, segments_of, segments_to_wrap
from xlruntime.bundle import OUTPUTS
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import Memory
from xlruntime.translator import Translator

if TYPE_CHECKING:
    from xlexport.families import Architecture

__all__ = ["Comparison"]

LARGEST_BLOCK = 1 << 28  # bytes of results and memory rows that are kept while the eager model is ahead of the graphs
OTHERS = 20  # segments that graphs other than `score` read
FOREIGN = 2  # segments that graphs for other devices read
OTHERS_TOKENS = 8192  # or fewer segments, if they have this many tokens, but enough to wrap the rings
FEW_MEMORY = 256  # rows of memory of the graphs for a few tokens; small, so that it fills and wraps soon


class Comparison:
    """The graphs of a bundle and the eager model on one text.

    Args:
        build_eager: returns the trained model in eval mode; called for each block of segments.
        spans: the steps of the text, from `cut_text`.
        exactly: whether the model in float64 reads it too, if there is one.
        own: as in `Eager`.

    Raises:
        ParityError: the trained model and the bundle differ in architecture or sizes.
    """

    def __init__(
        self,
        architecture: Architecture,
        model: Engine,
        build_eager: Callable[[], Any],
        spans: list[Span],
        evaluation: EvaluationSettings,
        exactly: bool = False,
        own: float = 0.0,
    ) -> None:
        self.model, self.evaluation, self.exactly = model, evaluation, exactly
        self.open_eager = lambda: Eager(architecture, model, build_eager(), evaluation, own)
        graphs = model.bundle.graphs
        self.few = {name: most for name in graphs if (most := model.bundle.max_segment(name)) is not None}
        self.eager = self.open_eager() if self.few or architecture.gives_buckets else None  # None: it reads ahead
        exact = None if self.eager is None or not exactly else self.eager.in_float64()
        score = model.main_graph("score")
        self.score = _GraphReader(model, score, evaluation, self.eager, exact)
        self.chosen = {choice.graph for choices in model.steps.values() for choice in choices}  # what can run here
        # Graphs for kernels that are not here have the bodies of others. Of those for other devices, one scores.
        foreign = {choice.graph for choice in model.bundle.steps["score"] if not choice.kernels}
        self.others = [
            _GraphReader(model, name, evaluation, self.eager)
            for name, graph in graphs.items()
            if name in self.chosen | foreign
            and name not in (score, *self.few)
            and graph.outputs.keys() & {"log_prob", "logits"}
        ]
        self.spans = spans
        self.n_others = len(self.spans)  # spans that the other graphs read
        if not evaluation.full_document and self.spans[0].source is None:
            least = min(OTHERS, OTHERS_TOKENS // evaluation.segment_len)
            self.n_others = min(self.n_others, max(least, segments_to_wrap(evaluation)))
        self.n_block = 1 if self.eager is not None else _block_length(model, evaluation)
        self.differences: list[SegmentDifference] = []
        self.flips = 0  # of buckets, in the score graph
        self.ranges: dict[str, float] = {}  # the largest absolute value of each state after a span
        self._memories: list[Any] = [None, None]  # of the eager model that reads ahead, in float32 and float64

    def run(
        self, progress: Callable[[], None], is_hopeless: Callable[[list[SegmentDifference]], bool] | None = None
    ) -> tuple[list[SegmentDifference], LSHTotals | None]:
        """Compare on the whole text; call `progress` after every segment.

        Args:
            is_hopeless: asked after the score graph's first segment, and then after every block; if it returns true,
                the rest is not read. None: the whole text is read in any case.

        Returns:
            The differences of each segment, and the totals of LSH attention (None without LSH attention).
        """
        starts = [0, *range(0 if is_hopeless is None else 1, len(self.spans), self.n_block)]
        with _quick_collections() if self.eager is None else contextlib.nullcontext():
            for block in itertools.starmap(range, itertools.pairwise(sorted({*starts, len(self.spans)}))):
                answers = self._read_ahead(block) if self.eager is None else {}
                with phase("graphs"):
                    self._compare(block, answers, progress)
                if is_hopeless is not None and is_hopeless(self.differences):
                    break
            else:
                if self.few:
                    self._compare_few_with_small_memory()
        for purpose in self.model.bundle.graphs:
            self.model.release(purpose)
        return self.differences, self._totals()

    def _compare(self, block: range, answers: Mapping[int, Answer], progress: Callable[[], None]) -> None:
        """Run the graphs on a block of spans, one graph after the other."""
        for number in block:
            self._compare_score(number, answers.get(number))
            if self.spans[number].source is None or self.spans[number].ends:
                progress()
        self._close(self.score)
        for reader in self.others:
            most = self.n_others if reader.purpose in self.chosen else min(FOREIGN, self.n_others)
            for number in block[: max(0, most - block.start)]:
                step = reader.step(self.spans[number], self._is_whole(number), answers.get(number))
                self._add(number, step, counts=reader.purpose in OUTPUTS)
            self._close(reader)
            if block.stop >= most:
                reader.forget()

    def _read_ahead(self, block: range) -> dict[int, Answer]:
        """Return the eager model's answers for a block of spans; afterwards no model is in memory.

        The model in float64, which is twice as large, reads first and alone.
        """
        exact: dict[int, Answer] = {}
        if self.exactly:
            with phase("float64"):
                exact = self._read(block, lambda: self.open_eager().in_float64(), None)
        with phase("float32 model"):
            return self._read(block, self.open_eager, exact)

    def _read(
        self, block: range, build: Callable[[], Eager | None], exact: Mapping[int, Answer] | None
    ) -> dict[int, Answer]:
        """Return the answers of one model; those in float64, and None for `exact`, or the others with them."""
        answers: dict[int, Answer] = {}
        if (eager := build()) is None:
            return answers
        for number in block:
            memory, span = self._memories[exact is None], self.spans[number]
            whole = self._is_whole(number) or number == block[-1]
            if exact is None:
                answers[number], memory = eager.read_exactly(span, memory, keeps=whole)
            else:
                answers[number], memory = eager.read(span, memory, whole, exact=exact.get(number))
            self._memories[exact is None] = memory
            _trim()  # freed memory adds up
        del eager
        gc.collect()  # the checkpoint's reader may be in a reference cycle that keeps the tensors
        _trim()
        return answers

    def _is_whole(self, number: int) -> bool:
        """Return whether whole memories are compared after a span."""
        return self.spans[number].ends or number + 1 == self.n_others

    def _compare_score(self, number: int, answer: Answer | None) -> None:
        """Run the score graph on a span, and begin its differences."""
        span = self.spans[number]
        early = self._few_with_full_memory(span) if number == self._first_with_full_memory else []
        step = self.score.step(span, self._is_whole(number), answer)
        _, _, outputs = step.parts[0]
        expected = step.answer.expected
        log_prob = outputs["log_prob"][0]
        rounding = rounding_errors(log_prob, step.answer, self.model.bundle.memory)
        segment = compare_score(number, expected.log_prob, log_prob, rounding)
        self.differences.append(dataclasses.replace(segment, max_abs_memory_diff=step.memory, lsh=step.lsh))
        self.flips += 0 if step.lsh is None else step.lsh.bucket_flips
        assert self.score.memory is not None
        for entry in self.score.memory.entries:
            if entry.layout == "state" and entry.dtype.startswith("float"):
                reached = largest(self.score.memory.array(entry), self.ranges.get(entry.input, 0.0))
                self.ranges[entry.input] = reached
        for other in early:
            self._add(number, other)
        if self.eager is not None:
            _trim()

    def _add(self, number: int, step: _Step, counts: bool = True) -> None:
        """Add the differences of a graph other than `score` to those of a span.

        Args:
            counts: whether best tokens are counted; variants of a graph only give differences.
        """
        segment = self.differences[number]
        agreement = segment.top1_agreement
        worst = largest(segment.max_abs_memory_diff or 0.0, step.memory)
        segment = dataclasses.replace(segment, max_abs_memory_diff=worst)
        if segment.lsh is not None and step.lsh is not None:
            other = dataclasses.replace(step.lsh, overflow=None)  # already counted
            segment = dataclasses.replace(segment, lsh=segment.lsh + other)
        for start, stop, outputs in step.parts:
            segment = compare_other(segment, step.answer.expected.part(start, stop), outputs)
        self.differences[number] = segment if counts else dataclasses.replace(segment, top1_agreement=agreement)

    def _close(self, reader: _GraphReader) -> None:
        """Close a graph after its block, unless the eager model is in memory anyway."""
        if self.eager is None:
            self.model.release(reader.purpose)
            _trim()

    @functools.cached_property
    def _first_with_full_memory(self) -> int | None:
        """The earliest span with the fullest memory before it, after the ring has wrapped if possible.

        None if no graph is for a few tokens, or if these graphs fill the whole memory from the beginning.
        """
        if not self.few or self.evaluation.most_rows <= FEW_MEMORY:
            return None
        wrapped = segments_to_wrap(self.evaluation) - 1

        def order(number: int) -> tuple[int, int, int]:
            rows = min(self.spans[number].position, self.evaluation.most_rows)
            return rows, min(number, wrapped), -number

        return max(range(len(self.spans)), key=order)

    def _few_with_full_memory(self, span: Span) -> list[_Step]:
        """Run the graphs for a few tokens on copies of the memory that the score graph has filled."""
        steps: list[_Step] = []
        for purpose, most in self.few.items():
            reader = self.score.fork(purpose)
            steps += [reader.step(part) for part in span.parts((most, 1))]
            self.model.release(purpose)
        return steps

    def _compare_few_with_small_memory(self) -> None:
        """Run the graphs for a few tokens from the beginning, twice round the rings of a small memory."""
        assert self.eager is not None
        settings = self.evaluation
        if "mem_len" in settings.values:
            settings = settings.changed(mem_len=min(settings.most_rows, FEW_MEMORY))
        eager = self.eager.under(settings)
        readers = [_GraphReader(self.model, purpose, settings, eager) for purpose in self.few]
        ids = np.concatenate([*(span.tokens[0] for span in self.spans), self.spans[-1].targets[0, -1:]])
        ids = ids[: 2 * max(map(settings.capacity, self.few.values())) + 1]
        most = min(self.few.values())
        starts = [span.start for span in self.spans]
        for document in segments_of(ids, len(ids), settings.max_positions):
            for part in document.parts(itertools.cycle((most, 1, most // 2 + 1))):
                number = bisect.bisect_right(starts, part.start) - 1
                for reader in readers:
                    self._add(number, reader.step(part, part.ends))

    def _totals(self) -> LSHTotals | None:
        """Return the totals of LSH attention, for which the eager model reads the text again with its own buckets."""
        if self.eager is None or self.differences[-1].lsh is None:
            return None
        config, bits_per_token = self.eager.model.config, 0.0
        if self.flips:
            effect = self.eager.nats(self.spans) - sum(segment.eager_nats for segment in self.differences)
            bits_per_token = effect / sum(segment.tokens for segment in self.differences) / math.log(2)
        return LSHTotals(config.n_head * config.n_hashes, bits_per_token)


@dataclass(frozen=True)
class _Step:
    """The results of a graph and of the eager model for one span.

    Attributes:
        parts: first and last place of each part in which the graph read the span, and its outputs.
        memory: largest difference of the memories.
        lsh: None if no layer has LSH attention.
    """

    answer: Answer
    parts: list[tuple[int, int, dict[str, npt.NDArray[Any]]]]
    memory: float
    lsh: LSHDifference | None


class _GraphReader:
    """One graph that reads a text with carried memory.

    Args:
        eager: the eager model that runs side by side, with a memory of its own for this graph; None: it reads ahead.
        exact: its float64 copy, for the graph whose rounding is judged.
    """

    def __init__(
        self,
        model: Engine,
        purpose: str,
        evaluation: EvaluationSettings,
        eager: Eager | None,
        exact: Eager | None = None,
    ) -> None:
        self.model, self.purpose, self.evaluation = model, purpose, evaluation
        self.eager, self.exact = eager, exact
        self.memory: Memory | None = None  # from the first document on
        self.eager_memory: Any = None
        self.exact_memory: Any = None

    def forget(self) -> None:
        """Release the memories."""
        self.memory = self.eager_memory = self.exact_memory = None

    def fork(self, purpose: str) -> _GraphReader:
        """Return a reader with another graph, on copies of these memories."""
        other = _GraphReader(self.model, purpose, self.evaluation, self.eager)
        other.memory = None if self.memory is None else self.memory.take([0])
        other.eager_memory = self.eager_memory
        return other

    def step(self, span: Span, whole: bool = False, answer: Answer | None = None) -> _Step:
        """Run the graph on a span, and compare its memory with the eager model's.

        Args:
            whole: whether to compare whole memories, not only the newest rows.
            answer: the eager model's results, if it has read ahead.
        """
        worst, memory = 0.0, self.memory
        if memory is None or span.position == 0:
            self.memory = memory = self._begin(span)
            worst = memory_difference(memory, self._first_rows(answer))
        parts = list(self._run(span, memory))
        if answer is None:
            answer = self._ask(span, memory, whole, parts[-1][2])
        overflow = [outputs["overflow"] for _, _, outputs in parts if "overflow" in outputs]
        lsh = compare_hashing(answer.trace, np.concatenate(overflow, axis=1) if overflow else None)
        worst = largest(worst, memory_difference(memory, answer.rows))
        if answer.memory is not None:
            worst = largest(worst, memory_difference(memory, answer.memory))
        return _Step(answer, parts, worst, lsh)

    def _begin(self, span: Span) -> Memory:
        """Return the memory with which a document begins."""
        if span.source is not None:
            assert isinstance(self.model, Translator)
            return self.model.new_targets([span.source])
        if self.memory is not None:
            for row in range(self.memory.batch_size):
                self.memory.restart(row)
            return self.memory
        most = self.model.bundle.max_segment(self.purpose)
        capacity = None if most is None else self.evaluation.capacity(most)
        return self.model.new_memory(self.evaluation, self.model.bundle.fixed.get("batch", 1), capacity)

    def _first_rows(self, answer: Answer | None) -> list[NamedRows]:
        """Return the rows of the eager model's memory with which a document begins."""
        if answer is not None:
            return answer.first_rows
        assert self.eager is not None
        return self.eager.first_rows()

    def _run(self, span: Span, memory: Memory) -> Iterator[tuple[int, int, dict[str, npt.NDArray[Any]]]]:
        """Run a span in steps of few tokens, because the graph's tables could be larger than the model.

        The memory's length grows within the span instead of stopping at the most rows, so every query reaches as far
        back as in one step. The ring has room for this: it overwrites no row that the span still needs.

        Yields:
            First and last place of each part, and the graph's outputs.
        """
        S = size = span.tokens.shape[1]
        if self.purpose != self.model.main_graph("score") and not self.evaluation.full_document:
            size = max(1, LARGEST_TABLE // self.model.bundle.vocab_size)
        length = memory.memory_length.copy()
        for start in range(0, S, size):
            stop = min(S, start + size)
            if start > 0:
                memory.memory_length = length + start
            yield start, stop, self._outputs(memory, span.tokens[:, start:stop], span.targets[:, start:stop])
        if size < S:
            memory.memory_length = np.minimum(length + S, self.evaluation.most_rows)

    def _outputs(self, memory: Memory, tokens: Ids, targets: Ids) -> dict[str, npt.NDArray[Any]]:
        S = tokens.shape[1]
        if self.model.graph_for(self.purpose, S) == self.purpose or self.model.bundle.fixed:
            tokens, targets = (ids.repeat(memory.batch_size, axis=0) for ids in (tokens, targets))  # rows read the same
            outputs = self.model.step(self.purpose, memory, tokens, targets)
            return {name: array[:1] for name, array in outputs.items()}
        # `Model.step` would prefer the graph for a few tokens.
        session = self.model.session(self.purpose)
        outputs = session.step(memory.feeds(session.graph, {"tokens": tokens, "targets": targets}), memory)
        memory.advance(S)
        return outputs

    def _ask(self, span: Span, memory: Memory, whole: bool, outputs: Mapping[str, npt.NDArray[Any]]) -> Answer:
        """Run the eager model with the buckets that the graph chose."""
        assert self.eager is not None
        architecture, S = self.eager.architecture, span.tokens.shape[1]
        buckets = architecture.buckets(self.eager.model, memory, outputs, S)
        exact = None
        if self.exact is not None:
            exact, self.exact_memory = self.exact.read_exactly(span, self.exact_memory, buckets)
        answer, self.eager_memory = self.eager.read(span, self.eager_memory, whole, buckets, exact)
        return answer


def _block_length(model: Engine, evaluation: EvaluationSettings) -> int:
    """Return how many segments the eager model reads ahead: as many as memory allows, and enough to fill a ring."""
    row = state = 0
    for entry in model.bundle.memory:
        numbers = math.prod(axis for axis in entry.shape if isinstance(axis, int))
        row, state = (row + numbers, state) if entry.layout in ROW_LAYOUTS else (row, state + numbers)
    S, V = evaluation.segment_len, model.bundle.vocab_size
    kept = 4 * (S * row + state) + 12 * (S * 2 * BEST + V)  # bytes of both answers; memories only of one
    return max(segments_to_wrap(evaluation), LARGEST_BLOCK // kept)


@contextlib.contextmanager
def _quick_collections() -> Iterator[None]:
    """Release what earlier work has left; collections within look at newer objects alone, and so take no time."""
    gc.collect()
    _trim()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _trim() -> None:
    """Return freed memory to the system, which glibc does not do by itself."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
