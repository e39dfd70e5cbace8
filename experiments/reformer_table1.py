"""Table 1 of the Reformer paper, time and memory of kinds of attention by length, and Figure 5, right, speed by length.

One layer of attention, 4 heads of 64, computes forwards and backwards. Time is that of the processor in one thread, so
other programs hardly matter: the median of repetitions that the kinds take in turns. Memory is the peak of a fresh
process, as in Table 3. The number of buckets grows with the length, so that two chunks hold what a bucket holds.
Numbers and a picture of the times are in RUNS/SCALE/reformer_table1.json and .png.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.sides import machine, run_once
from experiments.reformer_table3 import FREE_AT_ONCE, peak_of
from experiments.running import ExperimentCommand, draw, print_rows
from xlexport.figures import check_picture
from xltraining.reformer import ReformerConfig
from xltraining.reformer.attention import Attention, Context, LocalAttention, SharedAttention

__all__ = ["KINDS", "SCALES", "Kind", "growth", "main"]

FULL, LSH = "max(b n_h l d_k, b n_h l²)", "max(b n_h l d_k, b n_h l n_r (4l/n_c)²)"
LARGEST = 2**30  # bytes of the scores of ordinary full attention, which has several tensors of this size
LONGEST = 4  # lengths whose growth is fitted: at short ones, what does not depend on the length counts


@dataclass(frozen=True)
class Kind:
    """A kind of attention.

    Attributes:
        paper: the paper's complexity of both time and memory; None if its table has no such row.
        fields: of the configuration.
    """

    layer: str
    paper: str | None
    fields: Mapping[str, int] = field(default_factory=dict)

    def attention(self, length: int) -> Attention:
        """Return a layer for rows of some length."""
        fields: dict[str, Any] = dict(self.fields)
        if self.layer == "lsh":
            fields["n_buckets"] = (max(2, length // fields["chunk_length"] // 2 * 2),)
        config = ReformerConfig(
            rule="paper", attn_layers=(self.layer,), position="sinusoid", max_positions=0, dropout=0.0, **fields
        )
        torch.manual_seed(0)
        return LocalAttention(config) if self.layer == "local" else SharedAttention(config, 0)

    def is_too_large(self, rows: int, length: int) -> bool:
        """Return whether this would need a matrix of scores (rows, 4, length, length) that is too large."""
        return self.layer == "full" and not self.fields and rows * 4 * length**2 * 4 > LARGEST


def lsh(chunk: int, rounds: int) -> Kind:
    """Return LSH attention with chunks of some length, and some rounds of hashing."""
    return Kind("lsh", LSH, {"chunk_length": chunk, "n_hashes": rounds})


KINDS = {
    "full": Kind("full", FULL),
    "full, memory-efficient": Kind("full", FULL, {"full_chunk": 64}),
    "local, chunks of 64": Kind("local", None, {"local_chunk_length": 64}),
    **{
        f"LSH, chunks of {chunk}, rounds {rounds}": lsh(chunk, rounds)
        for chunk, rounds in ((32, 1), (32, 2), (64, 1), (64, 4), (128, 2))
    },
}
SCALES = {"tiny": (64, 128), "small": tuple(256 << power for power in range(7))}


def seconds(attention: Attention, rows: int, length: int) -> float:
    """Return the processor's time for one pass forwards and backwards."""
    hidden = torch.randn(rows, length, attention.config.d_model, requires_grad=True)
    context = Context(0, hidden.new_zeros(rows, 0, attention.config.d_model))
    started = time.process_time()
    attention(hidden, context)[0].sum().backward()
    return time.process_time() - started


def peak(name: str, rows: int, length: int) -> float:
    """Return the peak of memory in MB of a pass in this process, which should be fresh."""
    torch.set_num_threads(1)
    kind = KINDS[name]
    # 128 tokens are two chunks of each kind, so that all of its code is loaded.
    return peak_of(lambda: seconds(kind.attention(128), 1, 128), lambda: seconds(kind.attention(length), rows, length))


def times(names: list[str], rows: int, length: int, repeats: int) -> dict[str, float]:
    """Return the median time in ms of each kind; the first of its repetitions does not count."""
    spent: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats + 1):
        for name, each in spent.items():
            each.append(1000 * seconds(KINDS[name].attention(length), rows, length))
    return {name: statistics.median(each[1:]) for name, each in spent.items()}


def growth(values: Mapping[int, float]) -> str:
    """Return the power of the length with which values by length grow, fitted to the longest."""
    lengths = sorted(values)[-LONGEST:]
    power = np.polyfit(np.log(lengths), np.log([values[length] for length in lengths]), 1)[0]
    return f"l^{power:.2f}"


@click.command(cls=ExperimentCommand)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of results.")
@click.option("--scale", type=click.Choice(list(SCALES)), default="tiny", show_default=True, help="Lengths.")
@click.option("--tokens", type=click.IntRange(1), help="Tokens of a batch, in rows of equal length.  [default: 1 row]")
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Repetitions; one more is not counted."
)
def main(out: Path, scale: str, tokens: int | None, repeats: int) -> None:
    """Table 1: time and memory of attention by length; with --tokens, Figure 5, right.

    A cell is empty if the scores of full attention alone would need more than 1 GB.
    """
    torch.set_num_threads(1)
    folder = out / scale
    folder.mkdir(parents=True, exist_ok=True)
    name = "reformer_table1" if tokens is None else f"reformer_table1_{tokens}"
    picture, file = folder / f"{name}.png", folder / f"{name}.json"
    check_picture(picture)
    kept: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"machine": machine(), "cells": {}}
    lengths = [length for length in SCALES[scale] if tokens is None or length <= tokens]
    for length in lengths:
        rows = 1 if tokens is None else tokens // length
        names = [name for name, kind in KINDS.items() if not kind.is_too_large(rows, length)]
        if str(length) not in kept["cells"]:
            ms = times(names, rows, length, repeats)
            mb = {name: run_once(peak, name, rows, length, environment=FREE_AT_ONCE) for name in names}
            kept["cells"][str(length)] = {"ms": ms, "MB": mb}
            file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    for unit in ("ms", "MB"):
        columns = {name: {length: kept["cells"][str(length)][unit].get(name) for length in lengths} for name in KINDS}
        table = []
        for name, column in columns.items():
            values = {length: value for length, value in column.items() if value is not None}
            cells = [None if value is None else f"{value:.1f}" for value in column.values()]
            table.append((name, *cells, growth(values), KINDS[name].paper))
            columns[name] = values
        print_rows((unit, *map(str, lengths), "growth", "paper"), table)
        if unit == "ms":
            draw(picture, {name: list(values.items()) for name, values in columns.items()}, "length", unit, log="xy")
