"""Compare speed and memory of Reformer bundles with Hugging Face's and reformer-pytorch's models and full attention.

    python -m benchmarks.reformer_beside_peers [--part whole] [--tokens 16384] [--folder KEPT] [--json FILE]

Width 512, 8 heads of 64, chunks of 128, 4 rounds of hashing, random weights. Parts:

* whole: a document at once under rule `chunk`, six layers (local, lsh) x 3, the same weights in Hugging Face's model.
  That model runs as installed, and again with glibc set to keep large blocks instead of returning them after every use.
* reformer-pytorch: the same, with its own six layers of LSH, and its own chunked feed-forward layers.
* segments: rule `band`, segment by segment with 16,384 tokens of memory: LSH in segments of 16,384 and 4,096, and for
  comparison full attention over the same memory in segments of 512. Only segments with full memory are measured.

Every side runs warm in its own process, in turns. SGEMM is measured before and after each round. `difference` is the
difference of the mean log-probability to ours, in nats; single tokens can differ much if rounding decided a hash.
`--tiny` is a small shape, to try the command out. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.measuring import Figures, add_to_json, common_options, headline, measure, print_disturbances, ratio
from benchmarks.reformer_sides import (
    SHAPE,
    TINY,
    hugging_face,
    ours_segments,
    ours_whole,
    prepared,
    reformer_pytorch,
)
from benchmarks.sides import Side

TUNED = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}" for name in (
    "mmap_threshold=17179869184", "trim_threshold=17179869184", "mmap_max=0"
))}  # fmt: skip
PARTS = ("whole", "reformer-pytorch", "segments")
MEMORY = 16384
WALKS = (("lsh", 16384), ("lsh", 4096), ("full", 512))

Makers = dict[str, Callable[[], Side]]


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: all. May be repeated.")
@click.option("--tokens", default=16384, show_default=True, help="Tokens of the whole pass; a multiple of 256.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Steps of a side in a round.")
@common_options
def main(
    parts: tuple[str, ...],
    tokens: int,
    rounds: int,
    repeats: int,
    threads: int,
    tiny: bool,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Measure and print each part in turn."""
    shape = TINY if tiny else SHAPE
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch)
        for part in parts or PARTS:
            if part == "segments":
                makers, title = _segments(folder, shape, threads), f"{part}, {MEMORY:,} tokens of memory"
            else:
                makers, title = _whole(folder, shape, part, tokens, threads), f"{part}, {tokens:,} tokens"
            figures = measure(makers, rounds, dict.fromkeys(makers, repeats), threads) | {"shape": shape}
            _print_table(title, figures)
            if file is not None:
                add_to_json(file, part, figures)


def _whole(folder: Path, shape: dict[str, int], part: str, tokens: int, threads: int) -> Makers:
    peer = "reformer_pytorch" if part == "reformer-pytorch" else "huggingface"
    checkpoint, bundle = prepared(folder, shape, tokens, peer)

    def eager(environment: dict[str, str] | None) -> Side:
        if peer == "huggingface":
            return Side(hugging_face, checkpoint, tokens, threads, environment=environment)
        return Side(reformer_pytorch, checkpoint, shape, tokens, threads, environment=environment)

    name = "reformer-pytorch" if peer == "reformer_pytorch" else "Hugging Face"
    return {
        "bundle": lambda: Side(ours_whole, bundle, tokens, threads),
        f"{name} as installed": lambda: eager(None),
        f"{name}, allocator tuned": lambda: eager(TUNED),
    }


def _segments(folder: Path, shape: dict[str, int], threads: int) -> Makers:
    bundles = {kind: prepared(folder, shape, 0, kind)[1] for kind in ("lsh", "full")}

    def side(kind: str, segment: int) -> Callable[[], Side]:
        return lambda: Side(ours_segments, bundles[kind], segment, MEMORY, kind == "full", threads)

    names = {"lsh": "LSH", "full": "full attention"}
    return {f"{names[kind]}, segments of {segment:,}": side(kind, segment) for kind, segment in WALKS}


def _print_table(title: str, figures: Figures) -> None:
    print(headline(title, figures))
    sides = list(figures["sides"].values())
    first = {key: sides[0][key] / sides[0]["tokens"] for key in ("best", "median")}
    print(
        f"  {'side':36}{'best s':>9}{'median':>9}{'user':>9}{'system':>8}{'µs/token':>10}"
        f"{'x first: best':>15}{'median':>8}{'x floor':>9}{'peak MB':>9}{'difference':>12}"
    )
    for name, side in figures["sides"].items():
        tokens = side["tokens"]
        by_floor = side["best"] / side["floor"] if "floor" in side else None
        difference = side.get("mean_log_prob_diff")
        print(
            f"  {name:36}{side['best']:9.2f}{side['median']:9.2f}{side['user']:9.2f}{side['system']:8.2f}"
            f"{side['best'] / tokens * 1e6:10.0f}{ratio(side, side['best'] / tokens / first['best'], 15)}"
            f"{ratio(side, side['median'] / tokens / first['median'], 8)}{ratio(side, by_floor, 9)}"
            f"{side['peak_rss_mb']:9,.0f}" + (f"{difference:12.1e}" if difference is not None else "")
        )
    print_disturbances(figures)


if __name__ == "__main__":
    main()
