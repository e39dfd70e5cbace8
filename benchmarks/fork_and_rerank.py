"""Measure time and memory for each candidate after a long context, in three ways that take turns.

    python -m benchmarks.fork_and_rerank BUNDLE DOCUMENT [CONTEXT [LENGTH]]

The context is the document's first CONTEXT tokens (20,000). The candidates are the pieces of LENGTH tokens (20) that
follow it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import psutil

import xlruntime
from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, disturbance, seconds, take_turns

__all__ = ["main"]

CANDIDATES, ROUNDS = 16, 7
AGAIN = "read the context again"
Ids = npt.NDArray[np.int64]


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.argument("context", type=int, default=20_000)
@click.argument("length", type=int, default=20)
def main(bundle: Path, document: Path, context: int, length: int) -> None:
    """Print a line for each way, and the largest difference of their scores."""
    model = xlruntime.load(bundle, threads=1)
    ids = model.tokenizer.encode(document.read_bytes()[: 8 * (context + CANDIDATES * length)])
    known, *candidates = np.split(ids[: context + CANDIDATES * length], context + length * np.arange(CANDIDATES))
    stream = model.stream()
    stream.feed(known)

    ways: dict[str, tuple[Callable[[Ids], xlruntime.Scores], int]] = {
        AGAIN: (lambda candidate: model.stream().feed(np.concatenate([known, candidate])), 1),
        "fork and feed": (lambda candidate: stream.fork().feed(candidate), CANDIDATES),
        "score_continuation": (stream.score_continuation, CANDIDATES),
    }
    clocks, turns = {name: Clock() for name in ways}, []
    for name, (score, repeats) in ways.items():
        run = partial(_score_next, score, itertools.cycle(candidates))
        turns.append(partial(clocks[name].round, run, repeats))
    take_turns(turns, ROUNDS)
    scores = {name: score(candidates[0]).log_probs[-length:] for name, (score, _) in ways.items()}
    click.echo(f"{model.bundle.architecture}, context {context:,} tokens, candidates of {length}, median of each:")
    for name, clock in clocks.items():
        click.echo(f"{name:24}{1000 * clock.quantile(0.5):12.2f} ms")
    if reason := disturbance(*clocks.values()):
        click.echo(f"not to be compared: {reason}")
    for name in list(ways)[1:]:
        click.echo(f"{name}: within {abs(scores[name] - scores[AGAIN]).max():.1e} nats of reading the context again")
    print_memory(stream, candidates)


def _score_next(score: Callable[[Ids], object], candidates: itertools.cycle[Ids]) -> None:
    score(next(candidates))


def print_memory(stream: xlruntime.Stream, candidates: list[Ids]) -> None:
    """Print how much the resident memory grows by continuations, and by forks that are kept."""
    process = psutil.Process()
    resident = [process.memory_info().rss]
    for candidate in candidates:
        stream.score_continuation(candidate)
    resident.append(process.memory_info().rss)
    forks: list[xlruntime.Stream] = []
    duration = seconds(lambda: forks.extend(stream.fork() for _ in candidates)) / len(candidates)
    resident.append(process.memory_info().rss)
    scored, forked = np.diff(resident) / 1e6
    click.echo(f"memory of a stream {stream.memory.nbytes / 1e6:.2f} MB, a fork {1000 * duration:.2f} ms")
    click.echo(f"resident memory: {scored:+.2f} MB for all continuations, {forked / len(forks):+.2f} MB for each fork")


if __name__ == "__main__":
    main()
