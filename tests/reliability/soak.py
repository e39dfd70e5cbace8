"""Feed very many tokens to one stream; check memory, counters, and the last scores.

    python -m tests.reliability.soak                         ten million tokens, in feeds of all lengths
    python -m tests.reliability.soak --tokens 100000000      a hundred million
    python -m tests.reliability.soak --tokens 200000

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime import Model, Stream, load

__all__ = ["Soak", "soak"]

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
        Before that, another stream gets a twentieth of the tokens, and this one is saved once, so that the process
        has allocated the memory for both.
        difference: largest difference in nats between the last tokens' scores and a stream without the past.
        large_difference: the same, with counters that pass each number of LARGE.
    """

    tokens: int
    seconds: float
    resident: list[float]
    nats: float
    difference: float
    large_difference: float


def soak(tokens: int, folder: Path, bundle: Path = BUNDLE, show: bool = False) -> Soak:
    """Feed this number of tokens to one stream, and some more to compare.

    Raises:
        AssertionError: a counter is wrong, or a score is not finite.
    """
    model = load(bundle, threads=1)
    _warm_up(model, tokens // 20)
    stream = model.stream(segment_len=SEGMENT)
    rng = np.random.default_rng(0)
    process, resident, nats = psutil.Process(), [], 0.0
    reach = model.bundle.config["n_layer"] * stream.evaluation.widest_window
    last = np.zeros(0, np.int64)
    start = time.monotonic()
    tenths = [tokens * tenth // 10 for tenth in range(1, 11)]
    begun = min(MILLION, tenths[0])
    for stop in [begun // 2, begun, *tenths]:
        while stream.position < stop:
            pieces = _pieces(rng, model.bundle.vocab_size, min(PIECE, stop - stream.position))
            for piece in pieces:
                nats -= float(stream.feed(piece).log_probs.sum(dtype=np.float64))
            last = np.concatenate([last, *pieces])[-2 * reach - 2 :]
        assert np.isfinite(nats)
        _check_counters(stream, stop)
        stream.save(folder / "soak.safetensors")
        stream = model.restore(folder / "soak.safetensors")
        gc.collect()
        megabytes = process.memory_info().rss / 1e6
        if stop >= begun:
            resident.append(megabytes)
        if show:
            rate = stream.position / (time.monotonic() - start)
            print(f"{stream.position:12,} tokens {megabytes:8.1f} MB {rate:10,.0f} tokens/s", flush=True)
    seconds = time.monotonic() - start
    following = rng.integers(0, model.bundle.vocab_size, FOLLOWING)
    fresh = model.stream(segment_len=SEGMENT)
    fresh.feed(last)
    expected = fresh.feed(following).log_probs
    large = [_score_past(model, folder, edge, following) for edge in LARGE]
    return Soak(
        tokens,
        seconds,
        resident,
        nats,
        float(abs(stream.feed(following).log_probs - expected).max()),
        max(float(abs(scores - expected).max()) for scores in large),
    )


def _warm_up(model: Model, tokens: int) -> None:
    """Feed another stream in the same way, so that the process has allocated memory for feeds of all lengths."""
    stream, rng = model.stream(segment_len=SEGMENT), np.random.default_rng(1)
    while stream.position < tokens:
        for piece in _pieces(rng, model.bundle.vocab_size, PIECE):
            stream.feed(piece)


def _pieces(rng: np.random.Generator, vocab_size: int, tokens: int) -> list[npt.NDArray[np.int64]]:
    """Yield random tokens, in pieces of random lengths."""
    ids = rng.integers(0, vocab_size, tokens)
    return np.split(ids, np.sort(rng.integers(0, len(ids), len(ids) // 700)))


def _check_counters(stream: Stream, position: int) -> None:
    memory = stream.memory
    assert (stream.position, memory.offset) == (position, position - 1)  # the last token waits for its target
    assert memory.position[0] == position - 1
    assert memory.memory_length[0] == stream.evaluation.most_rows
    token = np.zeros((1, 1), np.int64)
    fed = memory.feeds(stream.engine.bundle.graphs["score"], token, token)
    assert fed["offset"][0] == (position - 1) % memory.capacity


def _score_past(model: Model, folder: Path, edge: int, following: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the scores of `following` by the saved stream, as if it passed `edge` tokens in the middle of them."""
    stream = model.restore(folder / "soak.safetensors")
    memory = stream.memory
    turns = (edge - len(following) // 2 - memory.offset) // memory.capacity
    memory.offset += turns * memory.capacity  # so that the rows stay in their slots
    memory.position += turns * memory.capacity
    stream.position += turns * memory.capacity
    assert memory.offset < edge < memory.offset + len(following)
    return stream.feed(following).log_probs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="with same_length, on bytes or other small ids")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(options.tokens, Path(folder), options.bundle, show=True)
    print(f"{result.tokens:,} tokens in {result.seconds:,.0f} s, {result.nats / result.tokens:.6f} nats each")
    first, last = result.resident[0], result.resident[-1]
    begun = min(MILLION, result.tokens // 10)
    print(f"resident memory after the first {begun:,} tokens: {first:.2f} MB")
    print(f"resident memory after the last one: {last:.2f} MB, which is {100 * (last / first - 1):+.2f} %")
    print(f"largest difference from a stream without the past: {result.difference:.2e} nats")
    print(f"with counters that pass 2**31, 2**32 and 2**53:     {result.large_difference:.2e} nats")


if __name__ == "__main__":
    main()
