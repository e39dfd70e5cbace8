"""Measure which small faults the known answers of a bundle notice: `python -m tests.faults.answers BUNDLE...`.

A fault makes an output of one matrix product, normalization, embedding or custom operator of a score graph 1 % larger.
One that changes no score, as in the projections of hashes, whose largest alone counts, is none. Another fault is a
library of kernels in which one tile of each attention is off by one row.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.helpers.native import NATIVE, compiler
from xlruntime import load
from xlruntime.operator_domain import DOMAIN

KINDS = {"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "Gather"}
WHOLE = {"LSHSort"}  # its outputs are indices
FACTOR = 1.01
WRONG_TILES = {  # operator → file of its inner loops, a line of a tile, and the line that makes it wrong
    "RelativeAttention": (
        "relative_attention.inc",
        "kBefore + column - (shift - q);",
        "kBefore + column - (shift - q) + (q == rows && panel == 0);",
    ),
    "LSHAttention": (
        "band_attention.inc",
        "multiply_tile<Start::kZero>(task.values + at * task.pitch, 1,",
        "multiply_tile<Start::kZero>(task.values + (at - (at > 0)) * task.pitch, 1,",
    ),
    "LSHChunkAttention": (
        "chunk_attention.inc",
        "task.values + slot * width * task.pitch;",
        "task.values + (slot * width - (slot == 1)) * task.pitch;",
    ),
}


def faults(graph: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the kind of each operator that can be wrong, and a graph in which it is."""
    shapes = onnx.shape_inference.infer_shapes(graph).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*shapes.value_info, *shapes.output)}
    for place, node in enumerate(graph.graph.node):
        is_own = node.domain == DOMAIN and node.op_type not in WHOLE
        if not is_own and (node.op_type not in KINDS or types.get(node.output[0]) != onnx.TensorProto.FLOAT):
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(graph)
        exact, name = f"{node.output[0]}_exact", node.output[0]
        changed.graph.node[place].output[0] = exact
        changed.graph.initializer.append(numpy_helper.from_array(np.array(FACTOR, np.float32), "one_percent_more"))
        changed.graph.node.insert(place + 1, helper.make_node("Mul", [exact, "one_percent_more"], [name]))
        yield node.op_type, changed


def wrong_kernels(folder: Path) -> Path:
    """Build a library of kernels in which a tile of each attention is wrong, with copied sources in a new folder.

    Raises:
        ValueError: the line of a tile is not in the sources.
    """
    shutil.copytree(NATIVE, folder, ignore=shutil.ignore_patterns("src", "archive"))
    for name, right, wrong in WRONG_TILES.values():
        file = folder / "kernels" / name
        text = file.read_text("utf-8")
        if text.count(right) != 1:
            raise ValueError(f"{file}: has {right!r} {text.count(right)} times, expected once.")
        file.write_text(text.replace(right, wrong), "utf-8")
    library = folder / "libwrong.so"
    options: list[str | Path] = ["-o", library, f"--compiler={compiler()}", "--flags=-O1 -w"]
    subprocess.run([sys.executable, folder / "build_library.py", *options], check=True)
    return library


def measure(bundle: Path, kernels: Path | None = None) -> tuple[Counter[str], Counter[str]]:
    """Return how many faults of each kind there are, and how many of them the answers notice.

    Args:
        kernels: a library with wrong tiles, which are faults, too.
    """
    tried, seen = Counter[str](), Counter[str]()
    model = load(bundle, threads=1, ops="none")
    right = model.check().largest
    file = model.bundle.graphs[model.main_graph("score")].file
    with tempfile.TemporaryDirectory(dir=bundle.parent) as name:
        folder = Path(name)
        for each in bundle.iterdir():
            if each.name != file:
                (folder / each.name).hardlink_to(each)
        for kind, graph in faults(onnx.load(bundle / file, load_external_data=False)):
            (folder / file).write_bytes(graph.SerializeToString())
            result = load(folder, threads=1, ops="none", check_files=False).check()
            tried[kind] += result.largest != right
            seen[kind] += result.passed is False
    model = load(bundle, threads=1, ops=kernels or "none")
    file = model.bundle.graphs[model.main_graph("score")].file
    kinds = {node.op_type for node in onnx.load(bundle / file, load_external_data=False).graph.node}
    for kind in sorted(WRONG_TILES.keys() & kinds) if kernels else ():
        tried[f"{kind}, a wrong tile"] += 1
        seen[f"{kind}, a wrong tile"] += model.check().passed is False
    return tried, seen


def main() -> None:
    """Print the share of noticed faults of each kind, and the time of a check."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = wrong_kernels(Path(folder, "c"))
        for bundle in map(Path, sys.argv[1:]):
            tried, seen = measure(bundle, kernels)
            for kind, count in sorted(tried.items()):
                print(f"{bundle.name}: {kind}: {seen[kind]} of {count}")
            model = load(bundle, threads=1, ops="none")
            model.check()
            began = time.perf_counter()
            model.check()
            seconds = time.perf_counter() - began
            share = seen.total() / tried.total()
            print(f"{bundle.name}: {seen.total()} of {tried.total()} faults ({share:.1%}), check {seconds:.3f} s")


if __name__ == "__main__":
    main()
