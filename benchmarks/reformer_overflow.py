"""Overflow of LSH attention on text, and whether the bits per byte depend on it.

    python -m benchmarks.reformer_overflow windows CHECKPOINT TEXT [--tokens 8192]
    python -m benchmarks.reformer_overflow training TRAIN VALID --out RUNS [--steps 600] [--seeds 2]

`windows` evaluates a trained Reformer of rule `band` with other windows and fewer rounds. `training` trains small ones
from scratch, with the same number of keys for a query in all rounds together, and one without LSH layers. Each row has:

* bits per byte of the text;
* overflow: the share of (query, head, round) with more keys in reach than the window holds;
* keys: how many a query covers in all rounds together, repeated ones counted again: the work of attention;
* reached: how many share its bucket.

`same byte` is the overflow of a hash that distinguishes all bytes, and nothing else. If equal bytes have equal hashes,
no number of buckets leads below it. A run that exists in RUNS is not trained again.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
from xltraining.reformer import LSHTrace, Reformer, ReformerConfig
from xltraining.train import TrainingConfig, train

SMALL = ReformerConfig(
    d_model=96,
    n_head=2,
    d_head=48,
    d_inner=384,
    attn_layers=("local", "lsh", "local", "lsh"),
    n_hashes=2,
    n_buckets=(32,),
    chunk_length=32,
    local_chunk_length=16,
    tgt_len=256,
    mem_len=768,
    axial_shape=(32, 64),
    axial_dims=(24, 72),
    max_positions=2048,
    dropout=0.0,
)
RUNS: dict[str, dict[str, Any]] = {  # 64 keys for a query in all rounds, except in the last two
    "2 rounds of 32 buckets, window 32": {},
    "2 rounds of 128 buckets, window 32": {"n_buckets": (128,)},
    "2 rounds of 512 buckets, window 32": {"n_buckets": (16, 32)},
    "1 round of 128 buckets, window 64": {"n_hashes": 1, "n_buckets": (128,), "chunk_length": 64},
    "4 rounds of 128 buckets, window 16": {"n_hashes": 4, "n_buckets": (128,), "chunk_length": 16},
    "2 rounds of 128 buckets, window 768": {"n_buckets": (128,), "chunk_length": 768},
    "local layers alone": {"attn_layers": ("local",) * 4},
}


@dataclass(frozen=True)
class Row:
    """The figures of a model on a text."""

    name: str
    bits_per_byte: float
    overflow: float | None = None
    keys: float | None = None
    reached: float | None = None


@torch.inference_mode()
def measure(name: str, model: Reformer, text: Tensor) -> Row:
    """Return the figures of a text (N,) that is read as documents of at most as many bytes as there are positions."""
    config, limit = model.config, model.config.position_limit or len(text)
    nats, counts = 0.0, []
    for first in range(0, len(text) - 1, limit):
        document, memory, buckets = text[None, first : first + limit + 1], None, []
        for start in range(0, document.shape[1] - 1, config.tgt_len):
            targets = document[:, start + 1 : start + 1 + config.tgt_len]
            trace: list[LSHTrace] = []
            hidden, memory = model(document[:, start : start + targets.shape[1]], memory, trace=trace)
            nats -= float(model.log_probs(hidden, targets).double().sum())
            buckets.append([entry.buckets[0] for entry in trace])
        counts += [in_reach(torch.cat(parts, dim=2), config.mem_len) for parts in zip(*buckets, strict=True)]
    bits = nats / (len(text) - 1) / math.log(2)
    if not counts:
        return Row(name, bits)
    found = torch.cat([part.flatten() for part in counts]).double()
    keys = found.clamp(max=config.chunk_length)
    return Row(
        name,
        bits,
        float((found > config.chunk_length).double().mean()),
        float(keys.mean()) * config.n_hashes,
        float(found.mean()) * config.n_hashes,
    )


def in_reach(ids: Tensor, reach: int) -> Tensor:
    """Return how many of the last `reach` earlier tokens have each token's id, from ids (…,N)."""
    N = ids.shape[-1]
    rows = torch.arange(N)
    keys, _ = (ids * N + rows).sort(dim=-1)
    return torch.searchsorted(keys, ids * N + rows) - torch.searchsorted(keys, ids * N + (rows - reach).clamp(min=0))


def same_byte(text: Tensor, reach: int, window: int) -> float:
    """Return the overflow of a hash that gives each byte a bucket of its own."""
    return float((in_reach(text[None, :-1], reach) > window).double().mean())


