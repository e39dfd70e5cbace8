"""One model serves many streams and threads, and a stream of any length needs no more memory than a short one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import RandomIds
from xlruntime import Model, Sampling, load

THREADS = 8


def walk(model: Model, ids: npt.NDArray[np.int64], number: int) -> list[Any]:
    """Return scores and draws of one document in pieces; streams differ in capacity and settings."""
    stream = model.stream(segment_len=3 + number, mem_len=12 + number % 3)
    scores = [stream.feed(piece).log_probs for piece in np.array_split(ids, 9)]
    drawn = list(stream.generate(max_tokens=20, sampling=Sampling(seed=number)))
    totals = [score.nats for score in model.score(np.array_split(ids, 5), batch_size=2)]
    return [np.concatenate(scores), drawn, totals]


@pytest.mark.full
def test_streams_in_many_threads_equal_each_alone(model: Model, random_ids: RandomIds) -> None:
    documents = [random_ids(200 + 37 * number, seed=number) for number in range(THREADS)]
    expected = [walk(model, document, number) for number, document in enumerate(documents)]
    shared = load(model.folder, threads=1)  # nothing but its score graph is open yet
    together = threading.Barrier(THREADS)

    def begin(number: int) -> list[Any]:
        together.wait(timeout=60)
        return walk(shared, documents[number], number)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(begin, range(THREADS)))
    for (scores, drawn, totals), wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(scores, wanted[0])
        assert drawn == wanted[1]
        assert totals == wanted[2]


@pytest.mark.full
def test_streams_that_alternate_equal_each_alone(model: Model, random_ids: RandomIds) -> None:
    """Use more capacities than a model keeps positional keys for."""
    ids = random_ids(120)
    capacities = range(14, 26)
    streams = [model.stream(capacity=capacity) for capacity in capacities]
    parts = [[stream.feed(piece).log_probs for stream in streams] for piece in np.array_split(ids, 6)]
    for number, capacity in enumerate(capacities):
        alone = model.stream(capacity=capacity)
        expected = [alone.feed(piece).log_probs for piece in np.array_split(ids, 6)]
        np.testing.assert_array_equal(np.concatenate([part[number] for part in parts]), np.concatenate(expected))
