"""Memories: rings and recent rows that a step writes in place, ordered by age, carried and saved."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import Golden, RandomIds
from tests.runtime.in_place import walk_both_ways
from xlruntime import Model
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


def contents(memory: Memory) -> Arrays:
    return {entry.input: memory.array(entry).copy() for entry in memory.entries}


def test_graph_may_read_its_memory_after_it_has_written_it(late_reader: Model) -> None:
    found = late_reader.stream().feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1])
    assert found.log_probs.tolist() == [-1, -2, -3, -4, -14, -15, -16, -17, -30]
    memory = late_reader.new_memory(late_reader.evaluation())
    session, tokens = late_reader.session("score"), np.array([[5, 6, 7, 8]])
    memory.target = lambda entry: memory.values[entry.input]  # type: ignore[method-assign]  # one buffer for both
    assert session.step({"tokens": tokens}, memory)["log_prob"].tolist() != [[-5, -6, -7, -8]]


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
        np.testing.assert_array_equal(taken.by_age(entry, 0), walked.by_age(entry, 1))
    tokens = np.ones((2, 3), np.int64)
    for _ in range(2):  # either buffer
        band_model.step("score", taken, tokens[:1], tokens[:1])
    for entry in walked.entries:
        np.testing.assert_array_equal(walked.array(entry), before[entry.input])
    again = walked.take([1])
    band_model.step("score", walked, tokens, tokens)
    band_model.step("score", again, tokens[:1], tokens[:1])
    for entry in walked.entries:
        np.testing.assert_allclose(again.by_age(entry, 0), walked.by_age(entry, 1), rtol=0, atol=1e-5)


def test_refill_changes_one_row(walked: Memory) -> None:
    before = contents(walked)
    walked.restart(0, refill=True)
    for entry in walked.entries:
        assert not walked.array(entry)[0].any()
        np.testing.assert_array_equal(walked.array(entry)[1], before[entry.input][1])
    assert walked.position.tolist() == [0, 5]


def test_buffers_of_any_type_share_a_block(band_model: Model) -> None:
    memory = band_model.new_memory(band_model.bundle.settings, batch_size=3)
    arrays = [memory.array(entry) for entry in memory.entries]
    gaps = [b.ctypes.data - a.ctypes.data - a.nbytes for a, b in itertools.pairwise(arrays)]
    assert all(0 <= gap < 64 for gap in gaps)
    assert {array.dtype.name for array in arrays} == {"float32", "int32"}


def test_both_buffers_count(band_model: Model) -> None:
    memory = band_model.new_memory(band_model.bundle.settings, batch_size=3)
    H, d, C, R = 2, 8, 20, 3
    rings, ids, rows = 2 * H * C * d * 4, H * R * C * 4, 2 * H * 8 * d * 4
    assert memory.nbytes == 3 * (rings + ids + 2 * rows)


# Bound to one buffer as input and output, rings are written in place; `test_cuda.py` asks the same of CUDA.


@pytest.mark.parametrize("batch_size", [1, 3])
def test_rings_are_written_in_place_over_many_segments(batch_size: int, variant: Model, random_ids: RandomIds) -> None:
    T = 4 * variant.new_memory(variant.bundle.settings).capacity
    ids = random_ids(batch_size * T, vocab_size=variant.bundle.vocab_size).reshape(batch_size, T)
    walk_both_ways(variant, ids, within=0)  # the same nodes on the same numbers


def test_rings_of_a_reformer_are_written_in_place(band_model: Model, random_ids: RandomIds) -> None:
    longest = band_model.bundle.evaluation.max_positions
    assert longest is not None
    ids = random_ids(2 * longest, vocab_size=band_model.bundle.vocab_size).reshape(2, longest)
    walk_both_ways(band_model, ids, within=0)
