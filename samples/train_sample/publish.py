"""Publish a trained checkpoint: `python publish.py RUN_CHECKPOINT VALID_TEXT OUT [TEXT ...]`.

RUN_CHECKPOINT reads bytes or the pieces of a `tokenizer.json`. Some settings are chosen at evaluation: the memory's
length, and the clamping of distances of a Transformer-XL or the rounds of hashing of a Reformer. Each combination below
is scored on the held-out text, as one document with carried memory. The best becomes the configuration of OUT. OUT
holds float16 weights and no training state. Then OUT scores each further TEXT once. A Reformer also scores it with full
attention instead of LSH attention, and reports the overflow: the share of (query, head, round) that could reach more
keys than a round covers.
"""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch

from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from xltraining.data.streams import read_bytes
from xltraining.evaluation import evaluate
from xltraining.reformer import LSHTrace, Reformer


def read_text(checkpoint, path):
    """Return the token ids of a text, and its bytes for each token after the first, which has no score."""
    raw = path.read_bytes()
    if checkpoint.tokenizer == "bytes":
        return read_bytes([path]), 1.0
    from tokenizers import Tokenizer

    ids = Tokenizer.from_str(checkpoint.tokenizer.content.decode()).encode(raw.decode())
    first = len(raw.decode()[slice(*ids.offsets[0])].encode())
    return torch.tensor(ids.ids), (len(raw) - first) / (len(ids.ids) - 1)


def choices(model):
    """Return the settings to try, each a dict for `with_evaluation`."""
    if isinstance(model, Reformer):
        return [{"mem_len": rows, "n_hashes": rounds} for rows, rounds in itertools.product((512, 1024, 2048), (2, 4))]
    segment = model.config.tgt_len
    reach = segment + model.config.mem_len  # training saw shorter distances
    clamps = (reach // 2, reach * 3 // 4, reach - 2)
    memories = [segment * n for n in (1, 2, 3, 4) if segment * n >= model.config.mem_len]
    pairs = itertools.product(memories, clamps)
    return [{"mem_len": rows, "clamp_len": clamp, "same_length": True} for rows, clamp in pairs]


def with_full_attention(checkpoint):
    """Return the same weights with full attention over the memory instead of LSH attention."""
    layers = tuple("full" if kind == "lsh" else kind for kind in checkpoint.config.attn_layers)
    tensors = {name: tensor for name, tensor in checkpoint.state_dict.items() if not name.endswith("rotations")}
    return build_model(Checkpoint(replace(checkpoint.config, attn_layers=layers), tensors))


@torch.no_grad()
def overflow(model, text, segment_len):
    """Return for each LSH layer the share of (query, head, round) with more keys in reach than a round covers."""
    counts, memory = 0, None
    for segment in text.long().split(segment_len):
        trace: list[LSHTrace] = []
        _, memory = model(segment[None], memory, trace=trace)
        counts = counts + torch.tensor([entry.overflow.sum() for entry in trace])
    return counts / (len(text) * model.config.n_head * model.config.n_hashes)


def main(run: Path, valid: Path, out: Path, texts: list[Path]) -> None:
    """Choose on `valid`, write `out`, score `texts`."""
    checkpoint = load_checkpoint(run)
    model = build_model(checkpoint)
    segment_len = checkpoint.config.tgt_len
    held_out, bytes_per_token = read_text(checkpoint, valid)
    found = []
    for settings in choices(model):
        twin = model.with_evaluation(**settings)
        found.append((evaluate(twin, held_out, segment_len) / bytes_per_token, settings, twin))
        print(f"{found[-1][0]:.4f} bits/byte  {settings}", flush=True)
    _, settings, best = min(found, key=lambda entry: entry[0])
    save_checkpoint(out, best.config, best.state_dict(), dtype=torch.float16, tokenizer=checkpoint.tokenizer)
    print(f"wrote {out} ({out.stat().st_size:,} bytes) with {settings}")
    published = load_checkpoint(out)
    model = build_model(published)
    for text in texts:
        content, bytes_per_token = read_text(published, text)
        bits = evaluate(model, content, segment_len)
        per_token = "" if bytes_per_token == 1 else f", {bits:.4f} bits/token, perplexity {2**bits:.1f}"
        print(f"{bits / bytes_per_token:.4f} bits/byte{per_token}  {text.name}", flush=True)
        if isinstance(model, Reformer):
            full = evaluate(with_full_attention(published), content, segment_len)
            parts = ", ".join(f"{part:.1%}" for part in overflow(model, content, segment_len).tolist())
            print(f"{full:.4f} bits/byte  {text.name} with full attention; overflow by LSH layer: {parts}", flush=True)


if __name__ == "__main__":
    run, valid, out, *texts = map(Path, sys.argv[1:])
    main(run, valid, out, texts)
