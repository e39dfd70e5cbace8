"""Evaluate a trained Reformer of rule `band` on real text with other windows, fewer rounds, and full attention.

    python -m benchmarks.reformer_windows CHECKPOINT TEXT [--tokens 8192]

With a window as long as the memory, rounds attend to all keys of their bucket, as in the paper's formula. Each row has:

* bits per byte of the text;
* overflow: the share of (query, head, round) with more keys in reach than the window holds; in brackets by LSH layer;
* keys: how many a query covers in all rounds together, repeated ones counted again: the work of attention;
* reached: how many share its bucket.

`same byte` is the overflow of a hash that distinguishes all bytes, and nothing else. If equal bytes have equal hashes,
no number of buckets leads below it. Needs the extra convert.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks.sides import PATH
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
from xltraining.reformer import LSHTrace, Reformer, ReformerConfig

__all__ = ["main"]


@dataclass(frozen=True)
class Row:
    """The figures of a model on a text."""

    name: str
    bits_per_byte: float
    overflow: float | None = None
    keys: float | None = None
    reached: float | None = None
    overflow_by_layer: tuple[float, ...] = ()


@torch.inference_mode()
def measure(name: str, model: Reformer, text: Tensor) -> Row:
    """Return the figures of a text (N,) that is read as documents of at most as many bytes as there are positions."""
    config, limit = model.config, model.config.position_limit or len(text)
    nats, counts = 0.0, list[list[Tensor]]()
    for first in range(0, len(text) - 1, limit):
        document, memory, buckets = text[None, first : first + limit + 1], None, []
        for start in range(0, document.shape[1] - 1, config.tgt_len):
            targets = document[:, start + 1 : start + 1 + config.tgt_len]
            trace: list[LSHTrace] = []
            hidden, memory = model(document[:, start : start + targets.shape[1]], memory, trace=trace)
            nats -= float(model.log_probs(hidden, targets).double().sum())
            buckets.append([entry.buckets[0] for entry in trace])
        counts.append(
            [in_reach(torch.cat(parts, dim=2), config.mem_len).flatten() for parts in zip(*buckets, strict=True)]
        )
    bits = nats / (len(text) - 1) / math.log(2)
    layers = [torch.cat(parts).double() for parts in zip(*counts, strict=True)]
    if not layers:
        return Row(name, bits)
    reached = torch.cat(layers)
    return Row(
        name,
        bits,
        float((reached > config.chunk_length).double().mean()),
        float(reached.clamp(max=config.chunk_length).mean()) * config.n_hashes,
        float(reached.mean()) * config.n_hashes,
        tuple(float((layer > config.chunk_length).double().mean()) for layer in layers),
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
        cells = f"{row.name:40}{row.bits_per_byte:10.4f}"
        if row.overflow is not None:
            layers = ", ".join(f"{share:.1%}" for share in row.overflow_by_layer)
            cells += f"{row.overflow:10.1%}{row.keys:8.0f}{row.reached:9.0f}  ({layers})"
        click.echo(cells)


def windows_of(config: ReformerConfig) -> Iterator[tuple[int, int]]:
    """Yield windows from 4 to all of the memory, and fewer rounds with the model's own window."""
    window = 4
    while window < config.mem_len:
        yield window, config.n_hashes
        window *= 2
    yield config.mem_len, config.n_hashes
    yield from ((config.chunk_length, rounds) for rounds in range(1, config.n_hashes))


@click.command()
@click.argument("checkpoint", type=PATH)
@click.argument("text", type=PATH)
@click.option("--tokens", default=8192, show_default=True, help="Bytes from the beginning of the text.")
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(checkpoint: Path, text: Path, tokens: int, threads: int, as_json: bool) -> None:
    """Evaluate CHECKPOINT on TEXT with other windows, fewer rounds and full attention."""
    torch.set_num_threads(threads)
    trained, ids = load_checkpoint(checkpoint), bytes_of(text, tokens)
    config = trained.config
    assert isinstance(config, ReformerConfig)
    rows = []
    for window, rounds in windows_of(config):
        model = build_model(Checkpoint(replace(config, chunk_length=window), trained.state_dict))
        assert isinstance(model, Reformer)
        model = model.with_evaluation(n_hashes=rounds).eval()
        rows.append(measure(f"window {window}, {rounds} rounds", model, ids))
    layers = tuple("full" if kind == "lsh" else kind for kind in config.attn_layers)
    weights = {name: tensor for name, tensor in trained.state_dict.items() if not name.endswith("rotations")}
    full = build_model(Checkpoint(replace(config, attn_layers=layers), weights))
    assert isinstance(full, Reformer)
    rows.append(measure("full attention", full.eval(), ids))
    show(rows, as_json)
    if not as_json:
        shares = (f"{same_byte(ids, config.mem_len, window):.1%} at {window}" for window in (16, 64, 256))
        click.echo(f"same byte: {', '.join(shares)}")


if __name__ == "__main__":
    main()
