"""Make the checkpoints and bundles that the parts use, once in a folder, several at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import code_digest
from benchmarks.sides import ROOT, run_once
from reliability.gpu.parts import PartError, Record, Settings
from reliability.gpu.shapes import SHAPES, TINY_SHAPES, Shape
from xlexport.sample import sample_checkpoint

__all__ = ["FLOAT16", "TEXT_MODEL", "bundle_of", "checkpoint_of", "make_bundles", "shapes_of"]

TEXT_MODEL = "text"  # the trained sample, because the cost of float16 is measured on real text
FLOAT16 = {
    "float16": "float32",
    "float16-memory": "float16",
}  # its bundles in float16, and the precision of their memories
GATE_TOKENS = "2048"  # `quantize` measures on the CPU, where float16 is slow; this program measures again on the device


def shapes_of(settings: Settings) -> tuple[Shape, ...]:
    """Return the shapes for which speed is measured."""
    return TINY_SHAPES if settings.tiny else SHAPES


def checkpoint_of(settings: Settings, shape: Shape) -> Path:
    """Return the checkpoint of a shape, which `make_bundles` writes."""
    return Path(settings.folder) / f"{shape.name}.pt"


def bundle_of(settings: Settings, name: str) -> Path:
    """Return the bundle of a shape, `TEXT_MODEL` or a name in `FLOAT16`; its name has a digest of the exporter."""
    if settings.tiny and name == TEXT_MODEL:
        name = TINY_SHAPES[0].name
    tiny = "tiny-" if settings.tiny and name in FLOAT16 else ""
    return Path(settings.folder) / f"{tiny}{name}-{code_digest()}"


def make_bundles(settings: Settings, record: Record) -> None:
    """Write the checkpoints and bundles that the other parts need, unless they exist in the folder.

    Raises:
        PartError: a conversion failed; its output on stderr comes before the message.
    """
    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    text = bundle_of(settings, TEXT_MODEL)  # with tiny sizes it is one of the shapes
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        # The largest shape first: it takes longest.
        shapes = [shape for shape in reversed(shapes_of(settings)) if bundle_of(settings, shape.name) != text]
        works = [pool.submit(_make_shape, settings, shape) for shape in shapes]
        works.append(pool.submit(_make_text_models, settings))
        for work in works:
            work.result()
    names = [*(shape.name for shape in shapes_of(settings)), TEXT_MODEL, *FLOAT16]
    record({"megabytes": {name: _megabytes(bundle_of(settings, name)) for name in names}})


def write_checkpoint(path: str, config: dict[str, Any]) -> None:
    """Write random weights of this shape; documents begin with memory of zeros, so that it is full from the start."""
    import torch

    from xltraining.checkpoint import save_checkpoint
    from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

    torch.manual_seed(0)
    cutoffs = tuple(config.get("cutoffs", ()))
    chosen = TransformerXLConfig(**{**config, "cutoffs": cutoffs, "dropout": 0.0, "first_memory": "zeros"})
    save_checkpoint(
        path, chosen, TransformerXL(chosen).state_dict(), tokenizer="bytes" if chosen.n_token == 256 else None
    )


def _make_shape(settings: Settings, shape: Shape) -> None:
    checkpoint = _make_checkpoint(settings, shape)
    options = ["--set", "cuda_graphs=true"] if shape.cuda_graphs else ["--tokenizer", "none"]
    _convert(checkpoint, bundle_of(settings, shape.name), options)


def _make_text_models(settings: Settings) -> None:
    text = bundle_of(settings, TEXT_MODEL)
    if settings.tiny:
        _make_shape(settings, TINY_SHAPES[0])
    else:
        _convert(sample_checkpoint(), text, ["--set", "cuda_graphs=true"])
    for name, memory_dtype in FLOAT16.items():
        options = ["--dtype", "float16", "--memory-dtype", memory_dtype, "--tokens", GATE_TOKENS]
        _run("quantize", text, bundle_of(settings, name), options)


def _make_checkpoint(settings: Settings, shape: Shape) -> Path:
    path = checkpoint_of(settings, shape)
    if not path.exists():
        run_once(write_checkpoint, path, {**shape.config, "tgt_len": shape.segment_len, "mem_len": shape.mem_len})
    return path


def _convert(checkpoint: Path, bundle: Path, options: Sequence[str]) -> None:
    """Convert a checkpoint and verify only two segments, because the parts compare all their scores with PyTorch."""
    _run("convert", checkpoint, bundle, ["--segments", "2", *options])


def _run(command: str, source: Path, output: Path, options: Sequence[str]) -> None:
    if output.exists():
        return
    made = subprocess.run(
        [sys.executable, "-m", "xlexport", command, str(source), "-o", str(output), *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PartError(f"{command} of {source} ended with status {made.returncode}: {last}")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6
