"""The shapes of which speed is measured, and the checkpoints and bundles that the parts use, made once in a folder."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.sides import ROOT, code_digest, run_once
from tests.gpu.parts import PartError, Record, Settings
from xlexport.bundles import publishing
from xlexport.manifest import digests, write_manifest
from xlexport.quantization.graphs import PRECISIONS, write_graphs
from xlexport.sample import sample_checkpoint
from xlruntime.bundle_files import read_bundle

TEXT_MODEL = "text"  # the trained sample, because the cost of float16 is measured on real text
# Bundles in float16: the bundle of which each is made, and the precision of its memory. `quantize` refuses the Reformer
# with memory, whose hashes differ between its graphs in float16.
FLOAT16 = {
    "float16": (TEXT_MODEL, "float32"),
    "float16-memory": (TEXT_MODEL, "float16"),
    "float16-paper": ("reformer-paper", "float32"),
    "float16-chunk": ("reformer-chunk", "float32"),
}
TF32, HALF = "TF32", "float16"
FIXED_BATCHES, TINY_FIXED_BATCHES = (1, 32), (1, 2)  # in these precisions
GATE_TOKENS = "2048"  # `quantize` measures on the CPU, where float16 is slow; this program measures again on the device


@dataclass(frozen=True)
class Shape:
    """A Transformer-XL with random weights or a Reformer, and one of its steps on full memory.

    Attributes:
        mem_len: rows of memory; 0: a step is a whole document.
        config: fields of the configuration that differ from its defaults.
        rule: the rule of LSH attention; empty: a Transformer-XL.
        precision: of matrix products on the device. Another one than float32 ends the name.
    """

    name: str
    title: str
    segment_len: int
    mem_len: int
    config: dict[str, Any]
    rule: str = ""
    precision: str = "float32"

    @property
    def exact(self) -> str:
        """The name of the shape in float32."""
        return self.name.removesuffix(f"-{self.precision}")


_SAMPLE = {
    **{"n_layer": 6, "n_head": 3, "d_model": 192, "d_head": 64, "d_inner": 768},
    **{"pre_lnorm": True, "clamp_len": 192, "same_length": True},
}
_ENWIK8 = {"n_layer": 12, "n_head": 8, "d_model": 512, "d_head": 64, "d_inner": 2048}
_WT103 = {"n_layer": 18, "n_head": 16, "d_model": 1024, "d_head": 64, "d_inner": 4096, "n_token": 267_735}
_SMALL = {"n_layer": 2, "n_head": 2, "d_model": 32, "d_head": 16, "d_inner": 64}
_SMALL_CLUSTERS = {**_SMALL, "n_token": 100, "cutoffs": (20, 40), "div_val": 2}
_SMALL_REFORMER = {
    **{"n_token": 256, "n_head": 2, "d_model": 16, "d_head": 6, "d_inner": 20, "attn_layers": ("local", "lsh")},
    **{"n_hashes": 2, "n_buckets": (8,), "chunk_length": 4, "local_chunk_length": 2, "tgt_len": 8, "mem_len": 24},
    "position": "rotary",
}

_RULES = {"band": (512, 1024), "paper": (2048, 0), "chunk": (2048, 0)}  # segment and memory
REFORMERS = tuple(
    Shape(f"reformer-{rule}", f"the sample Reformer, rule {rule}", *sizes, _SMALL_REFORMER, rule)
    for rule, sizes in _RULES.items()
)
SHAPES = (
    Shape("sample", "the sample's shape, 6 layers of 192", 128, 384, _SAMPLE),
    Shape("enwik8-12L", "the enwik8 shape, 12 layers of 512", 80, 2100, _ENWIK8),
    Shape(
        "wt103",
        "a WikiText-103 shape, 18 layers of 1,024, 267,735 words in four clusters",
        128,
        1600,
        {**_WT103, "cutoffs": (20_000, 40_000, 200_000), "div_val": 4},
    ),
    *REFORMERS,
)
TEXT = Shape(TEXT_MODEL, "the sample", 128, 384, {})
TINY_SHAPES = (
    Shape("tiny", "tiny", 8, 24, _SMALL),
    Shape("tiny-clusters", "tiny, three clusters", 8, 24, _SMALL_CLUSTERS),
    *(replace(each, title=f"tiny, {each.rule}", segment_len=8, mem_len=min(24, each.mem_len)) for each in REFORMERS),
)


def shapes_of(settings: Settings) -> tuple[Shape, ...]:
    """Return the shapes for which speed is measured."""
    return TINY_SHAPES if settings.tiny else SHAPES


def low_precisions(settings: Settings) -> tuple[Shape, ...]:
    """Return the largest Transformer-XL in TF32 and in float16."""
    largest = next(shape for shape in reversed(shapes_of(settings)) if not shape.rule)
    return tuple(
        replace(largest, name=f"{largest.name}-{precision}", title=f"{largest.title}, {precision}", precision=precision)
        for precision in (TF32, HALF)
    )


def fixed_batches(settings: Settings) -> tuple[int, ...]:
    """Return the batches of their bundles with fixed shapes."""
    return TINY_FIXED_BATCHES if settings.tiny else FIXED_BATCHES


def checkpoint_of(settings: Settings, shape: Shape) -> Path:
    """Return the checkpoint of a shape, which `make_bundles` writes, or a sample."""
    if shape.rule and not settings.tiny:
        return ROOT / "samples" / "reformer_bytes" / "checkpoint.pt"
    return sample_checkpoint() if shape is TEXT else Path(settings.folder) / f"{shape.exact}.pt"


def bundle_of(settings: Settings, name: str, fixed: int = 0) -> Path:
    """Return the bundle of a shape, `TEXT_MODEL` or a name in `FLOAT16`; its name has a digest of the exporter.

    Args:
        fixed: rows of the one with fixed shapes, for the segments of the shape; 0: the one with free shapes.
    """
    if settings.tiny and name == TEXT_MODEL:
        name = TINY_SHAPES[0].name
    tiny = "tiny-" if settings.tiny and (name in FLOAT16 or name.startswith("reformer")) else ""
    form = "" if not fixed else "-fixed" if fixed == 1 else f"-fixed{fixed}"
    return Path(settings.folder) / f"{tiny}{name}{form}-{code_digest()}"


def make_bundles(settings: Settings, record: Record) -> None:
    """Write the checkpoints and bundles that the other parts need, unless they exist in the folder.

    Raises:
        PartError: a conversion failed; its output on stderr comes before the message.
    """
    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    shapes = [*reversed(shapes_of(settings)), *([] if settings.tiny else [TEXT])]  # the largest first
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(functools.partial(_make_checkpoint, settings), shapes))
        forms = [(shape, fixed) for shape in shapes for fixed in (0, 1) if shape.mem_len or not fixed]
        for made in [pool.submit(_convert, settings, *form) for form in forms]:
            made.result()
        list(pool.map(functools.partial(_make_float16, settings), FLOAT16))
    names = [*(shape.name for shape in shapes_of(settings)), TEXT_MODEL, *FLOAT16]
    record({"megabytes": {name: _megabytes(bundle_of(settings, name)) for name in names}})


def make_reformers(settings: Settings) -> None:
    """Write the bundles of Reformers with free shapes, as `make_bundles` does."""
    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    for shape in REFORMERS:
        _make_checkpoint(settings, shape)
    with ThreadPoolExecutor(len(REFORMERS)) as pool:
        list(pool.map(lambda shape: _convert(settings, shape, fixed=0), REFORMERS))


def make_low_precisions(settings: Settings) -> None:
    """Write the bundles that `low_precisions` needs beside those of `make_bundles`."""
    tf32, half = low_precisions(settings)
    for fixed in (0, *fixed_batches(settings)):
        _convert(settings, replace(tf32, name=tf32.exact), fixed)
        _write_half(bundle_of(settings, half.exact, fixed), bundle_of(settings, half.name, fixed))


def write_checkpoint(path: Path, config: dict[str, Any], reformer: bool) -> None:
    """Write random weights of this shape; documents begin with memory of zeros, so that it is full from the start."""
    import torch

    from xltraining.checkpoint import save_checkpoint
    from xltraining.reformer import Reformer, ReformerConfig
    from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

    torch.manual_seed(0)
    if reformer:
        small = ReformerConfig(**config)
        save_checkpoint(path, small, Reformer(small).state_dict(), tokenizer="bytes")
        return
    sizes = TransformerXLConfig(**{**config, "dropout": 0.0, "first_memory": "zeros"})
    tokenizer = "bytes" if sizes.n_token == 256 else None
    save_checkpoint(path, sizes, TransformerXL(sizes).state_dict(), tokenizer=tokenizer)


def _make_checkpoint(settings: Settings, shape: Shape) -> None:
    checkpoint = checkpoint_of(settings, shape)
    sizes = {} if shape.rule else {"tgt_len": shape.segment_len, "mem_len": shape.mem_len}
    if not checkpoint.exists():
        run_once(write_checkpoint, checkpoint, {**shape.config, **sizes}, bool(shape.rule))


def _convert(settings: Settings, shape: Shape, fixed: int) -> None:
    """Verify only two segments, because the parts compare all their scores with PyTorch."""
    shapes = ["--fixed", f"batch={fixed},segment={shape.segment_len}"] if fixed else []
    rule = ["--rule", shape.rule] if shape.rule not in ("", "band") else []
    options = ["--segments", "2", *shapes, *rule, *(["--tokenizer", "none"] if shape.config.get("cutoffs") else [])]
    _run("convert", checkpoint_of(settings, shape), bundle_of(settings, shape.name, fixed), options)


def _make_float16(settings: Settings, name: str) -> None:
    source, memory = FLOAT16[name]
    options = ["--dtype", "float16", f"--set=memory_dtype={memory}", f"--set=tokens={GATE_TOKENS}"]
    _run("quantize", bundle_of(settings, source), bundle_of(settings, name), options)


def _write_half(source: Path, output: Path) -> None:
    """Write a bundle of random weights in float16, memory included, without the gate of `quantize`."""
    if output.exists():
        return
    bundle = read_bundle(source, check_files=False)
    with publishing(output) as folder:
        half = write_graphs(source, bundle, folder, PRECISIONS[HALF], frozenset(), HALF)
        write_manifest(folder, replace(half, files=digests(folder)))


def _run(command: str, source: Path, output: Path, options: Sequence[str]) -> None:
    if output.exists():
        return
    line = [sys.executable, "-m", "xlexport", command, str(source), "-o", str(output), *options]
    process = subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise PartError(f"{command} of {source} ended with status {process.returncode}: {last}")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6
