"""Compare speed and memory of Reformer bundles with Hugging Face's and reformer-pytorch's models and full attention.

    python -m benchmarks.reformer [--part whole] [--tokens 16384] [--folder KEPT] [--json FILE]

Width 512, 8 heads of 64, chunks of 128, 4 rounds of hashing, random weights. Parts:

* whole: a document at once under rule `chunk`, six layers (local, lsh) x 3, the same weights in Hugging Face's model.
  That model runs as installed, and again with glibc set to keep large blocks instead of returning them after every use.
* reformer-pytorch: the same, with its own six layers of LSH, and its own chunked feed-forward layers.
* segments: rule `band`, segment by segment with 16,384 tokens of memory: LSH in segments of 16,384 and 4,096, and for
  comparison full attention over the same memory in segments of 512. Only segments with full memory are measured.

Every side runs warm in its own process, in turns. SGEMM is measured before and after each round. Differences are in
nats; single tokens can differ much if rounding decided a hash, so the difference of the mean counts. `--tiny` is a
small shape, to try the command out. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy.typing as npt

from benchmarks.sides import (
    Pieces,
    Ready,
    Run,
    Side,
    Sides,
    add_to_json,
    benchmark,
    bundle_of,
    measure,
    print_table,
    run_once,
)

__all__ = ["main"]

# Layers are (local, lsh) times `pairs`. reformer-pytorch lacks such local layers, so it gets as many LSH layers.
SHAPE: dict[str, int] = {
    "n_token": 256, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048,
    "pairs": 3, "chunk": 128, "buckets": 256,
}  # fmt: skip
TINY = SHAPE | {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "pairs": 1, "chunk": 32, "buckets": 32}
HASHES, HASH_SEED = 4, 0
POSITIONS = (256, 512)  # axes of the axial positions, for documents of up to 131,072 tokens
TUNED = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}" for name in (
    "mmap_threshold=17179869184", "trim_threshold=17179869184", "mmap_max=0"
))}  # fmt: skip
PARTS = ("whole", "reformer-pytorch", "segments")
MEMORY = 16384
SEGMENTS = (("LSH", "lsh", 16384), ("LSH", "lsh", 4096), ("full attention", "full", 512))


def prepare(folder: Path, shape: dict[str, int], tokens: int, name: str) -> tuple[Path, Path]:
    """Return a checkpoint of this shape, `huggingface`, `reformer_pytorch`, `lsh` or `full`, and its bundle."""
    sizes = [*shape.values(), tokens] if name == "reformer_pytorch" else shape.values()
    checkpoint = folder / "-".join(map(str, sizes)) / name
    config = checkpoint.with_name(f"{name}.json")
    if not checkpoint.exists():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        writers = {"huggingface": write_huggingface, "reformer_pytorch": write_reformer_pytorch}
        run_once(writers.get(name, write_band), checkpoint, shape, tokens)
    options = ["--mem-len", "1024"] if name in ("lsh", "full") else []  # to verify on; runs choose their own
    return checkpoint, bundle_of(checkpoint, *options, *(["--config", str(config)] if config.exists() else []))


def write_huggingface(folder: Path, shape: dict[str, int], tokens: int) -> None:
    """Write a folder of Hugging Face's model."""
    import torch
    from transformers import ReformerConfig, ReformerModelWithLMHead

    torch.manual_seed(0)
    config = ReformerConfig(
        vocab_size=shape["n_token"], hidden_size=shape["d_model"], num_attention_heads=shape["n_head"],
        attention_head_size=shape["d_head"], feed_forward_size=shape["d_inner"], is_decoder=True,
        attn_layers=["local", "lsh"] * shape["pairs"], num_hashes=HASHES, num_buckets=shape["buckets"],
        lsh_attn_chunk_length=shape["chunk"], local_attn_chunk_length=shape["chunk"], axial_pos_shape=POSITIONS,
        axial_pos_embds_dim=(shape["d_model"] // 4, shape["d_model"] // 4 * 3), hash_seed=HASH_SEED,
        max_position_embeddings=POSITIONS[0] * POSITIONS[1], pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    ReformerModelWithLMHead(config).save_pretrained(folder)


def write_reformer_pytorch(file: Path, shape: dict[str, int], tokens: int) -> None:
    """Write a checkpoint of reformer-pytorch, and the settings that it lacks."""
    import torch

    model, settings = _reformer_pytorch(shape, tokens)
    file.with_name(f"{file.name}.json").write_text(json.dumps({**settings, "hash_seed": HASH_SEED}))
    torch.save(model.state_dict(), file)


def _reformer_pytorch(shape: dict[str, int], tokens: int) -> tuple[Any, dict[str, Any]]:
    import torch
    from reformer_pytorch import ReformerLM

    settings = {
        "num_tokens": shape["n_token"], "dim": shape["d_model"], "depth": 2 * shape["pairs"], "heads": shape["n_head"],
        "dim_head": shape["d_head"], "ff_mult": shape["d_inner"] // shape["d_model"], "bucket_size": shape["chunk"],
        "n_hashes": HASHES, "max_seq_len": tokens, "axial_position_emb": True, "causal": True,
    }  # fmt: skip
    torch.manual_seed(0)
    return ReformerLM(**settings).eval(), settings


def write_band(file: Path, shape: dict[str, int], tokens: int) -> None:
    """Write our own checkpoint of rule `band`; its file has the name of every second layer, `lsh` or `full`."""
    import torch

    from xltraining.checkpoint import save_checkpoint
    from xltraining.reformer import Reformer, ReformerConfig

    torch.manual_seed(0)
    config = ReformerConfig(
        **{key: shape[key] for key in ("n_token", "d_model", "n_head", "d_head", "d_inner")},  # type: ignore[arg-type]
        attn_layers=("local", file.name) * shape["pairs"], n_hashes=HASHES, n_buckets=(shape["buckets"],),
        chunk_length=shape["chunk"], local_chunk_length=shape["chunk"], tgt_len=512, mem_len=16384,
        axial_shape=POSITIONS, axial_dims=(shape["d_model"] // 4, shape["d_model"] // 4 * 3),
        max_positions=POSITIONS[0] * POSITIONS[1],
    )  # fmt: skip
    save_checkpoint(file, config, Reformer(config).state_dict())


def hugging_face(checkpoint: Path, shape: dict[str, int], tokens: int, threads: int) -> Ready:
    """Return the side of Hugging Face's eager pass over a whole document, with the score of each target."""
    from transformers import ReformerModelWithLMHead

    model = ReformerModelWithLMHead.from_pretrained(checkpoint).eval()
    return _torch_document(lambda ids: model(ids, use_cache=False).logits, tokens, threads)


def reformer_pytorch(checkpoint: Path, shape: dict[str, int], tokens: int, threads: int) -> Ready:
    """Return the same side of reformer-pytorch, which draws new rotations at each pass."""
    import torch

    model, _ = _reformer_pytorch(shape, tokens)
    model.load_state_dict(torch.load(checkpoint, weights_only=True))

    def logits(ids: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(HASH_SEED)  # the rotations of the bundle
        return model(ids)

    return _torch_document(logits, tokens, threads)


def _torch_document(logits: Callable[[Any], Any], tokens: int, threads: int) -> Ready:
    import torch

    torch.set_num_threads(threads)
    ids, targets = map(torch.from_numpy, Pieces(tokens).next())

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        return logits(ids).log_softmax(dim=-1).gather(2, targets[:, :, None]).numpy()

    return Ready(step, {"tokens": tokens}, warm=1)


def bundle_document(bundle: Path, tokens: int, threads: int) -> Ready:
    """Return the side of the score graph of rule `chunk`, where a document is one step."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, StepWork

    started = time.perf_counter()
    model = xlruntime.load(bundle, threads=threads)
    load_seconds = time.perf_counter() - started
    evaluation = model.evaluation()
    ids, targets = Pieces(tokens).next()

    def step() -> npt.NDArray[Any]:
        return model.step("score", model.new_memory(evaluation), ids, targets)["log_prob"]

    floor = step_floor(GraphSide(model, StepWork("score", evaluation, tokens, 1)))
    return Ready(step, {"tokens": tokens, "load_seconds": load_seconds, **asdict(floor)}, warm=1)


def bundle_segments(bundle: Path, segment: int, filled: bool, threads: int) -> Ready:
    """Return the side of the score graph of rule `band`, segment by segment, measured with full memory.

    `filled`: begin as if the memory had been filled by reading, which saves time if buckets do not matter.
    """
    import xlruntime

    model = xlruntime.load(bundle, threads=threads)
    memory = model.new_memory(model.evaluation(segment_len=segment, mem_len=MEMORY))
    pieces = Pieces(segment)
    if filled:
        memory.position[:] = MEMORY

    def step() -> npt.NDArray[Any]:
        if memory.room.min() < segment:  # positions end
            memory.position[:] = MEMORY
        return model.step("score", memory, *pieces.next())["log_prob"]

    return Ready(step, {"tokens": segment}, warm=2 if filled else -(-MEMORY // segment) + 1)


PEERS: dict[str, tuple[str, str, Callable[..., Ready]]] = {
    "whole": ("Hugging Face", "huggingface", hugging_face),
    "reformer-pytorch": ("reformer-pytorch", "reformer_pytorch", reformer_pytorch),
}


@benchmark
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Default: all. May be repeated.")
@click.option("--tokens", default=16384, show_default=True, help="Tokens of the whole pass; a multiple of 256.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Steps of a side in a round.")
def main(run: Run, parts: tuple[str, ...], tokens: int, repeats: int) -> None:
    """Measure and print each part in turn."""
    shape, threads = TINY if run.tiny else SHAPE, run.threads
    for part in parts or PARTS:
        sides: Sides = {}
        title = f"{part}, {tokens:,} tokens"
        if part == "segments":
            title = f"{part}, {MEMORY:,} tokens of memory"
            for name, layer, segment in SEGMENTS:
                _, bundle = prepare(run.folder, shape, 0, layer)
                side = partial(Side, bundle_segments, bundle, segment, layer == "full", threads)
                sides[f"{name}, segments of {segment:,}"] = side
        else:
            name, form, peer = PEERS[part]
            checkpoint, bundle = prepare(run.folder, shape, tokens, form)
            eager = partial(Side, peer, checkpoint, shape, tokens, threads)
            sides["bundle"] = partial(Side, bundle_document, bundle, tokens, threads)
            sides[f"{name} as installed"] = eager
            sides[f"{name}, allocator tuned"] = partial(eager, environment=TUNED)
        figures = measure(sides, run.rounds, repeats, threads) | {"shape": shape}
        print_table(title, figures)
        add_to_json(run.file, part, figures)


if __name__ == "__main__":
    main()
