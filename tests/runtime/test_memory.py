"""Memories: rings and recent rows that a step writes in place, ordered by age, carried and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import Model
from xlruntime.bundle import MemoryEntry
from xlruntime.memory import Memory

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture
def late_reader(golden: Golden) -> Model:
    """Return the bundle `late_reader`: it scores t by -(t + three tokens before the segment), read after writing."""
    return golden("late_reader")


@pytest.fixture
def walked(band_model: Model, random_ids: RandomIds) -> Memory:
    """Return two rows after 31 tokens, the second 5 tokens after a restart; the rings have 20 slots."""
    memory = band_model.new_memory(band_model.bundle.settings, batch_size=2)
    ids = random_ids(2 * 31, vocab_size=258).reshape(2, 31)
    for number, segment in enumerate(np.split(ids, [8, 14, 21, 26], axis=1)):
        if number == 4:
            memory.restart(1)
        band_model.step("score", memory, segment, segment)
    return memory


def recent(memory: Memory) -> list[MemoryEntry]:
    return [entry for entry in memory.entries if entry.layout == "window"]


def contents(memory: Memory) -> Arrays:
    return {entry.input: memory.array(entry).copy() for entry in memory.entries}


def test_graph_may_read_its_memory_after_it_has_written_it(late_reader: Model) -> None:
    found = late_reader.stream().feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1])
    assert found.log_probs.tolist() == [-1, -2, -3, -4, -14, -15, -16, -17, -30]
    memory = late_reader.new_memory(late_reader.evaluation())
    session, tokens = late_reader.session("score"), np.array([[5, 6, 7, 8]])
    memory.target = lambda entry: memory.values[entry.input]  # type: ignore[method-assign]  # one buffer for both
    assert session.step({"tokens": tokens}, memory)["log_prob"].tolist() != [[-5, -6, -7, -8]]


def test_buffers_change_places(band_model: Model, walked: Memory) -> None:
    tokens = np.ones((2, 3), np.int64)
    for entry in recent(walked):
        places = [walked.values[entry.input].data_ptr(), walked.target(entry).data_ptr()]
        assert places[0] != places[1]
        for _ in range(3):
            before = walked.array(entry).copy()
            band_model.step("score", walked, tokens, tokens)
            assert [walked.values[entry.input].data_ptr(), walked.target(entry).data_ptr()] == places[::-1]
            assert walked.array(entry).ctypes.data == places[1]
            places.reverse()
            # Local attention keeps 8 rows: 5 of them were there before.
            np.testing.assert_array_equal(walked.array(entry)[:, :, :5], before[:, :, 3:])
    for entry in walked.entries:
        if entry.layout == "ring":
            assert walked.target(entry) is walked.values[entry.input]


def test_rows_by_age_are_those_of_the_document(walked: Memory) -> None:
    for entry in walked.entries:
        array, axis = walked.array(entry), entry.row_axis or 0
        kept = 8 if entry.layout == "window" else 12
        long, short = (walked.by_age(entry, row) for row in (0, 1))
        assert (long.shape[axis - 1], short.shape[axis - 1]) == (kept, 5)
        last = -1 if entry.layout == "window" else (walked.offset - 1) % walked.capacity
        for row, rows in enumerate((long, short)):
            newest = array[row].take(last, axis=axis - 1)
            np.testing.assert_array_equal(rows.take(-1, axis=axis - 1), newest)
    assert {entry.dtype for entry in walked.entries} == {"float32", "int32"}


def test_taken_rows_are_copies(band_model: Model, walked: Memory) -> None:
    before = contents(walked)
    taken = walked.take([1])
    assert (taken.position.tolist(), walked.position.tolist()) == ([5], [31, 5])
    for entry in walked.entries:
        np.testing.assert_array_equal(taken.array(entry), before[entry.input][[1]])
    tokens = np.ones((2, 3), np.int64)
    for _ in range(2):  # either buffer
        band_model.step("score", taken, tokens[:1], tokens[:1])
    for entry in walked.entries:
        np.testing.assert_array_equal(walked.array(entry), before[entry.input])
    again = walked.take([1])
    band_model.step("score", walked, tokens, tokens)
    band_model.step("score", again, tokens[:1], tokens[:1])
    for entry in walked.entries:
        np.testing.assert_allclose(again.array(entry), walked.array(entry)[[1]], rtol=0, atol=1e-5)


def test_refill_changes_one_row(walked: Memory) -> None:
    before = contents(walked)
    walked.restart(0, refill=True)
    for entry in walked.entries:
        assert not walked.array(entry)[0].any()
        np.testing.assert_array_equal(walked.array(entry)[1], before[entry.input][1])
    assert walked.position.tolist() == [0, 5]


def test_both_buffers_count(band_model: Model) -> None:
    memory = band_model.new_memory(band_model.bundle.settings, batch_size=3)
    H, d, C, R = 2, 8, 20, 3
    rings, ids, rows = 2 * H * C * d * 4, H * R * C * 4, 2 * H * 8 * d * 4
    assert memory.nbytes == 3 * (rings + ids + 2 * rows)


@pytest.mark.parametrize("fed", [0, 1, 5, 60, 130])
def test_saved_stream_goes_on_bit_equal(
    fed: int, band_model: Model, random_ids: RandomIds, tmp_path: Path, close: Close
) -> None:
    ids = random_ids(fed + 50, vocab_size=258)
    stream = band_model.stream()
    stream.feed(ids[:fed])
    stream.save(tmp_path / "state")
    restored = band_model.restore(tmp_path / "state")
    relaid = [band_model.restore(tmp_path / "state", capacity=capacity) for capacity in (13, 45)]
    for entry in stream.memory.entries:
        array = restored.memory.array(entry)
        assert array.dtype == entry.dtype
        np.testing.assert_array_equal(array, stream.memory.array(entry))
    expected = stream.feed(ids[fed:])
    np.testing.assert_array_equal(restored.feed(ids[fed:]).log_probs, expected.log_probs)
    for other in relaid:
        found = other.feed(ids[fed:])
        close(found.log_probs, expected.log_probs)
        np.testing.assert_array_equal(found.context, expected.context)


# A step with bound memory writes it in place; an unbound step is a pure function.


@pytest.fixture
def filled(variant: Model, random_ids: RandomIds) -> Memory:
    """Return three rows of different histories after 31 tokens, in a ring of 19 slots that has wrapped."""
    memory = variant.new_memory(variant.bundle.settings, batch_size=3, capacity=19)
    ids = random_ids(3 * 31, vocab_size=variant.bundle.vocab_size).reshape(3, 31)
    for number, segment in enumerate(np.split(ids, [7, 14, 21, 26], axis=1)):
        if number == 4:
            memory.restart(1)
        variant.step("score", memory, segment, segment)
    assert memory.offset == 31
    return memory


def row_axis(entry: MemoryEntry) -> int:
    assert entry.row_axis is not None
    return entry.row_axis


@pytest.mark.parametrize("purpose", ["score", "generate", "detail"])
def test_unbound_graph_is_a_pure_function(purpose: str, variant: Model, filled: Memory, random_ids: RandomIds) -> None:
    tokens, targets = random_ids(2 * 3 * 6, seed=1, vocab_size=variant.bundle.vocab_size).reshape(2, 3, 6)
    memory = contents(filled)
    session = variant.session(purpose)
    feeds: Arrays = {**filled.feeds(session.graph, tokens, targets), **memory}
    feeds |= {name: value.numpy() for name, value in filled.constants.items()}
    before = {name: array.copy() for name, array in feeds.items()}

    outputs = session.run(feeds)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, before[name])
    again = session.run(feeds)
    bound = variant.step(purpose, filled, tokens, targets)
    carried = {entry.output: filled.array(entry) for entry in filled.entries}
    assert set(outputs) == set(bound) | set(carried)
    for name, array in {**bound, **carried}.items():
        np.testing.assert_array_equal(outputs[name], array)
        np.testing.assert_array_equal(outputs[name], again[name])


def test_rows_by_age_are_the_last_ones_written(variant: Model, filled: Memory) -> None:
    mem_len = variant.bundle.settings["mem_len"]
    for entry in filled.entries:
        rows = filled.by_age(entry, 0)
        assert rows.shape[row_axis(entry) - 1] == mem_len
        newest = (filled.offset - 1) % filled.capacity
        wanted = filled.array(entry)[0].take(newest, axis=row_axis(entry) - 1)
        np.testing.assert_array_equal(rows.take(-1, axis=row_axis(entry) - 1), wanted)
    restarted = variant.bundle.evaluation.fresh_memory == "empty"
    assert filled.by_age(filled.entries[0], 1).shape[1] == (5 if restarted else mem_len)
