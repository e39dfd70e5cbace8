"""A saved state depends on its own document only, and a restored one harms no other document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.helpers.native import kernel_library
from tests.helpers.paths import BAND, EMPTY, ZEROS, golden_bundle
from tests.reliability.damage import STEADY
from tests.runtime.conftest import Golden, RandomIds
from xlruntime import Document, Model, Stream, load
from xlruntime.memory import Memory
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import scorer_state
from xlruntime.state import State

__all__ = ["kernel_library"]

NAMES = (EMPTY, ZEROS, BAND, "two_rings", "late_reader", "pre_lnorm_empty")  # all layouts and rules for first values
WAYS = ("feed", "feed", "score_continuation", "reset", "fork", "restore")
Actions = list[tuple[str, int]]


def hidden(memory: Memory, arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield for each of the arrays, in the order of their entries, where no later query looks."""
    length, position = int(memory.memory_length[0]), int(memory.position[0])
    for entry in memory.entries:
        array, axis = arrays[entry.input], entry.row_axis or 0
        age = -1 - np.arange(array.shape[axis])  # of windows, modulo their rows
        kept = len(age) if memory.evaluation.fresh_memory == "zeros" else position
        if entry.symbol is not None:
            age, kept = age + memory.offset, min(length, memory.evaluation.rows(entry.symbol))
        unseen = (age % len(age) >= kept) & (entry.row_axis is not None)
        yield np.broadcast_to(np.expand_dims(unseen, [*range(1, array.ndim - axis)]), array.shape)


def poisoned(model: Model, stream: Stream, file: Path, everywhere: bool) -> Stream:
    """Return a stream that was restored with huge numbers in hidden slots or everywhere."""
    stream.save(file)
    state = State.read(file)
    huge = {name: np.full_like(array, 3e38 if array.dtype.kind == "f" else 1) for name, array in state.memory.items()}
    for entry, where in zip(stream.memory.entries, hidden(stream.memory, huge), strict=True):
        if not everywhere:
            huge[entry.input] = np.where(where, huge[entry.input], state.memory[entry.input])
    replace(state, memory=huge).write(file)
    return model.restore(file)


def walked(model: Model, actions: Actions, file: Path) -> tuple[Stream, Stream]:
    """Return a stream after a history, and a fresh one that was fed the last document alone, at the same offset."""
    ids = np.random.default_rng(len(actions)).integers(0, model.bundle.vocab_size, 90)
    stream, fresh, longest = model.stream(), model.stream(), model.evaluation().longest_document or 1000
    for way, n in actions:
        if way == "reset" or stream.position + n > longest:
            stream = poisoned(model, stream, file, everywhere=True)
            stream.reset()
            fresh = model.stream()
            fresh.memory.offset = stream.memory.offset
        elif way in ("fork", "restore"):
            stream = stream.fork() if way == "fork" else poisoned(model, stream, file, everywhere=False)
        else:
            for each in (stream, fresh) if way == "feed" else (stream,):
                getattr(each, way)(ids[n : 2 * n])
    return stream, fresh


@pytest.mark.parametrize(
    "ops", [pytest.param("none", marks=pytest.mark.full), pytest.param("kernel_library", marks=pytest.mark.native)]
)
@pytest.mark.parametrize("name", NAMES)
def test_state_is_that_of_a_fresh_stream(name: str, ops: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model = load(golden_bundle(name), threads=1, ops=ops if ops == "none" else request.getfixturevalue(ops))

    @STEADY
    @given(st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 45)), max_size=8))
    def check(actions: Actions) -> None:
        stream, fresh = walked(model, actions, tmp_path / "between")
        for each, file in ((stream, "state"), (stream.fork(), "fork"), (fresh, "fresh")):
            each.save(tmp_path / file)
        assert len({(tmp_path / file).read_bytes() for file in ("state", "fork", "fresh")}) == 1
        saved, first = load_file(tmp_path / "state"), model.stream().memory
        for entry, where in zip(fresh.memory.entries, hidden(fresh.memory, saved), strict=True):
            np.testing.assert_array_equal(saved[entry.input][where], first.array(entry)[where])
        more = np.arange(min(17, int(stream.memory.room[0]))) % model.bundle.vocab_size
        expected = fresh.feed(more).log_probs
        for each in (stream, model.restore(tmp_path / "state")):
            np.testing.assert_array_equal(each.feed(more).log_probs, expected)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_saved_scorer_has_nothing_of_documents_that_ended(name: str, golden: Golden, random_ids: RandomIds) -> None:
    model = golden(name)
    scorer = Scorer(model, model.evaluation(), 2)
    steps = scorer.steps(Document(f"{n}", random_ids(n, vocab_size=model.bundle.vocab_size)) for n in (9, 60))
    while None not in scorer.rows:
        next(steps)
    idle, arrays = scorer.rows.index(None), scorer_state(scorer)[1]
    assert scorer.memory is not None
    fresh = model.new_memory(scorer.memory.evaluation, 1)
    for entry in fresh.entries:
        np.testing.assert_array_equal(arrays[entry.input][idle], fresh.array(entry)[0])
