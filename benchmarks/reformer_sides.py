"""Reformers in several implementations: checkpoints and sides for `reformer_beside_peers.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.measuring import code_digest
from benchmarks.sides import Ready, run_once, text_ids

__all__ = ["SHAPE", "TINY", "hugging_face", "ours_segments", "ours_whole", "prepared", "reformer_pytorch"]

# Layers are (local, lsh) times `pairs`. reformer-pytorch lacks such local layers, so it gets as many LSH layers.
SHAPE: dict[str, int] = {
    "n_token": 256, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048,
    "pairs": 3, "chunk": 128, "buckets": 256,
}  # fmt: skip
TINY = SHAPE | {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "pairs": 1, "chunk": 32, "buckets": 32}
HASHES, HASH_SEED = 4, 0
POSITIONS = (256, 512)  # axes of the axial positions, for documents of up to 131,072 tokens


def prepared(folder: Path, shape: dict[str, int], tokens: int, name: str) -> tuple[Path, Path]:
    """Return a checkpoint of this shape, `huggingface`, `reformer_pytorch`, `lsh` or `full`, and its bundle."""
    folder = folder / "-".join(map(str, [*shape.values(), tokens] if name == "reformer_pytorch" else shape.values()))
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, config = folder / name, folder / f"{name}.json"
    if not checkpoint.exists():
        writer = {"huggingface": _write_huggingface, "reformer_pytorch": _write_reformer_pytorch}.get(name, _write_band)
        run_once(writer, checkpoint, shape, tokens, name)
    bundle = folder / f"{name}-{code_digest()}"
    if not bundle.exists():
        options = ["--tokenizer", "none", "--segments", "2", *(["--config", str(config)] if config.exists() else [])]
        options += ["--mem-len", "1024"] if name in ("lsh", "full") else []  # to verify on; runs choose their own
        command = [sys.executable, "-m", "xlexport", "convert", str(checkpoint), "-o", str(bundle), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return checkpoint, bundle


def _write_huggingface(folder: str, shape: dict[str, int], tokens: int, name: str) -> None:
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


def _write_reformer_pytorch(file: str, shape: dict[str, int], tokens: int, name: str) -> None:
    import torch

    model, settings = _reformer_pytorch(shape, tokens)
    Path(f"{file}.json").write_text(json.dumps({**settings, "hash_seed": HASH_SEED}))
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


def _write_band(file: str, shape: dict[str, int], tokens: int, name: str) -> None:
    import torch

    from xltraining.checkpoint import save_checkpoint
    from xltraining.reformer import Reformer, ReformerConfig

    torch.manual_seed(0)
    config = ReformerConfig(
        **{key: shape[key] for key in ("n_token", "d_model", "n_head", "d_head", "d_inner")},  # type: ignore[arg-type]
        attn_layers=("local", name) * shape["pairs"], n_hashes=HASHES, n_buckets=(shape["buckets"],),
        chunk_length=shape["chunk"], local_chunk_length=shape["chunk"], tgt_len=512, mem_len=16384,
        axial_shape=POSITIONS, axial_dims=(shape["d_model"] // 4, shape["d_model"] // 4 * 3),
        max_positions=POSITIONS[0] * POSITIONS[1],
    )  # fmt: skip
    save_checkpoint(Path(file), config, Reformer(config).state_dict())


def hugging_face(checkpoint: str, tokens: int, threads: int) -> Ready:
    """Return the side of Hugging Face's eager pass over a whole document, with the score of each target."""
    from transformers import ReformerModelWithLMHead

    model = ReformerModelWithLMHead.from_pretrained(checkpoint).eval()
    return _torch_whole(lambda ids: model(ids, use_cache=False).logits, tokens, threads)


def reformer_pytorch(checkpoint: str, shape: dict[str, int], tokens: int, threads: int) -> Ready:
    """Return the same side of reformer-pytorch, which draws new rotations at each pass."""
    import torch

    model, _ = _reformer_pytorch(shape, tokens)
    model.load_state_dict(torch.load(checkpoint, weights_only=True))

    def logits(ids: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(HASH_SEED)  # the rotations of the bundle
        return model(ids)

    return _torch_whole(logits, tokens, threads)


def _torch_whole(logits: Callable[[Any], Any], tokens: int, threads: int) -> Ready:
    import torch

    torch.set_num_threads(threads)
    ids = torch.from_numpy(text_ids(0, tokens + 1))[None]

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        scores = logits(ids[:, :-1]).log_softmax(dim=-1)
        return scores.gather(2, ids[:, 1:, None]).numpy()

    return Ready(step, {"tokens": tokens}, warm=1)


def ours_whole(bundle: str, tokens: int, threads: int) -> Ready:
    """Return the side of the score graph of rule `chunk`, where a document is one step."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, Work

    started = time.perf_counter()
    model = xlruntime.load(bundle, threads=threads)
    load_seconds = time.perf_counter() - started
    evaluation = model.evaluation()
    ids = text_ids(0, tokens + 1)[None]
    before, after = ids[:, :-1].copy(), ids[:, 1:].copy()

    def step() -> npt.NDArray[Any]:
        return model.step("score", model.new_memory(evaluation), before, after)["log_prob"]

    floor = step_floor(GraphSide(model, Work("score", evaluation, tokens, 1)))
    facts = {"tokens": tokens, "load_seconds": load_seconds, "flops": floor.flops, "bytes": floor.bytes}
    return Ready(step, facts, warm=1)


def ours_segments(bundle: str, segment: int, mem_len: int, filled: bool, threads: int) -> Ready:
    """Return the side of the score graph of rule `band`, segment by segment, measured with full memory.

    `filled`: begin as if the memory had been filled by reading, which saves time if buckets do not matter.
    """
    import xlruntime

    model = xlruntime.load(bundle, threads=threads)
    evaluation = model.evaluation(segment_len=segment, mem_len=mem_len)
    memory = model.new_memory(evaluation)
    place = 0
    if filled:
        memory.position[:] = mem_len

    def step() -> npt.NDArray[Any]:
        nonlocal place
        if memory.room.min() < segment:  # positions end
            memory.position[:] = mem_len
        ids = text_ids(place, segment + 1)[None]
        place += segment
        return model.step("score", memory, ids[:, :-1].copy(), ids[:, 1:].copy())["log_prob"]

    return Ready(step, {"tokens": segment}, warm=2 if filled else -(-mem_len // segment) + 1)
