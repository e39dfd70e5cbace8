"""Publish a trained checkpoint: `python publish.py RUN_CHECKPOINT VALID_TEXT OUT [TEXT ...]`.

The memory's length and the clamping of distances are choices at evaluation time: each pair below is scored on the
held-out text, as one document with carried memory, and the best becomes the configuration of OUT. OUT holds float16
weights and no training state. Each further TEXT is then scored once with what was written.
"""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch

from xltraining.checkpoint import build_model, load_checkpoint, save_checkpoint
from xltraining.data import read_bytes
from xltraining.evaluation import evaluate

MEM_LENS = (128, 256, 384, 512)
CLAMP_LENS = (128, 192, 254)  # training saw distances up to 255


def main(run: Path, valid: Path, out: Path, texts: list[Path]) -> None:
    """Choose on `valid`, write `out`, score `texts`."""
    checkpoint = load_checkpoint(run)
    model = build_model(checkpoint)
    segment_len = checkpoint.config.tgt_len
    held_out = read_bytes([valid])
    bits = {}
    for mem_len, clamp_len in itertools.product(MEM_LENS, CLAMP_LENS):
        settings = {"mem_len": mem_len, "clamp_len": clamp_len, "same_length": True}
        bits[mem_len, clamp_len] = evaluate(model.with_evaluation(**settings), held_out, segment_len)
        print(f"mem_len {mem_len:4} clamp_len {clamp_len:4}: {bits[mem_len, clamp_len]:.4f} bits/byte", flush=True)
    mem_len, clamp_len = min(bits, key=bits.__getitem__)
    config = replace(checkpoint.config, mem_len=mem_len, clamp_len=clamp_len, same_length=True)
    save_checkpoint(out, config, checkpoint.state_dict, dtype=torch.float16)
    print(f"wrote {out} ({out.stat().st_size:,} bytes) with mem_len {mem_len}, clamp_len {clamp_len}, same_length")
    published = build_model(load_checkpoint(out))
    for text in texts:
        print(f"{evaluate(published, read_bytes([text]), segment_len):.4f} bits/byte  {text.name}", flush=True)


if __name__ == "__main__":
    run, valid, out, *texts = map(Path, sys.argv[1:])
    main(run, valid, out, texts)
