"""Feed very many tokens to one stream; check memory, counters, and the last scores.

    python -m tests.reliability.soak                         ten million tokens, in feeds of all lengths
    python -m tests.reliability.soak --tokens 100000000      a hundred million

Each layer of a model with `same_length` sees `window` keys, so a score depends on at most n_layer * window tokens
before it. A fresh stream that gets only these tokens must give the same scores. The stream is also saved on the way,
and continues from the file. At the end its counters are set close to 2**31, 2**32 and 2**53, where narrower numbers
would break.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime import Model, Stream, load

BUNDLE = golden_bundle(EMPTY)
SEGMENT = 256  # largest number of tokens in a step; with same_length it affects only speed
PIECE = 100_000  # tokens that are drawn at once
MILLION = 1_000_000
FOLLOWING = 1000  # tokens that are compared
LARGE = (2**31, 2**32, 2**53)


@dataclass
class Soak:
    """The results of the long run.

    Attributes:
        resident: megabytes after the first million tokens (or the first tenth, if that is less), and after each tenth.
        difference: largest difference in nats between the last tokens' scores and a stream without the past.
        large_difference: the same, with counters that pass each number of LARGE.
    """

    resident: list[float]
    difference: float
    large_difference: float


def soak(tokens: int, folder: Path, bundle: Path = BUNDLE, report: Callable[[str], object] = lambda line: None) -> Soak:
    """Feed this number of tokens to one stream, and some more to compare.

    Raises:
        AssertionError: a counter is wrong, or a score is not finite.
    """
    model, file = load(bundle, threads=1), folder / "soak.safetensors"
    rng, began = np.random.default_rng(0), time.monotonic()
    warm = model.stream(segment_len=SEGMENT)  # lets the process allocate memory for feeds of all lengths
    _feed(warm, tokens // 20, rng)
    stream = model.stream(segment_len=SEGMENT)
    resident, last = list[float](), np.zeros(0, np.int64)
    reach = model.bundle.config["n_layer"] * stream.evaluation.widest_window
    first = min(MILLION, tokens // 10)
    for stop in [first // 2, first, *(tokens * tenth // 10 for tenth in range(1, 11))]:
        last = np.concatenate([last, _feed(stream, stop, rng)])[-2 * reach - 2 :]
        _check_counters(stream, stop)
        stream.save(file)
        stream = model.restore(file)
        gc.collect()
        if stop >= first:
            resident.append(psutil.Process().memory_info().rss / 1e6)
            rate = stop / (time.monotonic() - began)
            report(f"{stop:12,} tokens {resident[-1]:8.2f} MB {rate:10,.0f} tokens/s")
    following = rng.integers(0, model.bundle.vocab_size, FOLLOWING)
    fresh = model.stream(segment_len=SEGMENT)
    fresh.feed(last)
    expected = fresh.feed(following).log_probs
    large = max(float(abs(_score_past(model, file, edge, following) - expected).max()) for edge in LARGE)
    return Soak(resident, float(abs(stream.feed(following).log_probs - expected).max()), large)


def _feed(stream: Stream, stop: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Feed random tokens in pieces of random lengths up to a position, and return the last of them."""
    last = np.zeros(0, np.int64)
    while stream.position < stop:
        ids = rng.integers(0, stream.engine.bundle.vocab_size, min(PIECE, stop - stream.position))
        last = np.concatenate([last, ids])[-PIECE:]
        for piece in np.split(ids, np.sort(rng.integers(0, len(ids), len(ids) // 700))):
            assert np.isfinite(stream.feed(piece).log_probs).all()
    return last


def _check_counters(stream: Stream, position: int) -> None:
    memory = stream.memory
    assert (stream.position, memory.offset) == (position, position - 1)  # the last token waits for its target
    assert memory.position[0] == position - 1
    assert memory.memory_length[0] == stream.evaluation.most_rows
    token = np.zeros((1, 1), np.int64)
    fed = memory.feeds(stream.engine.bundle.graphs["score"], {"tokens": token, "targets": token})
    assert fed["offset"][0] == (position - 1) % memory.capacity


def _score_past(model: Model, file: Path, edge: int, following: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the scores of `following` by the saved stream, as if it passed `edge` tokens in the middle of them."""
    stream = model.restore(file)
    memory = stream.memory
    turns = (edge - len(following) // 2 - memory.offset) // memory.capacity
    memory.offset += turns * memory.capacity  # so that the rows stay in their slots
    memory.position += turns * memory.capacity
    stream.position += turns * memory.capacity
    assert memory.offset < edge < memory.offset + len(following)
    return stream.feed(following).log_probs


def main() -> None:
    """Run from the command line, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="with same_length, on bytes or other small ids")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(options.tokens, Path(folder), options.bundle, lambda line: print(line, flush=True))
    print(f"growth of resident memory: {100 * (result.resident[-1] / result.resident[0] - 1):+.2f} %")
    print(f"largest difference from a stream without the past: {result.difference:.2e} nats")
    print(f"with counters that pass 2**31, 2**32 and 2**53:     {result.large_difference:.2e} nats")


if __name__ == "__main__":
    main()
