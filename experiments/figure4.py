"""Figure 4 of the Transformer-XL paper: score by attention length, of the models of Table 6, 7 or 10.

python -m experiments.figure4 RUNS/SCALE/table6.json --out figure4.png
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from xlexport.figures import check_picture, plain, save_picture

__all__ = ["draw_lengths", "main"]


def draw_lengths(bits: Mapping[str, Sequence[Mapping[int, float]]], path: Path) -> None:
    """Draw bits by attention length, a line for each model, with the standard error over its seeds.

    Args:
        bits: for each model and seed, bits by attention length.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for name, seeds in bits.items():
        lengths = sorted(seeds[0])
        means = [statistics.fmean(seed[length] for seed in seeds) for length in lengths]
        errors = None
        if len(seeds) > 1:
            errors = [statistics.stdev(seed[length] for seed in seeds) / math.sqrt(len(seeds)) for length in lengths]
        axes.errorbar(lengths, means, yerr=errors, marker="o", markersize=4, capsize=3, label=plain(name))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("attention length at evaluation, tokens")
    axes.set_ylabel("bits per token")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_picture(figure, path)


@click.command()
@click.argument("scores", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Picture, .png or .svg.")
def main(scores: Path, out: Path) -> None:
    """Draw the attention lengths that a table kept in SCORES, its JSON file."""
    check_picture(out)
    kept = json.loads(scores.read_text("utf-8"))
    draw_lengths(
        {
            name: [{int(length): value for length, value in seed.items()} for seed in model["bits"]]
            for name, model in kept.items()
        },
        out,
    )
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
