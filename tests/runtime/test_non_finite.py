"""Scores that are not finite: they are reported, the row is reset, and other rows are unaffected."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Close, RandomIds
from xlruntime import Model, NonFiniteScoreWarning, XlruntimeError
from xlruntime.memory import Memory


def poison(memory: Memory, row: int) -> None:
    """Write NaN to one slot of one memory; from then on, every product with the row is NaN, masked or not."""
    array = memory.array(memory.entries[0])
    array[row, :, 3] = np.nan


def test_poisoned_stream_warns_once_and_is_reset(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(200)
    stream = model.stream()
    stream.feed(ids[:50])
    poison(stream.memory, 0)
    with pytest.warns(NonFiniteScoreWarning, match="before token 58; its memory was refilled") as caught:
        bad = stream.feed(ids[50:58])
    assert len(caught) == 1
    assert not np.isfinite(bad.log_probs).all()
    later, fresh = stream.feed(ids[58:]), model.stream().feed(ids[57:])
    close(later.log_probs, fresh.log_probs)
    np.testing.assert_array_equal(later.context, fresh.context)
    np.testing.assert_array_equal(later.index, np.arange(58, 200))
    assert all(np.isfinite(stream.memory.array(entry)).all() for entry in stream.memory.entries)


def test_poisoned_stream_is_reset_if_warnings_are_errors(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(70)
    stream = model.stream()
    stream.feed(ids[:30])
    poison(stream.memory, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteScoreWarning)
        with pytest.raises(NonFiniteScoreWarning):
            stream.feed(ids[30:38])
    close(stream.feed(ids[38:]).log_probs, model.stream().feed(ids[37:]).log_probs)


def test_poisoned_row_leaves_its_neighbours_alone(
    model: Model, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch, close: Close
) -> None:
    documents = [random_ids(length, seed=length) for length in (100, 90, 95)]
    expected = [parts.log_probs for parts in by_document(model, documents)]
    step, steps = Model.step, 0

    def poisoned(self: Model, purpose: str, memory: Memory, *segment: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            poison(memory, 1)
        return step(self, purpose, memory, *segment)

    monkeypatch.setattr(Model, "step", poisoned)
    with pytest.warns(NonFiniteScoreWarning, match="document 2: .* before token 33;") as caught:
        found = by_document(model, documents)
    assert len(caught) == 1
    for neighbour in (0, 2):
        np.testing.assert_array_equal(found[neighbour].log_probs, expected[neighbour])
    bad, later = found[1].log_probs[24:32], found[1].log_probs[32:]
    assert not np.isfinite(bad).all()
    monkeypatch.undo()
    close(later, model.stream().feed(documents[1][32:]).log_probs)
    assert found[1].context[31:34].tolist() == [12, 1, 2]
    assert math.isnan(found[1].summary.nats)
    assert math.isnan(found[1].summary.perplexity)


class Parts:
    """All scores of one document."""

    def __init__(self, parts: list[Any]) -> None:
        self.log_probs = np.concatenate([part.log_probs for part in parts])
        self.context = np.concatenate([part.context for part in parts])
        self.summary = parts[-1].summary


def by_document(model: Model, documents: list[Any]) -> list[Parts]:
    parts: dict[int, list[Any]] = {number: [] for number in range(len(documents))}
    for scores in model.score_tokens(documents, batch_size=len(documents)):
        parts[scores.number].append(scores)
    return [Parts(of) for of in parts.values()]


def test_poisoned_generation_stops_and_a_reset_repairs_it(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(60)
    stream = model.stream()
    stream.feed(ids)
    poison(stream.memory, 0)
    with pytest.raises(XlruntimeError, match=r"logits that are not finite.*Reset the stream\."):
        list(stream.generate(max_tokens=3))
    stream.reset()
    close(stream.feed(ids).log_probs, model.stream().feed(ids).log_probs)
