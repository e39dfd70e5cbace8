"""A step with bound memory writes it in place; an unbound step is a pure function."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import RandomIds
from xlruntime import Model
from xlruntime.bundle import MemoryEntry
from xlruntime.memory import Memory

Arrays = dict[str, npt.NDArray[Any]]


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


def contents(memory: Memory) -> Arrays:
    return {entry.input: memory.array(entry).copy() for entry in memory.entries}


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


def test_session_that_was_released_opens_again(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(8, vocab_size=variant.bundle.vocab_size)[None]
    opened = variant.session("score")
    before = variant.step("score", variant.new_memory(variant.bundle.settings), ids, ids)["log_prob"]
    variant.release("score")
    variant.release("score")  # a second release changes nothing
    after = variant.step("score", variant.new_memory(variant.bundle.settings), ids, ids)["log_prob"]
    assert variant.session("score") is not opened
    assert np.array_equal(before, after)
