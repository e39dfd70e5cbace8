"""Show LSH attention of rule `band` on real text: segments of any length, overflow, and what it costs in bits.

    python -m benchmarks.reformer_on_text segments BUNDLE TEXT [--tokens 8192]
    python -m benchmarks.reformer_on_text windows CHECKPOINT TEXT [--tokens 8192]

`segments` scores a text in segments of several lengths, in one segment, and from the logits of `generate` one token at
a time. Columns: bits per token, the largest difference of a token's score to its score in one segment, and the number
of different bucket ids. Bucket ids can differ because rounding decides a hash on the edge of two buckets.

`windows` evaluates a trained Reformer with other windows, fewer rounds, and full attention. With a window as long as
the memory, rounds attend to all keys of their bucket, as in the paper's formula. Each row has:

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
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import xlruntime
from benchmarks.sides import PATH
from xlruntime.memory import Memory
from xlruntime.model import Model
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
from xltraining.reformer import LSHTrace, Reformer, ReformerConfig

__all__ = ["main"]

SEGMENT_LENS = (1, 64, 256, 1024)


@dataclass
class Scores:
    """Log-probabilities (N,) in nats of a text, and the bucket ids (layers, H, R, N) of its tokens."""

    log_probs: npt.NDArray[np.float64]
    buckets: npt.NDArray[np.int32]


def score(model: Model, purpose: str, ids: npt.NDArray[np.int64], segment_len: int) -> Scores:
    """Run the graph for `purpose` over a document."""
    memory = model.new_memory(model.evaluation(segment_len))
    scores, buckets = [], []
    for start in range(0, len(ids) - 1, segment_len):
        targets = ids[None, start + 1 : start + 1 + segment_len]
        tokens = ids[None, start : start + targets.shape[1]]
        offset = memory.offset
        outputs = model.step(purpose, memory, tokens, targets)
        buckets.append(chosen_buckets(model, memory, offset, tokens.shape[1]))
        if purpose == "generate":
            logits = outputs["logits"][0].astype(np.float64)
            scores.append(logits[targets[0]] - np.logaddexp.reduce(logits))
        else:
            scores.append(outputs["log_prob"][0].astype(np.float64))
    return Scores(np.concatenate(scores), np.concatenate(buckets, axis=3))


def chosen_buckets(model: Model, memory: Memory, offset: int, count: int) -> npt.NDArray[np.int32]:
    """Return bucket ids (layers, H, R, count) of the `count` rows that a step has written from slot `offset` on."""
    slots = (offset + np.arange(count)) % memory.capacity
    rings = [memory.array(entry)[0] for entry in model.bundle.memory if entry.input.startswith("memory_bucket_")]
    return np.stack([ring[..., slots] for ring in rings])


def compare(model: Model, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a row for each way to cut the text."""
    document = score(model, "score", ids, len(ids) - 1)
    ways = {f"{length:,}": score(model, "score", ids, length) for length in SEGMENT_LENS if length < len(ids)}
    ways |= {"generate": score(model, "generate", ids, 1), "one": document}
    rows = []
    for name, scores in ways.items():
        difference = np.abs(scores.log_probs - document.log_probs)
        flipped = scores.buckets != document.buckets
        rows.append({
            "segments_of": name,
            "bits_per_token": -scores.log_probs.mean() / math.log(2),
            "max_abs_log_prob_diff": difference.max(),
            "tokens_beyond_1e-4": int((difference > 1e-4).sum()),
            "bucket_flips": int(flipped.sum()),
            "bucket_ids": flipped.size,
        })  # fmt: skip
    return rows


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


@click.group()
def main() -> None:
    """Measure overflow and bits per byte."""


@main.command()
@click.argument("bundle", type=PATH)
@click.argument("text", type=PATH)
@click.option("--tokens", default=8192, show_default=True, help="Tokens from the beginning of the text.")
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def segments(bundle: Path, text: Path, tokens: int, threads: int, as_json: bool) -> None:
    """Score TEXT with BUNDLE in segments of several lengths."""
    model = xlruntime.load(bundle, threads=threads)
    ids = np.frombuffer(text.read_bytes()[: tokens + 1], np.uint8).astype(np.int64) + model.bundle.tokenizer.first_id
    rows = compare(model, ids)
    if as_json:
        click.echo(json.dumps(rows))
        return
    click.echo(f"{text.name}, {len(ids) - 1:,} tokens")
    click.echo("segments of  bits/token  largest difference  beyond 1e-4  bucket flips")
    for row in rows:
        click.echo(
            f"{row['segments_of']:>11}{row['bits_per_token']:12.6f}{row['max_abs_log_prob_diff']:20.1e}"
            f"{row['tokens_beyond_1e-4']:13,}{row['bucket_flips']:14,} of {row['bucket_ids']:,}"
        )


@main.command()
@click.argument("checkpoint", type=PATH)
@click.argument("text", type=PATH)
@click.option("--tokens", default=8192, show_default=True, help="Bytes from the beginning of the text.")
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def windows(checkpoint: Path, text: Path, tokens: int, threads: int, as_json: bool) -> None:
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
