"""Show rule `band` on real text: equal scores in segments of any length, overflow, and the cost of overflow.

    python -m benchmarks.reformer_on_real_text BUNDLE CHECKPOINT TEXT [--tokens 16384]

BUNDLE is a Reformer's, converted from CHECKPOINT (our own format). Two tables:

* The text's scores in segments of several lengths, in one segment, and from the logits of `generate` one token at a
  time. Columns: bits per token, the largest difference of a token's score to its score in one segment, and the number
  of different bucket ids. Bucket ids can differ because rounding decides a hash on the edge of two buckets.
* The trained model's bits per token: as trained, without the window, and with full attention. Without the window,
  rounds attend to all keys of their bucket in the memory, as in the paper's formula. For each LSH layer also the
  overflow: the share of (query, head, round) that could see more keys than the window holds.

Needs the extra convert.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import xlruntime
from xlruntime.memory import Memory
from xlruntime.model import Model

SEGMENT_LENS = (1, 64, 256, 1024)


@dataclass
class Scores:
    """Log-probabilities (N,) in nats of a text, and the bucket ids (layers, H, R, N) of its tokens."""

    log_probs: npt.NDArray[np.float64]
    buckets: npt.NDArray[np.int32]


def walk(model: Model, purpose: str, ids: npt.NDArray[np.int64], segment_len: int) -> Scores:
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
    whole = walk(model, "score", ids, len(ids) - 1)
    walks = {f"{length:,}": walk(model, "score", ids, length) for length in SEGMENT_LENS if length < len(ids)}
    walks["generate"] = walk(model, "generate", ids, 1)
    walks["whole"] = whole
    rows = []
    for name, each in walks.items():
        difference = np.abs(each.log_probs - whole.log_probs)
        flipped = each.buckets != whole.buckets
        rows.append({
            "segments_of": name,
            "bits_per_token": -each.log_probs.mean() / math.log(2),
            "max_abs_log_prob_diff": difference.max(),
            "tokens_beyond_1e-4": int((difference > 1e-4).sum()),
            "bucket_flips": int(flipped.sum()),
            "bucket_ids": flipped.size,
        })  # fmt: skip
    return rows


def formulas(checkpoint: Path, ids: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the trained model's own scores: with window, without window, and with full attention."""
    import torch

    from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
    from xltraining.reformer import ReformerConfig

    given = load_checkpoint(checkpoint)
    config = given.config
    assert isinstance(config, ReformerConfig)
    tensors = {name: tensor for name, tensor in given.state_dict.items() if not name.endswith("rotations")}
    full = replace(config, attn_layers=tuple("full" if kind == "lsh" else kind for kind in config.attn_layers))
    models = {
        "trained": build_model(given),
        "unwindowed": build_model(Checkpoint(replace(config, chunk_length=config.mem_len), given.state_dict)),
        "full_attention": build_model(Checkpoint(full, tensors)),
    }
    bits, counts = {}, torch.zeros(0)
    text = torch.from_numpy(ids)
    for name, model in models.items():
        nats, memory, counted = 0.0, None, []
        with torch.inference_mode():
            for start in range(0, len(ids) - 1, config.tgt_len):
                targets = text[None, start + 1 : start + 1 + config.tgt_len]
                trace: list[Any] = []
                hidden, memory = model(text[None, start : start + targets.shape[1]], memory, trace=trace)
                nats -= float(model.log_probs(hidden, targets).double().sum())
                counted.append([int(entry.overflow.sum()) for entry in trace])
        bits[name] = nats / (len(ids) - 1) / math.log(2)
        if name == "trained":
            counts = torch.tensor(counted).sum(dim=0)
    chances = (len(ids) - 1) * config.n_head * config.n_hashes
    return {"bits_per_token": bits, "overflow_fraction_per_layer": [int(count) / chances for count in counts]}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--tokens", default=16384, show_default=True, help="Tokens from the beginning of the text.")
@click.option("--threads", default=None, type=int)
@click.option("--json", "as_json", is_flag=True)
def main(bundle: Path, checkpoint: Path, text: Path, tokens: int, threads: int | None, as_json: bool) -> None:
    """Measure and print."""
    model = xlruntime.load(bundle, threads=threads)
    ids = np.frombuffer(text.read_bytes()[: tokens + 1], np.uint8).astype(np.int64) + model.bundle.tokenizer.first_id
    rows, found = compare(model, ids), formulas(checkpoint, ids)
    if as_json:
        click.echo(json.dumps({"segments": rows, **found}))
        return
    click.echo(
        f"{text.name}, {len(ids) - 1:,} tokens\nsegments of  bits/token  largest difference  beyond 1e-4  bucket flips"
    )
    for row in rows:
        click.echo(
            f"{row['segments_of']:>11}{row['bits_per_token']:12.6f}{row['max_abs_log_prob_diff']:20.1e}"
            f"{row['tokens_beyond_1e-4']:13,}{row['bucket_flips']:14,} of {row['bucket_ids']:,}"
        )
    for name, bits in found["bits_per_token"].items():
        click.echo(f"{name.replace('_', ' '):16} {bits:.4f} bits per token")
    shares = ", ".join(f"{share:.2%}" for share in found["overflow_fraction_per_layer"])
    click.echo(f"overflow by LSH layer: {shares}")


if __name__ == "__main__":
    main()
