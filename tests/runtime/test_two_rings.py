"""Rings of two capacities and a state, in a bundle with its own settings and symbols (`make_two_rings.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import GOLDEN
from xlruntime import Model, Stream, load

IDS = np.random.default_rng(0).integers(0, 10, 60)
SEGMENT = 4


@pytest.fixture(scope="module")
def model() -> Model:
    return load(GOLDEN / "two_rings" / "bundle", threads=1)


def wanted(ids: npt.NDArray[np.int64], near: int = 3, far: int = 9) -> npt.NDArray[np.float64]:
    """Return the scores by definition: each query sees its own token and a number of tokens before it."""
    scores = []
    for t in range(len(ids) - 1):
        begin = t // SEGMENT * SEGMENT
        seen = ids[max(0, t - near) : t + 1].sum() + 100 * ids[max(0, t - far) : t + 1].sum()
        scores.append(-(seen + 10_000 * (7 + ids[:begin].sum())))
    return np.array(scores, np.float64)


def test_each_ring_has_its_own_capacity(model: Model) -> None:
    memory = model.new_memory(model.bundle.settings, batch_size=2)
    assert {entry.input: memory.array(entry).shape for entry in memory.entries} == {
        "near": (2, 3 + SEGMENT, 1),
        "far": (2, 9 + SEGMENT, 1),
        "total": (2, 1),
    }
    assert (memory.capacity, memory.max_segment) == (13, SEGMENT)
    assert {entry.layout: memory.array(entry)[0, 0].item() for entry in memory.entries[1:]} == {"ring": 0, "state": 7}


@pytest.mark.parametrize("mem_len", [1, 3, 12])
def test_stream_sees_the_chosen_rows_of_each_ring(mem_len: int, model: Model) -> None:
    scores = model.stream(mem_len=mem_len).feed(IDS)
    np.testing.assert_array_equal(scores.log_probs, wanted(IDS, mem_len, 3 * mem_len))
    assert scores.context.tolist() == list(range(1, len(IDS)))  # the state depends on every token


def test_documents_of_a_batch_begin_with_the_first_value(model: Model) -> None:
    documents = [IDS[:n] for n in (30, 5, 17, 2, 41)]
    for total, ids in zip(model.score(documents, batch_size=2), documents, strict=True):
        assert total.nats == -wanted(ids).sum()
        assert total.to_dict()["mem_len"] == 3


def rest(stream: Stream) -> list[float]:
    scores: list[float] = stream.feed(IDS[30:]).log_probs.tolist()
    return scores


def test_saved_forked_tried_and_reset_streams(model: Model, tmp_path: Path) -> None:
    stream = model.stream()
    stream.feed(IDS[:30])
    stream.save(tmp_path / "state")
    fork, expected = stream.fork(), stream.fork().feed(IDS[30:]).log_probs.tolist()
    assert stream.score_continuation(IDS[30:33]).log_probs.tolist() == expected[:3]
    assert rest(stream) == rest(fork) == rest(model.restore(tmp_path / "state")) == expected
    assert rest(model.restore(tmp_path / "state", capacity=30)) == expected  # the rows of both rings move
    stream.reset()
    np.testing.assert_array_equal(stream.feed(IDS[:9]).log_probs, wanted(IDS[:9]))
