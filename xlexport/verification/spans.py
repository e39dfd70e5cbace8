"""Cut the token ids of a text into the steps in which graphs and eager model read it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings
from xlruntime.translator import Translator

__all__ = ["Ids", "Span", "cut_text", "pairs", "segments_of", "segments_to_wrap"]

Ids = npt.NDArray[np.int64]

LONGEST_DOCUMENT = 2048  # tokens of a document that is read in one step, unless the user gives a length
TARGET_STEPS = (1, 5, 2, 16, 3, 7)  # lengths of the steps of a translation, over and over
"""They carry memory across every kind of border; single tokens are what generation feeds."""


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a text, which the eager model reads in one step.

    Attributes:
        start: place of the first token in the text.
        position: place of the first token in its document; 0 begins a document.
        tokens, targets: (1, S), and the token after each.
        ends: whether the document ends with this span.
        source: (L,) ids of the text that is translated, if the model has an encoder.
    """

    start: int
    position: int
    tokens: Ids
    targets: Ids
    ends: bool = False
    source: Ids | None = None

    def parts(self, lengths: Iterable[int]) -> Iterator[Span]:
        """Yield the same tokens in parts of at most the given lengths, until tokens or lengths end."""
        S, start = self.tokens.shape[1], 0
        for length in lengths:
            if start >= S:
                return
            stop = min(S, start + length)
            yield dataclasses.replace(
                self,
                start=self.start + start,
                position=self.position + start,
                tokens=self.tokens[:, start:stop],
                targets=self.targets[:, start:stop],
                ends=self.ends and stop == S,
            )
            start = stop


def cut_text(ids: Ids, segments: int, model: Engine, evaluation: EvaluationSettings) -> list[Span]:
    """Return the spans to compare on: up to `segments` segments, documents, or pairs of a source and a target.

    A model that carries memory reads the text in segments, as documents of at most as many tokens as it has positions.
    A model that reads each document in one step gets documents of several lengths. A model with an encoder gets pairs.
    """
    if isinstance(model, Translator):
        return [span for pair in itertools.islice(pairs(model, ids), segments) for span in _target(model, *pair)]
    if evaluation.full_document:
        chunk_length = model.bundle.config.get("chunk_length", evaluation.segment_len)
        longest = evaluation.longest_part or evaluation.segment_len
        if evaluation.segment_len == model.bundle.settings.segment_len:  # not a length that the user gave
            longest = min(longest, LONGEST_DOCUMENT)
        documents = _documents(ids, longest, chunk_length)
        return list(itertools.islice(documents, segments))
    ids = ids[: segments * evaluation.segment_len + 1]
    return list(segments_of(ids, evaluation.segment_len, evaluation.max_positions))


def segments_of(ids: Ids, segment_len: int, max_positions: int | None) -> Iterator[Span]:
    """Yield the segments of documents with as many tokens as there are positions; last segments may be shorter."""
    last = len(ids) - 1
    longest = max_positions or max(1, last)
    for first in range(0, last, longest):
        end = min(first + longest, last)
        for start in range(first, end, segment_len):
            stop = min(start + segment_len, end)
            yield _span(ids, start, start - first, stop, stop == end)


def segments_to_wrap(evaluation: EvaluationSettings, rounds: int = 1) -> int:
    """Return how many segments write the whole ring `rounds` times and begin another round."""
    return rounds * -(-evaluation.capacity() // evaluation.segment_len) + 1


def _span(ids: Ids, start: int, position: int, stop: int, ends: bool) -> Span:
    return Span(start, position, ids[None, start:stop], ids[None, start + 1 : stop + 1], ends)


def _documents(ids: Ids, longest: int, chunk_length: int) -> Iterator[Span]:
    """Yield documents of several lengths: the longest, one that no chunk length divides, and some near one chunk."""
    candidates = (longest, longest - chunk_length // 2 - 1, chunk_length // 2, chunk_length, chunk_length + 1)
    lengths = itertools.cycle([length for length in candidates if 1 <= length <= longest])
    start = 0
    while start < len(ids) - 1:
        stop = min(start + next(lengths), len(ids) - 1)
        yield _span(ids, start, 0, stop, True)
        start = stop


def pairs(model: Translator, ids: Ids) -> Iterator[tuple[Ids, Ids]]:
    """Yield the ids of sources and targets, none longer than the model reads.

    Lines of a source, a tab and a target are pairs. Any other text is cut, and each part is both source and target.
    """
    lines = [line.split("\t") for line in model.tokenizer.decode(ids).splitlines()]
    if all(len(line) == 2 for line in lines):
        for line in lines:
            source, target = (model.tokenizer.encode(text) for text in line)
            if len(target):
                yield source[: model.encoder.source_len], target[: model.longest_target]
        return
    longest = min(model.encoder.source_len, model.longest_target)
    start = 0
    for length in itertools.chain([longest], itertools.cycle(range(1, longest + 1, 7))):
        if start >= len(ids):
            return
        yield ids[start : start + length], ids[start : start + length]
        start += length


def _target(model: Translator, source: Ids, target: Ids) -> Iterator[Span]:
    """Yield the steps in which the target of a source is read."""
    tokens = np.array([[model.encoder.start, *target[:-1]]], np.int64)
    yield from Span(0, 0, tokens, target[None], True, source).parts(itertools.cycle(TARGET_STEPS))
