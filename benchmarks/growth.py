"""Feed one stream, and print at each power of ten how long a token takes, and the largest resident memory so far.

    python -m benchmarks.growth [--longest 10000000]

The model has random weights. Neither figure may grow with the length.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

import click
import numpy as np

import xlruntime
from benchmarks.sides import Ready, Side, text_ids
from benchmarks.transformer_xl import TINY, prepare

__all__ = ["main"]

SHAPE = {"n_token": 256, "n_layer": 6, "d_model": 192, "n_head": 3, "d_head": 64, "d_inner": 768}
FEED = 1_000  # tokens


def stream(bundle: Path, threads: int) -> Ready:
    """Return a side whose steps feed one stream."""
    walk = xlruntime.load(bundle, threads=threads).stream()

    def feed() -> None:
        walk.feed(text_ids(walk.position, FEED) % walk.engine.bundle.vocab_size)

    return Ready(feed, {"tokens": FEED}, warm=1)


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--longest", default=1_000_000, show_default=True, help="Tokens of the stream.")
@click.option("--threads", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1))
@click.option("--tiny", is_flag=True, help="A small shape, to try the command out.")
def main(longest: int, threads: int, tiny: bool) -> None:
    """Print the figures at each power of ten; a time is the median since the one before."""
    tokens, read = FEED, 0
    with tempfile.TemporaryDirectory() as scratch:
        bundle = prepare(Path(scratch), TINY if tiny else SHAPE)[1]
        with closing(Side(stream, bundle, threads)) as walk:
            while tokens <= longest:
                turn = walk.measure((tokens - read) // FEED)
                microseconds = np.median(turn.clock.rounds[-1]).item() / FEED * 1e6
                print(f"{tokens:11,} tokens {microseconds:8.1f} µs a token {turn.peak_rss_mb:8.1f} MB", flush=True)
                tokens, read = 10 * tokens, tokens


if __name__ == "__main__":
    main()
