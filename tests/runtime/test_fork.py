"""Alternative continuations of a document: forks, and scores of continuations that leave the stream unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import BAND, EMPTY, ZEROS
from tests.runtime.conftest import Golden, RandomIds
from xlruntime import Model, NonFiniteScoreWarning, Sampling, Stream, TextError, TokenError
from xlruntime.memory import Memory

FED = (0, 1, 5, 60, 150)  # nothing; a held token; less than a segment; full rings; rings that wrapped often
LENGTHS = (0, 1, 3, 8, 30)  # of continuations: shorter and longer than a step, and than the spare slots of a ring


@pytest.fixture(params=[EMPTY, ZEROS, BAND])
def streaming(request: pytest.FixtureRequest, golden: Golden) -> Model:
    """Return models with rings, for each rule for the first memory, and one with windows of recent rows too."""
    return golden(request.param)


def same(found: Any, expected: Any) -> None:
    for what in ("index", "tokens", "log_probs", "context"):
        np.testing.assert_array_equal(getattr(found, what), getattr(expected, what))


def contents(memory: Memory) -> list[npt.NDArray[Any]]:
    return [memory.array(entry).copy() for entry in memory.entries]


@pytest.mark.parametrize("fed", FED)
def test_fork_goes_on_bit_equal_and_leaves_the_original_untouched(
    fed: int, streaming: Model, random_ids: RandomIds
) -> None:
    ids, other = random_ids(fed + 40), random_ids(45, seed=1)
    stream, alone = streaming.stream(), streaming.stream()
    for each in (stream, alone):
        each.feed(ids[:fed])
    twin, before = stream.fork(), contents(stream.memory)
    twin.feed(other)
    list(twin.generate([7], max_tokens=3))
    assert (stream.position, stream.pending) == (alone.position, alone.pending)
    for now, then in zip(contents(stream.memory), before, strict=True):
        np.testing.assert_array_equal(now, then)
    second = stream.fork()
    expected = alone.feed(ids[fed:])
    same(stream.feed(ids[fed:]), expected)
    same(second.feed(ids[fed:]), expected)
    assert second.memory.nbytes == stream.memory.nbytes == twin.memory.nbytes


def test_fork_in_the_middle_of_a_generation(streaming: Model) -> None:
    stream = streaming.stream()
    drawing = stream.generate([1, 2, 3], max_tokens=20, sampling=Sampling(temperature=0))
    begun = [next(drawing) for _ in range(5)]
    rest = list(stream.fork().generate(max_tokens=15, sampling=Sampling(temperature=0)))
    assert list(drawing) == rest
    assert len(begun) + len(rest) == 20


@pytest.mark.parametrize("fed", FED)
def test_continuations_score_as_if_fed_and_change_nothing(fed: int, streaming: Model, random_ids: RandomIds) -> None:
    ids = random_ids(fed + 40)
    stream, alone = streaming.stream(), streaming.stream()
    for each in (stream, alone):
        each.feed(ids[:fed])
    for length in LENGTHS:
        continuation = random_ids(length, seed=length)
        same(stream.score_continuation(continuation), alone.fork().feed(continuation))
        assert (stream.position, stream.pending) == (alone.position, alone.pending)
    same(stream.feed(ids[fed:]), alone.feed(ids[fed:]))


def test_short_continuation_does_not_copy_a_ring(bytes_model: Model, random_ids: RandomIds) -> None:
    stream = bytes_model.stream()
    stream.feed(random_ids(50))
    longest = stream.memory.max_segment
    with mock.patch.object(Memory, "take", autospec=True, side_effect=Memory.take) as take:
        stream.score_continuation(random_ids(longest))
        assert take.call_count == 0
        stream.score_continuation(random_ids(longest + 1))
        assert take.call_count == 1


def test_continuation_that_cannot_be_scored_changes_nothing(band_model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(210)
    stream, alone = band_model.stream(), band_model.stream()
    for each in (stream, alone):
        each.feed(ids[:190])
    with pytest.raises(TokenError, match="token 191 has id 258"):
        stream.score_continuation([3, 258])
    with pytest.raises(TextError, match="202 tokens, but at most 201 are possible"):
        stream.score_continuation(ids[:12])
    same(stream.score_continuation(ids[190:201]), alone.fork().feed(ids[190:201]))
    same(stream.feed(ids[190:201]), alone.feed(ids[190:201]))
    assert len(stream.score_continuation([])) == 0


def test_continuation_that_restarts_the_document(model: Model, band_model: Model, random_ids: RandomIds) -> None:
    """Check that such a continuation goes to a fork: a restart may refill a row, which cannot be undone."""
    ids = random_ids(260)
    limited = replace(model.bundle.evaluation, max_positions=200, restart=True).choose()
    for each, evaluation in ((model, limited), (band_model, band_model.evaluation(restart=True))):
        stream, alone = Stream(each, evaluation), Stream(each, evaluation)
        for end in (195, 198, 201):
            same(stream.feed(ids[stream.position : end]), alone.feed(ids[alone.position : end]))
            same(stream.score_continuation(ids[end : end + 8]), alone.fork().feed(ids[end : end + 8]))
        same(stream.feed(ids[201:]), alone.feed(ids[201:]))


def test_step_that_fails_changes_nothing(
    streaming: Model, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_ids(90)
    stream, alone = streaming.stream(segment_len=2, capacity=60), streaming.stream(segment_len=2, capacity=60)
    for each in (stream, alone):
        each.feed(ids[:70])
    step, steps = Model.step, 0

    def failing(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(Model, "step", failing)
    with pytest.raises(KeyboardInterrupt):
        stream.score_continuation(ids[:10])
    monkeypatch.undo()
    same(stream.feed(ids[70:]), alone.feed(ids[70:]))


def test_continuation_with_scores_that_are_not_finite_leaves_the_stream_clean(
    model: Model, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wipe hidden slots: a NaN in one would still make every later product NaN."""
    ids = random_ids(90)
    stream, alone = model.stream(), model.stream()
    for each in (stream, alone):
        each.feed(ids[:50])
    step = Model.step

    def poisoning(self: Model, purpose: str, memory: Memory, *segment: Any) -> Any:
        slot, outputs = memory.offset % memory.capacity, step(self, purpose, memory, *segment)
        for entry in memory.entries:
            memory.array(entry)[:, :, slot] = np.nan
        return {**outputs, "log_prob": outputs["log_prob"] * np.nan}

    monkeypatch.setattr(Model, "step", poisoning)
    with pytest.warns(NonFiniteScoreWarning, match="before token 54; its memory was refilled"):
        found = stream.score_continuation(ids[50:54])
    assert np.isnan(found.log_probs).all()
    monkeypatch.undo()
    assert all(np.isfinite(array).all() for array in contents(stream.memory))
    same(stream.feed(ids[50:]), alone.feed(ids[50:]))