def bytes_of(path: Path, count: int) -> Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()[: count + 1]), dtype=torch.uint8).long()


def show(rows: Iterable[Row], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
        return
    click.echo(f"{'':40} bits/byte  overflow    keys  reached")
    for row in rows:
        parts = ["" if row.overflow is None else f"{row.overflow:.1%}"]
        parts += ["" if value is None else f"{value:.0f}" for value in (row.keys, row.reached)]
        click.echo(f"{row.name:40}{row.bits_per_byte:10.4f}{parts[0]:>10}{parts[1]:>8}{parts[2]:>9}")


def windows_of(config: ReformerConfig) -> Iterator[tuple[int, int]]:
    """Yield windows from 4 to all of the memory, and fewer rounds with the model's own window."""
    window = 4
    while window < config.mem_len:
        yield window, config.n_hashes
        window *= 2
    yield config.mem_len, config.n_hashes
    yield from ((config.chunk_length, rounds) for rounds in range(1, config.n_hashes))


@click.group()
def main() -> None:
    """Measure overflow and bits per byte."""


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--tokens", default=8192, show_default=True, help="Bytes from the beginning of the text.")
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def windows(checkpoint: Path, text: Path, tokens: int, threads: int, as_json: bool) -> None:
    """Evaluate CHECKPOINT on TEXT with other windows and fewer rounds."""
    torch.set_num_threads(threads)
    given, ids = load_checkpoint(checkpoint), bytes_of(text, tokens)
    config = given.config
    assert isinstance(config, ReformerConfig)
    rows = []
    for window, rounds in windows_of(config):
        model = build_model(Checkpoint(replace(config, chunk_length=window), given.state_dict))
        assert isinstance(model, Reformer)
        model = model.with_evaluation(n_hashes=rounds).eval()
        rows.append(measure(f"window {window}, {rounds} rounds", model, ids))
    show(rows, as_json)
    if not as_json:
        shares = (f"{same_byte(ids, config.mem_len, window):.1%} at {window}" for window in (16, 64, 256))
        click.echo(f"same byte: {', '.join(shares)}")


@main.command()
@click.argument("train_file", type=click.Path(path_type=Path))
@click.argument("valid", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the runs.")
@click.option("--steps", default=600, show_default=True)
@click.option("--seeds", default=2, show_default=True, help="Runs of each setting.")
@click.option("--tokens", default=32768, show_default=True, help="Bytes of VALID to evaluate.")
@click.option("--threads", default=1, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(RUNS)), help="Only this setting; may be repeated.")
@click.option("--json", "as_json", is_flag=True)
def training(
    train_file: Path,
    valid: Path,
    out: Path,
    steps: int,
    seeds: int,
    tokens: int,
    threads: int,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train small models on TRAIN with several settings of hashing; evaluate them on VALID."""
    torch.set_num_threads(threads)
    ids, rows = bytes_of(valid, tokens), []
    for seed in range(seeds):
        for name in only or RUNS:
            folder = out / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}"
            if not (folder / "done").exists():
                settings = TrainingConfig(
                    steps=steps, batch_size=8, warmup_steps=50, seed=seed, eval_every=steps, checkpoint_every=steps
                )
                config = replace(SMALL, hash_seed=seed, **RUNS[name])
                train(config, settings, [train_file], [], folder, resume=folder.exists())
                (folder / "done").touch()
            model = build_model(load_checkpoint(folder / "checkpoint.pt"))
            assert isinstance(model, Reformer)
            rows.append(measure(name, model.eval(), ids))
    show([mean(name, rows) for name in only or RUNS], as_json)
    if not as_json:
        shares = (f"{same_byte(ids, SMALL.mem_len, window):.1%} at {window}" for window in (16, 32, 64))
        click.echo(f"same byte: {', '.join(shares)}")


def mean(name: str, rows: Iterable[Row]) -> Row:
    """Return the means of the rows of a name; the name gets the standard error of the bits per byte."""
    mine = [row for row in rows if row.name == name]
    bits = [row.bits_per_byte for row in mine]
    error = f" (±{statistics.stdev(bits) / math.sqrt(len(bits)):.3f})" if len(bits) > 1 else ""
    figures = {
        field: None if getattr(mine[0], field) is None else statistics.mean(getattr(row, field) for row in mine)
        for field in ("overflow", "keys", "reached")
    }
    return Row(f"{name}{error}", statistics.mean(bits), **figures)


if __name__ == "__main__":
    main()
