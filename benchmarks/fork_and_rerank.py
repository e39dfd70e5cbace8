"""Measure time and memory for each candidate after a long context, in three ways that take turns.

python -m benchmarks.fork_and_rerank BUNDLE DOCUMENT [CONTEXT [LENGTH]]

The context is the document's first CONTEXT tokens (20,000). The candidates are the pieces of LENGTH tokens (20) that
follow it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

import xlruntime

CANDIDATES, ROUNDS = 16, 7
Ids = npt.NDArray[np.int64]


def main(bundle: Path, document: Path, context: int = 20_000, length: int = 20) -> None:
    """Print a line for each way, and the largest difference of their scores."""
    model = xlruntime.load(bundle, threads=1)
    ids = model.tokenizer.encode(document.read_bytes()[: 8 * (context + CANDIDATES * length)])
    known, *candidates = np.split(ids[: context + CANDIDATES * length], context + length * np.arange(CANDIDATES))
    stream = model.stream()
    stream.feed(known)

    ways: dict[str, tuple[Callable[[Ids], xlruntime.Scores], int]] = {
        "read the context again": (lambda candidate: model.stream().feed(np.concatenate([known, candidate])), 1),
        "fork and feed": (lambda candidate: stream.fork().feed(candidate), CANDIDATES),
        "score_continuation": (stream.score_continuation, CANDIDATES),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    scores: dict[str, npt.NDArray[np.float32]] = {}
    for _ in range(ROUNDS):
        for name, (score, number) in ways.items():
            for candidate in candidates[:number]:
                started = time.perf_counter()
                found = score(candidate)
                seconds[name].append(time.perf_counter() - started)
                if candidate is candidates[0]:
                    scores[name] = found.log_probs[-length:]
    print(f"{model.bundle.architecture}, context {context:,} tokens, candidates of {length}, median of each:")
    for name, each in seconds.items():
        print(f"{name:24}{1000 * statistics.median(each):12.2f} ms")
    for name in ("fork and feed", "score_continuation"):
        apart = float(abs(scores[name] - scores["read the context again"]).max())
        print(f"{name}: within {apart:.1e} nats of reading the context again")
    process = psutil.Process()
    resident = [process.memory_info().rss]
    for candidate in candidates:
        stream.score_continuation(candidate)
    resident.append(process.memory_info().rss)
    started = time.perf_counter()
    forks = [stream.fork() for _ in range(CANDIDATES)]
    took = (time.perf_counter() - started) / len(forks)
    resident.append(process.memory_info().rss)
    scored, forked = np.diff(resident) / 1e6
    print(f"memory of a stream {stream.memory.nbytes / 1e6:.2f} MB, a fork {1000 * took:.2f} ms")
    print(f"resident memory: {scored:+.2f} MB for all continuations, {forked / len(forks):+.2f} MB for each fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
