"""One step of a Reformer's graph next to the eager model, which uses the buckets that the graph chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures.findings import LSHDifference, largest
from xlexport.architectures.reformer.step import project_memory
from xlexport.verification.compare import NamedRows, memory_difference
from xlexport.verification.exact import ExactModel
from xlexport.verification.expected import Expected, Ids, expect
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings

if TYPE_CHECKING:
    import torch

    from xltraining.reformer import LSHTrace, Reformer, ReformerMemory

__all__ = ["Eager", "Pair", "Span", "Step", "span_of"]


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a text."""

    start: int  # place of the first token in the text
    position: int  # place of the first token in its document
    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)

    def parts(self, lengths: Iterable[int]) -> Iterator[Span]:
        """Yield the same tokens in parts of at most the given lengths, until tokens or lengths end."""
        S, start = self.tokens.shape[1], 0
        for length in lengths:
            if start >= S:
                return
            stop = min(S, start + length)
            yield span_of(
                self.start + start, self.position + start, self.tokens[0, start:stop], self.targets[0, start:stop]
            )
            start = stop


def span_of(start: int, position: int, tokens: Ids, targets: Ids) -> Span:
    """Return the span of tokens and targets (S,)."""
    return Span(start, position, tokens[None], targets[None])


@dataclass(frozen=True)
class Step:
    """The results of one step of graph and eager model."""

    outputs: dict[str, npt.NDArray[Any]]
    expected: Expected
    lsh: LSHDifference | None  # None: no layer has LSH attention
    memory: float  # largest difference of the step's new memory rows


@dataclass(frozen=True)
class _Answer:
    """The eager model's results for a span of tokens."""

    expected: Expected
    memory: ReformerMemory
    trace: list[LSHTrace]


class Eager:
    """The eager model with a cache of its last answer, which the next graph on the same text reuses."""

    def __init__(self, model: Reformer, tolerance: float) -> None:
        self.model, self.tolerance = model, tolerance
        self._asked: tuple[Span, ReformerMemory | None, list[torch.Tensor | None]] | None = None
        self._answer: _Answer | None = None

    def walk(self, span: Span, memory: ReformerMemory | None, buckets: list[torch.Tensor | None]) -> _Answer:
        """Run the tokens of `span` after `memory`, with the given buckets."""
        import torch

        if self._answer is None or not self._is_asked_again(span, memory, buckets):
            trace: list[LSHTrace] = []
            with torch.inference_mode():
                hidden, after = self.model(torch.from_numpy(span.tokens), memory, buckets=buckets, trace=trace)
            expected = expect(self.model, hidden, span.tokens, span.targets, self.tolerance)
            self._asked, self._answer = (span, memory, buckets), _Answer(expected, after, trace)
        return self._answer

    def _is_asked_again(self, span: Span, memory: ReformerMemory | None, buckets: list[torch.Tensor | None]) -> bool:
        assert self._asked is not None
        asked_span, asked_memory, asked_buckets = self._asked
        return (
            memory is asked_memory
            and (span.start, span.tokens.shape) == (asked_span.start, asked_span.tokens.shape)
            and all(
                one is None or (other is not None and bool((one == other).all()))
                for one, other in zip(buckets, asked_buckets, strict=True)
            )
        )


class Pair:
    """A graph and the eager model on one text, each with its own memory."""

    def __init__(
        self,
        model: Engine,
        eager: Eager,
        purpose: str,
        evaluation: EvaluationSettings,
        exact: ExactModel | None = None,
    ) -> None:
        self.model, self.eager, self.purpose, self.evaluation = model, eager, purpose, evaluation
        self.exact = exact
        most = model.bundle.graphs[purpose].max_segment
        self.memory = model.new_memory(evaluation, capacity=None if most is None else evaluation.capacity(most))
        self.eager_memory: ReformerMemory | None = None

    def fork(self, purpose: str) -> Pair:
        """Return a pair with another graph, on copies of these memories."""
        other = Pair(self.model, self.eager, purpose, self.evaluation)
        other.memory = self.memory.take([0])
        other.eager_memory = self.eager_memory
        return other

    def step(self, span: Span) -> Step:
        """Run graph and eager model on `span`; position 0 begins a new document."""
        if span.position == 0 and self.eager_memory is not None:
            self.memory.restart(0)
            self.eager_memory = None
            if self.exact is not None:
                self.exact.memory = None
        S = span.tokens.shape[1]
        # Call this graph's session directly: `Model.step` would prefer the graph for few tokens.
        session = self.model.session(self.purpose)
        outputs = session.step(self.memory.feeds(session.graph, span.tokens, span.targets), self.memory)
        self.memory.advance(S)
        buckets = self._buckets(outputs, S)
        answer = self.eager.walk(span, self.eager_memory, buckets)
        self.eager_memory, expected = answer.memory, answer.expected
        if self.exact is not None:
            expected = self.exact.beside(expected, buckets=buckets)
        hashes = "lsh" in self.eager.model.config.attn_layers
        lsh = _lsh_difference(answer.trace, outputs.get("overflow")) if hashes else None
        new_rows = 0.0 if self.evaluation.full_document else memory_difference(self.memory, self._project(S))
        return Step(outputs, expected, lsh, new_rows)

    def whole_memory(self) -> float:
        """Return the largest difference over the whole memories."""
        if self.evaluation.full_document:
            return 0.0
        return memory_difference(self.memory, self._project(self.evaluation.capacity()))

    def _buckets(self, outputs: dict[str, npt.NDArray[Any]], S: int) -> list[torch.Tensor | None]:
        """Return the graph's bucket ids of the last S tokens: (1, H, R, S) for each LSH layer, None for others."""
        import torch

        buckets: list[torch.Tensor | None] = []
        entries = {entry.input: entry for entry in self.memory.entries}
        slots = (self.memory.offset - S + np.arange(S)) % self.memory.capacity
        for layer, kind in enumerate(self.eager.model.config.attn_layers):
            if kind != "lsh":
                buckets.append(None)
                continue
            if self.evaluation.full_document:
                found = outputs[f"bucket_{layer}"]
            else:
                found = self.memory.array(entries[f"memory_bucket_{layer}"])[..., slots]
            rounds = found[:, :, : self.eager.model.config.n_hashes].astype(np.int64)
            buckets.append(torch.from_numpy(rounds))
        return buckets

    def _project(self, count: int) -> Iterator[NamedRows]:
        """Yield the newest rows of the eager model's memory in the form of the graph's memories."""
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
            for name, rows in project_memory(self.eager.model, newest):
                yield name, rows[0].numpy()


def _lsh_difference(trace: Sequence[LSHTrace], overflow: npt.NDArray[Any] | None) -> LSHDifference:
    """Compare the graph's buckets and its overflow (1, S, LSH layers) with those of the eager model."""
    flips, margin = 0, 0.0
    for one in trace:
        flipped = one.own != one.buckets
        flips += int(flipped.sum())
        margin = largest(margin, one.margin[flipped].numpy())
    if overflow is None or not trace:
        return LSHDifference(flips, margin)
    wanted = np.stack([one.overflow.numpy() for one in trace], axis=2)
    return LSHDifference(flips, margin, wanted.sum(axis=(0, 1)).tolist(), int((overflow != wanted).sum()))
