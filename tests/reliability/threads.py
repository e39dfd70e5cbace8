"""Run streams in threads while sessions open and close; scores must be bit-equal to streams run one after another.

python -m tests.reliability.threads                8 threads, 200 rounds of each bundle
python -m tests.reliability.threads --rounds 5
python -m tests.reliability.threads --threads 64 --rounds 10
"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.helpers.paths import GOLDEN
from xlruntime import Model, Sampling, load

__all__ = ["BUNDLES", "Threads", "run_threads"]

BUNDLES = ("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "post_lnorm_zeros", "reformer_band")
THREADS = 8
TOKENS = 190  # of a document: the Reformer reads 200

Scores = npt.NDArray[np.float32]


@dataclass
class Threads:
    """The number of streams and feeds, and of streams whose scores differed from running alone."""

    bundle: str
    streams: int = 0
    feeds: int = 0
    reopened: int = 0  # sessions that were closed during the feeds
    different: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.bundle:29} {self.streams:6,} streams, {self.feeds:7,} feeds, sessions closed {self.reopened:6,} "
            f"times, {self.different} differ; {self.seconds:.0f} s"
        )


def run_threads(bundle: str, rounds: int, threads: int = THREADS, seed: int = 0) -> Threads:
    """Run `threads` streams at once in each round, then one after another, and count different scores."""
    model = load(GOLDEN / bundle / "bundle", threads=1)
    found, start = Threads(bundle), time.monotonic()
    done = threading.Event()
    closer = threading.Thread(target=_close_sessions, args=(model, done, found))
    closer.start()
    try:
        with ThreadPoolExecutor(threads) as pool:
            for turn in range(rounds):
                works = [np.random.default_rng((seed, turn, number)).integers(0, 2**31) for number in range(threads)]
                together = list(pool.map(lambda work: _walk(model, int(work)), works))
                for work, (scores, feeds) in zip(works, together, strict=True):
                    alone, _ = _walk(model, int(work))
                    found.streams += 1
                    found.feeds += feeds
                    found.different += not np.array_equal(scores, alone)
    finally:
        done.set()
        closer.join()
    found.seconds = time.monotonic() - start
    return found


def _walk(model: Model, work: int) -> tuple[Scores, int]:
    """Feed a document in pieces of random lengths, then generate; `work` determines everything."""
    rng = np.random.default_rng(work)
    ids = rng.integers(0, model.bundle.vocab_size, TOKENS)
    stream = model.stream(segment_len=None if rng.random() < 0.5 else int(rng.integers(1, 17)))
    parts, at = [], 0
    while at < len(ids):
        size = int(rng.integers(1, 40))
        parts.append(stream.feed(ids[at : at + size]).log_probs)
        at += size
    drawn = list(stream.generate(max_tokens=3, sampling=Sampling(seed=work)))
    return np.concatenate([*parts, np.array(drawn, np.float32)]), len(parts)


def _close_sessions(model: Model, done: threading.Event, found: Threads) -> None:
    while not done.wait(0.02):
        for purpose in ("generate", "score"):
            model.release(purpose)
            found.reopened += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=THREADS, help="streams that run at once")
    chosen = parser.parse_args()
    for bundle in BUNDLES:
        print(run_threads(bundle, chosen.rounds, chosen.threads), flush=True)


if __name__ == "__main__":
    main()
