"""Measure how much slower a vanilla Transformer is that moves one token at a time: Table 9 of the Transformer-XL paper.

    python -m benchmarks.sliding_transformer [--length 3800] [--folder KEPT] [--json FILE]

Both have the enwik8 shape (12 layers of width 512, 8 heads of 64, d_inner 2048, 256 bytes), random weights, and see the
same number of tokens. The vanilla model computes a whole window of L tokens for each token that it scores, but its
output layer only at the last position. It runs in PyTorch eager, with fused causal attention, and in ONNX Runtime. Its
time is measured on a few windows. The bundle has a memory of L and scores in segments. Segments of 80 tokens with
distances clamped at 820 are the paper's enwik8 evaluation. Longer segments have no clamping: with `same_length` scores
do not depend on the segments' length. The paper's ratios were measured on its authors' GPUs, with their code on both
sides.

Every side runs warm in its own process, in turns. SGEMM is measured before and after each round. The floor is the
arithmetic at the best SGEMM; for the vanilla model only half of the attention counts. `--tiny` is a small shape, to try
the command out. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.measuring import Figures, add_to_json, common_options, headline, measure, print_disturbances, ratio
from benchmarks.sides import Side
from benchmarks.transformer_xl_sides import SHAPE, TINY, Case, ours, prepared
from benchmarks.vanilla_transformer import eager, onnx_runtime

PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}  # Dai et al. (2019), Table 9: times slower than theirs
PUBLISHED = "bundle, segments of 80, clamped"
SEGMENTS = (80, 320, 640)
VANILLA = ("vanilla, PyTorch eager", "vanilla, ONNX Runtime")


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option(
    "--length", "lengths", multiple=True, type=click.IntRange(1), help=f"Default: {', '.join(map(str, PAPER))}."
)
@click.option(
    "--windows", default=2, show_default=True, type=click.IntRange(1), help="Windows of the vanilla model in a round."
)
@click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(1), help="Segments of the bundle in a round."
)
@common_options
def main(
    lengths: tuple[int, ...],
    rounds: int,
    windows: int,
    repeats: int,
    threads: int,
    tiny: bool,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Measure and print each length in turn."""
    shape = TINY if tiny else SHAPE
    with tempfile.TemporaryDirectory() as scratch:
        folder, bundle = prepared(folder or Path(scratch), shape)
        for length in lengths or PAPER:
            figures = _measure(folder, bundle, shape, length, rounds, windows, repeats, threads)
            _print_table(length, figures)
            if file is not None:
                add_to_json(file, str(length), figures)


def _measure(
    folder: Path,
    bundle: Path,
    shape: dict[str, int],
    length: int,
    rounds: int,
    windows: int,
    repeats: int,
    threads: int,
) -> Figures:
    def own(segment_len: int, clamp_len: int) -> Callable[[], Side]:
        case = Case(segment_len, length, same_length=True, clamp_len=clamp_len)
        return lambda: Side(ours, bundle, threads, case.plain(), "auto")

    makers: dict[str, Callable[[], Side]] = {
        VANILLA[0]: lambda: Side(eager, shape, length, threads),
        VANILLA[1]: lambda: Side(onnx_runtime, folder, shape, length, threads),
        PUBLISHED: own(80, 820),
    }
    makers |= {f"bundle, segments of {segment}": own(segment, -1) for segment in SEGMENTS}
    steps = {name: windows if name in VANILLA else repeats for name in makers}
    figures = measure(makers, rounds, steps, threads) | {"length": length, "shape": shape, "paper": PAPER.get(length)}
    sides = figures["sides"]
    if any(side["disturbance"] for side in sides.values()):
        return figures
    for key in ("best", "median"):
        times = {name: side[key] / side["tokens"] for name, side in sides.items()}
        own_time = min(seconds for name, seconds in times.items() if name not in VANILLA)
        figures[f"times_slower_{key}"] = {
            name: {"published_segments": times[name] / times[PUBLISHED], "best_segments": times[name] / own_time}
            for name in VANILLA
        }
    return figures


def _print_table(length: int, figures: Figures) -> None:
    print(headline(f"attention length {length:,}", figures))
    print(f"  {'side':36}{'best ms/token':>15}{'median':>10}{'user s':>9}{'system s':>10}{'x floor':>9}")
    for name, side in figures["sides"].items():
        per_token = 1e3 / side["tokens"]
        print(
            f"  {name:36}{side['best'] * per_token:15.3f}{side['median'] * per_token:10.3f}"
            f"{side['user'] / side['tokens']:9.4f}{side['system'] / side['tokens']:10.4f}"
            f"{ratio(side, side['best'] / side['floor'], 9)}"
        )
    print_disturbances(figures)
    for name in VANILLA if "times_slower_best" in figures else ():
        best, median = figures["times_slower_best"][name], figures["times_slower_median"][name]
        print(
            f"  {name}, times slower than published segments: {best['published_segments']:,.0f} "
            f"(median {median['published_segments']:,.0f}); than the best segments: {best['best_segments']:,.0f} "
            f"(median {median['best_segments']:,.0f})"
        )
    paper = figures["paper"]
    if paper is not None:
        print(f"  the paper's Table 9, on other machines: {paper:,}")


if __name__ == "__main__":
    main()
