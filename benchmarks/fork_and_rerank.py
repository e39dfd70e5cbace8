"""Measure time and memory for each candidate after a long context, in three ways that take turns.

python -m benchmarks.fork_and_rerank BUNDLE DOCUMENT [CONTEXT [LENGTH]]

The context is the document's first CONTEXT tokens (20,000). The candidates are the pieces of LENGTH tokens (20) that
follow it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

import xlruntime
from xlexport.bench.measuring import Clock, disturbance, seconds

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
    clocks = {name: Clock() for name in ways}
    for _ in range(ROUNDS):
        for name, (score, number) in ways.items():
            waiting = iter(candidates)
            clocks[name].round(lambda: score(next(waiting)), number)  # noqa: B023  # called in this turn
    scores = {name: score(candidates[0]).log_probs[-length:] for name, (score, _) in ways.items()}
    print(f"{model.bundle.architecture}, context {context:,} tokens, candidates of {length}, median of each:")
    for name, clock in clocks.items():
        print(f"{name:24}{1000 * clock.quantile(0.5):12.2f} ms")
    if reason := disturbance(*clocks.values()):
        print(f"not to be compared: {reason}")
    for name in ("fork and feed", "score_continuation"):
        apart = float(abs(scores[name] - scores["read the context again"]).max())
        print(f"{name}: within {apart:.1e} nats of reading the context again")
    process = psutil.Process()
    resident = [process.memory_info().rss]
    for candidate in candidates:
        stream.score_continuation(candidate)
    resident.append(process.memory_info().rss)
    forks: list[xlruntime.Stream] = []
    took = seconds(lambda: forks.extend(stream.fork() for _ in range(CANDIDATES))) / CANDIDATES
    resident.append(process.memory_info().rss)
    scored, forked = np.diff(resident) / 1e6
    print(f"memory of a stream {stream.memory.nbytes / 1e6:.2f} MB, a fork {1000 * took:.2f} ms")
    print(f"resident memory: {scored:+.2f} MB for all continuations, {forked / len(forks):+.2f} MB for each fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
