"""Table 1 of the Reformer paper, time and memory of attention by length, and Figure 5, right, as its picture.

One layer of attention, 4 heads of 64, computes one text forwards and backwards. Time is that of the processor in one
thread, so other programs hardly matter. Memory is the peak of a fresh process, as in Table 3. The number of buckets
grows with the length, so that two chunks hold what a bucket holds. All numbers are in RUNS/SCALE/reformer_table1.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
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
from xltraining.reformer.attention import Context, LocalAttention, ReformerAttention, SharedAttention

__all__ = ["KINDS", "PAPER", "SCALES", "attention_of", "growth", "main"]

FULL = "full"
LONGEST_FULL = 8192  # tokens, of which the scores take 1 GB, and several tensors have their size
TURNS = 3  # of all kinds
FITTED = 4  # lengths whose growth is fitted: at short ones, what does not depend on the length counts
KINDS: dict[str, dict[str, Any]] = {
    FULL: {"attn_layers": ("full",)},
    "full, memory-efficient": {"attn_layers": ("full",), "full_chunk": 64},
    "local, chunks of 64": {"attn_layers": ("local",), "local_chunk_length": 64},
    **{
        f"LSH, chunks of {chunk}, rounds {rounds}": {"chunk_length": chunk, "n_hashes": rounds, "attn_layers": ("lsh",)}
        for chunk, rounds in ((32, 1), (32, 2), (64, 1), (64, 4), (128, 2))
    },
}
# Complexity of both time and memory.
PAPER = {"full": "max(b n_h l d_k, b n_h l²)", "lsh": "max(b n_h l d_k, b n_h l n_r (4l/n_c)²)"}
SCALES = {"tiny": (64, 128), "small": tuple(256 << power for power in range(7))}


def attention_of(name: str, length: int) -> ReformerAttention:
    """Return a layer of attention for texts of some length."""
    fields = KINDS[name]
    if chunk := fields.get("chunk_length"):
        fields = {**fields, "n_buckets": (max(2, length // chunk // 2 * 2),)}
    config = ReformerConfig(rule="paper", position="sinusoid", max_positions=0, dropout=0.0, **fields)
    torch.manual_seed(0)
    return LocalAttention(config) if "local" in config.attn_layers else SharedAttention(config, 0)


def seconds(name: str, length: int) -> float:
    """Return the processor's time for one pass forwards and backwards."""
    attention = attention_of(name, length)
    hidden = torch.randn(1, length, attention.config.d_model, requires_grad=True)
    context = Context(0, hidden.new_zeros(1, 0, attention.config.d_model))
    started = time.process_time()
    attention(hidden, context)[0].sum().backward()
    return time.process_time() - started


def peak(name: str, length: int) -> float:
    """Return the peak of memory in MB of a pass in this process, which should be fresh."""
    torch.set_num_threads(1)
    # 128 tokens are two chunks of each kind, so that all of its code is loaded.
    return peak_of(lambda: seconds(name, 128), lambda: seconds(name, length))


def measured(length: int) -> dict[str, dict[str, float]]:
    """Return the median time in ms and the peak of memory in MB of each kind; the first turn does not count."""
    names = [name for name in KINDS if name != FULL or length <= LONGEST_FULL]
    turns = [[1000 * seconds(name, length) for name in names] for _ in range(1 + TURNS)]
    ms = map(statistics.median, zip(*turns[1:], strict=True))
    mb = (run_once(peak, name, length, environment=FREE_AT_ONCE) for name in names)
    return {name: {"ms": one, "MB": other} for name, one, other in zip(names, ms, mb, strict=True)}


def growth(values: Mapping[int, float]) -> float:
    """Return the power of the length with which values by length grow, fitted to the longest."""
    lengths = sorted(values)[-FITTED:]
    return float(np.polyfit(np.log(lengths), np.log([values[length] for length in lengths]), 1)[0])


@click.command(cls=ExperimentCommand)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of results.")
@click.option("--scale", type=click.Choice(list(SCALES)), default="tiny", show_default=True, help="Lengths.")
def main(out: Path, scale: str) -> None:
    """Table 1: time and memory of attention by length, and the powers of the length with which they grow.

    The picture, Figure 5, right, has the time of 1,000 tokens. Ordinary full attention ends at 8,192 tokens.
    """
    torch.set_num_threads(1)
    folder = out / scale
    folder.mkdir(parents=True, exist_ok=True)
    picture, file = folder / "reformer_table1.png", folder / "reformer_table1.json"
    check_picture(picture)
    kept: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"machine": machine()}
    for length in SCALES[scale]:
        if str(length) not in kept:
            kept[str(length)] = measured(length)
            file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    rows, lines = [], {}
    for name, fields in KINDS.items():
        by_length = {length: kept[str(length)][name] for length in SCALES[scale] if name in kept[str(length)]}
        cells = [f"{one['ms']:.0f} / {one['MB']:.0f}" for one in by_length.values()]
        powers = [growth({length: one[unit] for length, one in by_length.items()}) for unit in ("ms", "MB")]
        cells += [""] * (len(SCALES[scale]) - len(cells))
        rows.append((name, *cells, "l^{:.2f} / l^{:.2f}".format(*powers), PAPER.get(fields["attn_layers"][0])))
        lines[name] = [(length, 1000 * one["ms"] / length) for length, one in by_length.items()]
    print_rows(("ms / MB", *map(str, SCALES[scale]), "growth", "paper"), rows)
    draw(picture, lines, "length", "ms for 1,000 tokens", log="xy")
