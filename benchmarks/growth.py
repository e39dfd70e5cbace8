"""Draw how the cost of a token grows: with length, memory, batch, layers, vocabulary, threads and processes.

    python -m benchmarks.growth --out growth.png [--json FILE] [--panel length] [--longest 10000000] [--folder KEPT]

A panel changes one setting of a model with random weights. Steps run on full memory; times are medians.

- length: one stream, and the largest resident memory of its process so far (dotted), which must be flat.

- processes: of one thread each, which run a step at once.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np

import xlruntime
from benchmarks import sides
from benchmarks.sides import PATH, Figures, Ready, Side, text_ids
from benchmarks.transformer_xl import TINY, prepare
from xlexport.bench.sides import GraphSide, StepWork
from xlexport.errors import XlexportError
from xlexport.figures import check_picture, save_picture

__all__ = ["main"]

SHAPE = {"n_token": 256, "n_layer": 6, "d_model": 192, "n_head": 3, "d_head": 64, "d_inner": 768}
MODELS = {"layers": ("n_layer", (1, 3, 6, 12)), "vocabulary": ("n_token", (256, 1_000, 10_000, 100_000))}
PANELS = ("length", "memory", "batch", *MODELS, "threads", "processes")
FEED = 1_000  # tokens


@functools.cache
def steps_of(bundle: Path, threads: int, mem_len: int | None = None, rows: int = 1) -> GraphSide:
    """Return steps with full memory, in this process."""
    model = xlruntime.load(bundle, threads=threads)
    evaluation = model.evaluation(mem_len=mem_len)
    return GraphSide(model, StepWork("score", evaluation, evaluation.segment_len, rows))


def run_step(*setting: Any) -> None:
    """Run one of `steps_of(*setting)`."""
    steps_of(*setting).step()


def steps(*setting: Any) -> Ready:
    """Return a side that runs `steps_of(*setting)`."""
    return Ready(partial(run_step, *setting), {"tokens": steps_of(*setting).work.tokens})


def processes(bundle: Path, number: int) -> Ready:
    """Return a side that runs a step in each of several processes at once."""
    pools = [get_context("spawn").Pool(1) for _ in range(number)]

    def run() -> None:
        for step in [pool.apply_async(run_step, (bundle, 1)) for pool in pools]:
            step.get()

    return Ready(run, {"tokens": number * steps_of(bundle, 1).work.tokens}, elsewhere=True)


def stream(bundle: Path, threads: int) -> Ready:
    """Return a side whose steps feed one stream."""
    walk = xlruntime.load(bundle, threads=threads).stream()

    def feed() -> None:
        walk.feed(text_ids(walk.position, FEED) % walk.engine.bundle.vocab_size)

    return Ready(feed, {"tokens": FEED}, warm=1)


def marks_of(bundle: Path, threads: int, longest: int) -> list[Figures]:
    """Feed a stream; print and return its figures at each power of ten."""
    marks, tokens, read = list[Figures](), FEED, 0
    with closing(Side(stream, bundle, threads)) as walk:
        while tokens <= longest:
            turn = walk.measure((tokens - read) // FEED)
            microseconds = np.median(turn.clock.rounds[-1]).item() / FEED * 1e6
            mark = {"tokens": tokens, "µs a token": microseconds, "MB at most": turn.peak_rss_mb}
            print("  ".join(f"{name} {figure:,.1f}" for name, figure in mark.items()), flush=True)
            marks.append(mark)
            tokens, read = 10 * tokens, tokens
    return marks


def sides_of(panel: str, base: Path, threads: int, models: dict[int, Path]) -> dict[int, Sequence[Any]]:
    """Return the sides of a panel by their places on its axis: functions and their arguments."""
    counts = sorted({threads, *(2**n for n in range(threads.bit_length()))})
    points: dict[str, dict[int, Sequence[Any]]] = {
        "memory": {mem_len: (steps, base, threads, mem_len) for mem_len in (32, 128, 512, 2_048)},
        "batch": {rows: (steps, base, threads, None, rows) for rows in (1, 4, 16)},
        "threads": {count: (steps, base, count) for count in counts},
        "processes": {count: (processes, base, count) for count in counts},
    }
    return points.get(panel) or {n: (steps, path, threads) for n, path in models.items()}


def draw(panels: dict[str, Figures], path: Path) -> None:
    """Draw each panel; all share the axis of times."""
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    columns = min(4, len(panels))
    picture = Figure(figsize=(16, 8), layout="constrained")
    axes = picture.subplots(-(-len(panels) // columns), columns, sharey=True, squeeze=False).ravel()
    for plot in axes[len(panels) :]:
        plot.set_axis_off()
    for plot, (panel, figures) in zip(axes, panels.items(), strict=False):
        line = {int(place): side["median"] / side["tokens"] * 1e6 for place, side in figures.get("sides", {}).items()}
        if marks := figures.get("marks"):
            line = {mark["tokens"]: mark["µs a token"] for mark in marks}
            memory = plot.twinx()
            memory.plot(list(line), [mark["MB at most"] for mark in marks], "k:")
            memory.set(ylabel="MB at most", ylim=(0, None))
        plot.plot(list(line), list(line.values()), "o-")
        plot.set(xscale="log", yscale="log", xlabel=panel, ylabel="µs a token")
    save_picture(picture, path)


@click.command(help=__doc__)
@click.option("--out", type=PATH, required=True, help="File of the figure, .png or .svg.")
@click.option("--panel", "panels", multiple=True, type=click.Choice(PANELS), help="Default: all. May be repeated.")
@click.option("--longest", default=1_000_000, show_default=True, help="Tokens of the stream.")
@sides.common_options
def main(out: Path, panels: Sequence[str], longest: int, threads: int, **options: Any) -> None:
    """Measure and print each panel, and draw all."""
    try:
        check_picture(out)
    except XlexportError as error:
        raise click.ClickException(str(error)) from None
    drawn, shape = dict[str, Figures](), TINY if options["tiny"] else SHAPE
    with tempfile.TemporaryDirectory() as scratch:
        folder = options["folder"] or Path(scratch)
        base = prepare(folder, shape)[1]
        for panel in panels or PANELS:
            if panel == "length":
                drawn[panel] = {"marks": marks_of(base, threads, longest)}
            else:
                field, sizes = MODELS.get(panel, ("", ()))
                models = {n: prepare(folder, {**shape, field: n})[1] for n in sizes[: 2 if options["tiny"] else None]}
                points = sides_of(panel, base, threads, models)
                makers = {str(place): partial(Side, *side) for place, side in points.items()}
                drawn[panel] = sides.measure(makers, options["rounds"], 5, threads)
                sides.print_table(panel, drawn[panel])
            sides.add_to_json(options["file"], panel, drawn[panel])
    draw(drawn, out)


if __name__ == "__main__":
    main()
