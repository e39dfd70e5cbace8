"""A short version of `soak.py`, and streams in threads while sessions are closed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import BAND, EMPTY, golden_bundle
from tests.reliability.soak import soak
from xlruntime import Model, Sampling, load

pytestmark = pytest.mark.full

THREADS = 8
TOKENS = 190  # of a document: the Reformer reads 200


@pytest.mark.release
def test_long_stream_keeps_counting_and_scoring(tmp_path: Path) -> None:
    result = soak(20_000, tmp_path)
    # The same sums of at most 26 terms in another order: 2e-6 seen.
    assert result.difference < 2e-5
    assert result.large_difference < 2e-5
    assert result.resident[-1] - result.resident[0] < 10  # megabytes


def walk(model: Model, seed: int) -> npt.NDArray[Any]:
    """Feed a document in pieces of random lengths, then generate; `seed` determines everything."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, model.bundle.vocab_size, TOKENS)
    stream = model.stream(segment_len=None if rng.random() < 0.5 else int(rng.integers(1, 17)))
    pieces = np.split(ids, np.sort(rng.integers(0, TOKENS, 10)))
    scores = [stream.feed(piece).log_probs for piece in pieces]
    drawn = list(stream.generate(max_tokens=3, sampling=Sampling(seed=seed)))
    return np.concatenate([*scores, np.array(drawn, np.float32)])


@pytest.mark.parametrize("bundle", [EMPTY, BAND])
def test_streams_in_threads_are_bit_equal_to_each_alone_while_sessions_close(bundle: str) -> None:
    model, done, closed = load(golden_bundle(bundle), threads=1), threading.Event(), [0]

    def close_sessions() -> None:
        while not done.wait(0.02):
            for purpose in ("generate", "score"):
                model.release(purpose)
                closed[0] += 1

    with ThreadPoolExecutor(THREADS + 1) as pool:
        pool.submit(close_sessions)
        try:
            together = list(pool.map(lambda seed: walk(model, seed), range(THREADS)))
        finally:
            done.set()
    assert closed[0] > 0
    for seed, scores in enumerate(together):
        np.testing.assert_array_equal(scores, walk(model, seed))
