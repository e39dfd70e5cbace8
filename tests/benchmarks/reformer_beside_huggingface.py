"""Print speed and memory of Reformer bundles beside Hugging Face's eager model and full attention, in one run.

    python tests/benchmarks/reformer_beside_huggingface.py [--tokens 16384] [--rounds 3] [--json FILE]

Six layers (local, lsh) x 3 of width 512, 8 heads of 64, chunks of 128, 4 rounds of hashing, random weights.

* Whole pass: one document at once under rule `chunk`, the same weights in both. Hugging Face's model runs as installed,
  and again with glibc told to keep large blocks instead of giving them back to the system after every use.
* Segment by segment: rule `band` over 65,536 tokens with 16,384 of memory, in segments of 16,384 and of 4,096 tokens;
  beside it full attention over the same memory, in segments of 512.

Every side runs in a process of its own, warm, in turns; figures are medians. Needs the extras convert and dev.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

TUNED = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}" for name in (
    "mmap_threshold=17179869184", "trim_threshold=17179869184", "mmap_max=0"
))}  # fmt: skip
LAYERS, CHUNK, HASHES, BUCKETS = 3, 128, 4, 256
SHAPE: dict[str, Any] = {"n_token": 256, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
POSITIONS: dict[str, Any] = {"axial_shape": (256, 512), "axial_dims": (128, 384), "max_positions": 131072}
MEMORY, DOCUMENT = 16384, 65536


def main_checkpoints(folder: Path) -> None:
    """Write a Hugging Face folder, and checkpoints of the same shape under rule `band` and with full attention."""
    import torch
    from transformers import ReformerConfig, ReformerModelWithLMHead

    from xltraining.checkpoint import save_checkpoint
    from xltraining.reformer import Reformer
    from xltraining.reformer_config import ReformerConfig as OurConfig

    torch.manual_seed(0)
    config = ReformerConfig(
        vocab_size=SHAPE["n_token"], hidden_size=SHAPE["d_model"], num_attention_heads=SHAPE["n_head"],
        attention_head_size=SHAPE["d_head"], feed_forward_size=SHAPE["d_inner"], is_decoder=True,
        attn_layers=["local", "lsh"] * LAYERS, num_hashes=HASHES, num_buckets=BUCKETS, lsh_attn_chunk_length=CHUNK,
        local_attn_chunk_length=CHUNK, axial_pos_shape=POSITIONS["axial_shape"],
        axial_pos_embds_dim=POSITIONS["axial_dims"], max_position_embeddings=POSITIONS["max_positions"], hash_seed=0,
        pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    ReformerModelWithLMHead(config).save_pretrained(folder / "huggingface")
    for kind in ("lsh", "full"):
        ours = OurConfig(
            **SHAPE, **POSITIONS, attn_layers=("local", kind) * LAYERS, n_hashes=HASHES, n_buckets=(BUCKETS,),
            chunk_length=CHUNK, local_chunk_length=CHUNK, tgt_len=512, mem_len=MEMORY,
        )  # fmt: skip
        save_checkpoint(folder / f"{kind}.pt", ours, Reformer(ours).state_dict())


def main_huggingface(folder: Path, tokens: int, repeats: int) -> dict[str, Any]:
    """Time the eager whole pass, with the log-probability of each target."""
    import torch
    from transformers import ReformerModelWithLMHead

    model = ReformerModelWithLMHead.from_pretrained(folder / "huggingface").eval()
    ids = torch.from_numpy(_ids(tokens + 1))[None]

    @torch.inference_mode()
    def run() -> None:
        logits = model(ids[:, :-1], use_cache=False).logits
        logits.log_softmax(-1).gather(2, ids[:, 1:, None])

    return _timed(run, repeats)


def main_whole(folder: Path, tokens: int, repeats: int) -> dict[str, Any]:
    """Time the score graph over a whole document."""
    import xlruntime

    model = xlruntime.load(folder / "whole.bundle", threads=2)
    ids = _ids(tokens + 1)[None]
    evaluation = model.evaluation()

    def run() -> None:
        model.step("score", model.new_memory(evaluation), ids[:, :-1], ids[:, 1:])

    return _timed(run, repeats)


def main_segments(folder: Path, name: str, segment: int, filled: int) -> dict[str, Any]:
    """Walk a document in segments; `filled`: begin behind so many tokens, as if they had been read."""
    import xlruntime

    model = xlruntime.load(folder / f"{name}.bundle", threads=2)
    evaluation = model.evaluation(segment_len=segment, mem_len=MEMORY)
    memory = model.new_memory(evaluation)
    memory.position[:] = filled
    count = DOCUMENT // segment if not filled else 6
    ids = _ids(count * segment + 1)[None]
    seconds = []
    for start in range(0, count * segment, segment):
        started = time.perf_counter()
        model.step("score", memory, ids[:, start : start + segment], ids[:, start + 1 : start + segment + 1])
        seconds.append(time.perf_counter() - started)
    full = seconds[-(-MEMORY // segment) + 1 :] if not filled else seconds[1:]  # with the memory full, and warm
    return {
        "seconds_per_segment": seconds,
        "us_per_token": float(np.median(full)) / segment * 1e6,
        "spread": max(full) / min(full) - 1,
        "peak_rss_mb": _peak_rss_mb(),
    }


def main_sgemm() -> dict[str, float]:
    """GFLOP/s of a 2048-cubed matrix product."""
    import torch

    a, b = torch.rand(2, 2048, 2048)
    seconds = _timed(lambda: a @ b, 9)["seconds"]
    return {"gflops": 2 * 2048**3 / min(seconds) / 1e9}


def _timed(run: Any, repeats: int) -> dict[str, Any]:
    run()
    before, seconds = resource.getrusage(resource.RUSAGE_SELF), []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "user": (after.ru_utime - before.ru_utime) / repeats,
        "system": (after.ru_stime - before.ru_stime) / repeats,
        "peak_rss_mb": _peak_rss_mb(),
    }


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _ids(count: int) -> Any:
    """Text of this very repository, over and over: bytes as they come in text."""
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[2].glob("x*/**/*.py")))
    return np.frombuffer((text * (count // len(text) + 1))[:count], np.uint8).astype(np.int64)


def _child(job: str, *arguments: object, environment: dict[str, str] | None = None) -> Any:
    command = [sys.executable, __file__, "--job", json.dumps([job, *map(str, arguments)])]
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout or "null")


def _run_job(job: str) -> None:
    name, *arguments = json.loads(job)
    folder = [Path(arguments[0])] if arguments else []
    found = globals()[f"main_{name}"](*folder, *(int(part) if part.isdigit() else part for part in arguments[1:]))
    print(json.dumps(found))


def _convert(folder: Path) -> None:
    for source, bundle, options in (
        ("huggingface", "whole", []),
        ("lsh.pt", "lsh", ["--mem-len", "1024"]),
        ("full.pt", "full", ["--mem-len", "1024"]),
    ):
        output = ["-o", str(folder / f"{bundle}.bundle"), "--tokenizer", "none", "--segments", "2"]
        command = [sys.executable, "-m", "xlexport", "convert", str(folder / source), *output, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@click.command()
@click.option("--tokens", default=16384, show_default=True, help="Of the whole pass.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--repeats", default=2, show_default=True, help="Timed passes of a side in a round.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep checkpoints and bundles there, or use them.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option("--job", hidden=True)
def main(tokens: int, rounds: int, repeats: int, folder: Path | None, json_file: Path | None, job: str | None) -> None:
    """Print speed and memory of Reformer bundles beside Hugging Face's eager model and full attention."""
    if job is not None:
        _run_job(job)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "full.bundle").exists():
            _child("checkpoints", folder)
            _convert(folder)
        figures = _measure(folder, tokens, rounds, repeats)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def _measure(folder: Path, tokens: int, rounds: int, repeats: int) -> dict[str, Any]:
    sides: dict[str, list[Any]] = {"ours": [], "Hugging Face as installed": [], "Hugging Face, allocator tuned": []}
    sgemm = [_child("sgemm")["gflops"]]
    for _ in range(rounds):
        sides["ours"].append(_child("whole", folder, tokens, repeats))
        sides["Hugging Face as installed"].append(_child("huggingface", folder, tokens, repeats))
        tuned = _child("huggingface", folder, tokens, repeats, environment=TUNED)
        sides["Hugging Face, allocator tuned"].append(tuned)
        sgemm.append(_child("sgemm")["gflops"])
    print(f"whole pass, {tokens:,} tokens; SGEMM {min(sgemm):.0f} to {max(sgemm):.0f} GFLOP/s")
    medians = {name: float(np.median([run["seconds"] for run in runs])) for name, runs in sides.items()}
    for name, runs in sides.items():
        user, system, peak = (np.median([run[key] for run in runs]) for key in ("user", "system", "peak_rss_mb"))
        print(
            f"  {name:30} {medians[name]:7.2f} s  {medians[name] / medians['ours']:5.2f} x ours   "
            f"user {user:6.2f} s, system {system:6.2f} s, peak {peak:,.0f} MB"
        )
    print(f"segment by segment, {MEMORY:,} tokens of memory")
    walks = {}
    for name, title, segment, filled in (
        ("lsh", "LSH", 16384, 0),
        ("lsh", "LSH", 4096, 0),
        ("full", "full attention", 512, MEMORY),
    ):
        walks[f"{title} {segment}"] = walk = _child("segments", folder, name, segment, filled)
        print(
            f"  {title:14} segments of {segment:6,}: {walk['us_per_token']:7.0f} µs a token, slowest segment "
            f"{walk['spread']:+.0%} on the fastest, peak {walk['peak_rss_mb']:,.0f} MB"
        )
    return {"tokens": tokens, "sgemm_gflops": sgemm, "whole": sides, "segments": walks}


if __name__ == "__main__":
    main()
