"""The walk of an encoder-decoder: pairs of texts, whose targets are read in steps of several lengths.

Every pair is encoded by both sides. Then each graph reads the target step by step, with the memory that it carried, and
so does the eager model. After every step their results and memories are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from xlexport.architectures.base import Architecture
from xlexport.architectures.encoder_decoder.step import project_memory
from xlexport.architectures.findings import LSHTotals, SegmentDifference
from xlexport.verification.compare import (
    check_architecture,
    check_sizes,
    compare_other,
    compare_score,
    memory_difference,
    with_memory,
)
from xlexport.verification.exact import ExactModel
from xlexport.verification.expected import Ids, expect
from xlexport.verification.tolerances import tolerance_of
from xlruntime.evaluation import EvaluationSettings
from xlruntime.translator import Translator

if TYPE_CHECKING:
    from xlruntime.engine import Engine
    from xltraining.encoder_decoder import EncoderDecoder

__all__ = ["walk_pairs"]

STEPS = (1, 5, 2, 16, 3, 7)  # lengths of the steps of a target, over and over
"""They carry memory across every kind of border; single tokens are what generation feeds."""


def walk_pairs(
    architecture: Architecture,
    model: Engine,
    build_eager: Callable[[], EncoderDecoder],
    ids: Ids,
    segments: int,
    evaluation: EvaluationSettings,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> tuple[list[SegmentDifference], LSHTotals | None]:
    """Walk up to `segments` pairs with every graph and the eager model; see `GraphComparison`. Each step is a segment.

    Lines of a source, a tab and a target are pairs. Any other text is cut, and each part is both source and target.
    """
    import torch

    eager = build_eager()
    check_architecture(model, eager)
    check_sizes(model, eager)
    assert isinstance(model, Translator)
    exact = ExactModel(architecture, model, eager)
    slack = tolerance_of(model.bundle).log_prob
    found: list[SegmentDifference] = []
    for source, target in itertools.islice(_pairs(model, ids), segments):
        read = np.array([[model.encoder.start, *target[:-1]]], np.int64)
        memories = {purpose: model.new_targets([source]) for purpose in ("score", "generate", "detail")}
        with torch.inference_mode():
            eager_memory = eager.encode(torch.from_numpy(source[None]))
            if exact.model is not None:
                exact.memory = exact.model.encode(torch.from_numpy(source[None]))
        for start, stop in _steps(len(target)):
            tokens, targets = read[:, start:stop], target[None, start:stop]
            with torch.inference_mode():
                hidden, eager_memory = eager(torch.from_numpy(tokens), eager_memory)
                rows = [(name, rows[0].numpy()) for name, rows in project_memory(eager, eager_memory)]
            expected = exact.beside(expect(eager, hidden, tokens, targets, slack))
            outputs = {purpose: model.step(purpose, memory, tokens, targets) for purpose, memory in memories.items()}
            one = compare_score(len(found), expected, outputs["score"]["log_prob"][0])
            for purpose, memory in memories.items():
                one = with_memory(one, memory_difference(memory, rows))
                if purpose != "score":
                    one = compare_other(one, expected, outputs[purpose])
            found.append(one)
        if progress is not None:
            progress(found[-1])
    return found, None


def _pairs(model: Translator, ids: Ids) -> Iterator[tuple[Ids, Ids]]:
    """Yield the ids of sources and targets, none longer than the model reads."""
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


def _steps(length: int) -> Iterator[tuple[int, int]]:
    start = 0
    for size in itertools.cycle(STEPS):
        if start == length:
            return
        stop = min(start + size, length)
        yield start, stop
        start = stop
