"""Figure 5 of the Reformer paper: LSH attention by number of layers (left), and speed by length (right).

python -m experiments.reformer_figure5 layers --out RUNS --text war_and_peace.txt
python -m experiments.reformer_figure5 speed --out RUNS

`layers` also draws the curves on the training text: RUNS/SCALE/reformer_figure5_layers.png.
`speed` holds the tokens of a batch constant, and times one layer of attention, forwards and backwards: full attention,
and LSH attention by rule `paper` with several chunk lengths and rounds. A figure is the median of the repetitions in
milliseconds, taken in turns. The number of buckets grows with the length, so that two chunks hold what a bucket holds.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import click
import torch

from experiments.orderings import Ordering
from experiments.reformer_scales import SCALES, Point, compare, config_of, draw, variant
from experiments.running import Experiment, ExperimentCommand, experiment_options, print_rows
from xlexport.figures import check_picture
from xltraining.reformer import ReformerConfig
from xltraining.reformer.attention import Context, SharedAttention

__all__ = ["ORDERINGS", "VARIANTS", "attention_of", "main", "seconds"]

VARIANTS = (
    variant("1 layer", attn_layers=("lsh",)),
    variant("2 layers", run="LSH-2", n_hashes=2),  # a model of Figure 4
    variant("4 layers", attn_layers=("lsh",) * 4),
)
ORDERINGS = (
    Ordering("2 layers better than 1", "2 layers", "1 layer"),
    Ordering("4 layers better than 2", "4 layers", "2 layers"),
)
# Kind, chunk length, rounds.
KINDS = (("full", 64, 1), ("LSH", 32, 1), ("LSH", 32, 2), ("LSH", 64, 1), ("LSH", 64, 4), ("LSH", 128, 2))


@click.group()
def main() -> None:
    """Train models with more or fewer layers, or measure the speed of attention."""


@experiment_options(scales=SCALES, config_of=config_of)
def layers(experiment: Experiment) -> None:
    """Train models of 1, 2 and 4 LSH layers."""
    compare(experiment, "reformer_figure5_layers", VARIANTS, ORDERINGS, ("LSH layers",))


def attention_of(kind: str, chunk: int, rounds: int, length: int) -> SharedAttention:
    """Return a layer of attention, 4 heads of 64, for rows of some length."""
    buckets = max(2, length // chunk // 2 * 2)
    config = ReformerConfig(
        rule="paper",
        attn_layers=("full" if kind == "full" else "lsh",),
        n_hashes=rounds,
        n_buckets=(buckets,),
        chunk_length=chunk,
        full_chunk=64,
        position="sinusoid",
        max_positions=0,
        dropout=0.0,
    )
    torch.manual_seed(0)
    return SharedAttention(config, 0)


def seconds(attention: SharedAttention, batch: int, length: int) -> float:
    """Return the time of one pass forwards and backwards."""
    hidden = torch.randn(batch, length, attention.config.d_model, requires_grad=True)
    context = Context(0, hidden.new_zeros(batch, 0, attention.config.d_model))
    started = time.perf_counter()
    attention(hidden, context)[0].sum().backward()
    return time.perf_counter() - started


@click.command(cls=ExperimentCommand)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of results.")
@click.option("--tokens", default=8192, show_default=True, type=click.IntRange(1), help="Tokens of a batch.")
@click.option("--shortest", default=128, show_default=True, type=click.IntRange(1), help="Tokens of its shortest rows.")
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Repetitions; one more is not counted."
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="CPU threads.")
def speed(out: Path, tokens: int, shortest: int, repeats: int, threads: int) -> None:
    """Measure attention by length of the rows.

    A batch has equally many tokens in few long rows and in many short ones.
    """
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "reformer_figure5_speed.png"
    check_picture(picture)
    lengths = [shortest << power for power in range((tokens // shortest).bit_length())]
    found: dict[str, list[Point]] = {}
    for length in lengths:
        times: dict[str, list[float]] = {}
        for turn in range(repeats + 1):
            for kind, chunk, rounds in KINDS:
                name = "full attention" if kind == "full" else f"LSH, chunks of {chunk}, rounds {rounds}"
                spent = seconds(attention_of(kind, chunk, rounds, length), tokens // length, length)
                if turn:
                    times.setdefault(name, []).append(spent)
        for name, each in times.items():
            found.setdefault(name, []).append((length, 1000 * statistics.median(each)))
    (out / "reformer_figure5_speed.json").write_text(
        json.dumps({"tokens": tokens, "ms": found}, indent=1) + "\n", "utf-8"
    )
    rows = [(name, *(f"{ms:.0f}" for _, ms in points)) for name, points in found.items()]
    print_rows((f"ms for {tokens:,} tokens", *map(str, lengths)), rows)
    draw(picture, found, "length", f"ms for {tokens:,} tokens", log=True)


main.add_command(layers, "layers")
main.add_command(speed)

if __name__ == "__main__":
    main()
