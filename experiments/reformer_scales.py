"""Sizes of the Reformer paper's experiments, the models of its Figures 3 to 5, and their pictures.

All models have rotary positions, because a short training does not learn to use other ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.orderings import Ordering, print_orderings
from experiments.running import STREAMS, Experiment, mean_and_error, print_rows, standard_error
from experiments.scales import Scale, Variant
from xlexport.figures import check_picture, save_picture
from xltraining.evaluation import evaluate
from xltraining.language_model import LanguageModel
from xltraining.reformer import ReformerConfig

__all__ = ["SCALES", "Point", "bits", "compare", "config_of", "draw", "point", "variant"]

Point = tuple[float, ...]
"""A point of a plot: across, up, and the standard error of up if it is known."""

SCALES = {
    "tiny": Scale(
        {"d_model": 64, "n_head": 2, "d_head": 32, "d_inner": 128, "n_buckets": (16,), "chunk_length": 16},
        tgt_len=128, steps=300, batch_size=8, learning_rate=4e-3, warmup_steps=30, seeds=2, most=400_000,
    ),
    "quick": Scale(
        {"d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512, "n_buckets": (32,), "chunk_length": 32},
        tgt_len=512, steps=500, batch_size=2, learning_rate=3e-3, warmup_steps=50, seeds=3, held_out=32_768, bf16=True,
        reversible=False,
    ),
    "small": Scale(
        {"d_model": 256, "n_head": 4, "d_head": 64, "d_inner": 1024, "n_buckets": (64,), "chunk_length": 64},
        tgt_len=1024, steps=4000, batch_size=8, learning_rate=2e-3, warmup_steps=300, seeds=3,
    ),
    "paper": Scale(
        {"d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 4096, "n_buckets": (32, 32), "chunk_length": 128},
        tgt_len=65_536, steps=20_000, batch_size=8, learning_rate=5e-4, warmup_steps=1000, seeds=1,
    ),
}  # fmt: skip


def config_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> ReformerConfig:
    """Return the configuration of a model; by default it has two layers, and no memory between segments."""
    config = ReformerConfig(
        n_token=n_token,
        tgt_len=scale.tgt_len,
        mem_len=scale.tgt_len,
        rule="paper",
        position="rotary",
        max_positions=0,
        streams="mean",
        dropout=0.0,
        attn_layers=("lsh",) * 2,
        **scale.model,
    )
    return replace(config, **dict(variant.model))


def variant(name: str, *, run: str = "", training: tuple[tuple[str, Any], ...] = (), **model: Any) -> Variant:
    """Return a model of a figure with further fields of its configuration; `run` and `training` as in `Variant`."""
    return Variant(name, model=tuple(model.items()), training=training, run=run)


def bits(experiment: Experiment, model: LanguageModel) -> float:
    """Return bits per unit of the held-out text, read in segments of the training's length."""
    return evaluate(model, experiment.held_out, experiment.scale.tgt_len, STREAMS)


def compare(
    experiment: Experiment,
    figure: str,
    variants: Sequence[Variant],
    orderings: Sequence[Ordering],
    columns: tuple[str, ...],
    cells: Callable[[str], tuple[str, ...]] = lambda name: (name,),
) -> None:
    """Train the models; print bits of the held-out text and differences, and draw curves of the training text.

    Args:
        figure: name of the .json and .png file.
        columns: titles; cells: what they hold for the name of a model, without the bits at the end.
    """
    picture = experiment.folder / f"{figure}.png"
    check_picture(picture)
    chosen = experiment.chosen(variants)
    experiment.run(chosen)
    seeds = range(experiment.seeds)
    found = {one.name: [bits(experiment, experiment.trained(one, seed)) for seed in seeds] for one in chosen}
    lines = _curves(experiment, chosen)
    experiment.keep(figure, {"bits": found, "curves": lines})
    print_rows((*columns, "bits"), [(*cells(name), mean_and_error(one)) for name, one in found.items()])
    print_orderings(orderings, found)
    draw(picture, lines, "updates", "bits per unit of the training text")


def point(across: float, up: Sequence[float]) -> Point:
    """Return the point of the mean of the seeds."""
    return across, statistics.fmean(up), standard_error(up)


def _curves(experiment: Experiment, variants: Sequence[Variant]) -> dict[str, list[Point]]:
    """Return bits of the training text by number of updates, as means of the seeds, by name of the model."""
    found = {}
    for one in variants:
        seeds = [experiment.curve(one, seed) for seed in range(experiment.seeds)]
        found[one.name] = [point(same[0][0], [bits for _, bits in same]) for same in zip(*seeds, strict=True)]
    return found


def draw(path: Path, lines: Mapping[str, Sequence[Point]], across: str, up: str, log: bool = False) -> None:
    """Draw lines of points with their standard errors into a .png or .svg file; `check_picture` comes before."""
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        marker = "." if len(points) < 20 else ""
        columns: list[tuple[float, ...]] = list(zip(*points, strict=True))
        errors = columns[2] if len(columns) > 2 else None
        axes.errorbar(columns[0], columns[1], errors, label=name, marker=marker, capsize=2, elinewidth=0.8)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, path)
