"""Print the errors of RelativeAttention against float64 while a bundle reads a text: the fallback's and the kernels'.

    python -m benchmarks.kernel_accuracy BUNDLE TEXT --ops LIBRARY [--segments 300]

The fallback walks the text. In each segment, each layer's attention is computed again from the same inputs: in float64,
by the fallback, and by the kernels at each instruction set that the processor has. `xlexport verify` prints the errors
of whole walks. Needs the extras cpu and convert.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import torch

from benchmarks.sides import PATH
from xlexport import ops
from xlexport.export.onnx import IR_VERSION, OPSET
from xlruntime.bundle import Tensor
from xlruntime.bundle_files import read_bundle
from xlruntime.load_options import LoadOptions
from xlruntime.model import Model

__all__ = ["main"]

Array = npt.NDArray[Any]
FALLBACK, LEVELS = "fallback", ("base", "avx2", "avx512")
QKV = "qkv_{}"
COUNTERS = ("offset", "memory_length", "window")


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.argument("text", type=PATH)
@click.option("--ops", "library", required=True, type=PATH, help="The library of kernels.")
@click.option("--segments", default=300, show_default=True, type=click.IntRange(1))
def main(bundle: Path, text: Path, library: Path, segments: int) -> None:
    """Walk the text and print a row for the fallback and for each instruction set."""
    torch.set_num_threads(1)
    squares: dict[str, list[float]] = defaultdict(list)
    largest: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as scratch:
        model, weights = with_queries(bundle, Path(scratch))
        sessions = open_sessions(Path(scratch), library)
        settings, ids = model.bundle.settings, model.tokenizer.encode(text.read_bytes())
        memory, S = model.new_memory(settings), settings.segment_len
        entries = {entry.input: entry for entry in model.bundle.memory}
        for start in range(0, min(segments * S, len(ids) - S), S):
            tokens, targets = ids[None, start : start + S], ids[None, start + 1 : start + S + 1]
            feeds_of_step = memory.feeds(model.bundle.graphs["score"], tokens, targets)
            counters = {name: feeds_of_step[name] for name in COUNTERS}
            outputs = model.step("score", memory, tokens, targets)
            for layer, biases in enumerate(weights):
                # The rings have the new rows already. The operator writes the same ones again.
                rings = [memory.array(entries[f"memory_{kind}_{layer}"]) for kind in ("key", "value")]
                positions = memory.plan.constants[f"position_key_{layer}"].numpy()
                (H, C), near = rings[0].shape[1:3], positions.shape[2] - 1
                sizes = np.array([H, tokens.shape[1], C, near], np.int64)
                inputs = [outputs[QKV.format(layer)], *biases, *rings, positions, *counters.values(), sizes]
                expected = in_float64(inputs)
                feeds = {f"x{i}": array for i, array in enumerate(inputs)}
                for name, session in sessions.items():
                    error = np.abs(session.run(["attended"], feeds)[0] - expected)
                    squares[name].append(float(np.square(error).mean()))
                    largest[name] = max(largest[name], float(error.max()))
    for name in sessions:
        print(f"{name:10} rms {np.sqrt(np.mean(squares[name])):.3g}, largest {largest[name]:.3g}")


def with_queries(source: Path, folder: Path) -> tuple[Model, list[list[Array]]]:
    """Return the bundle with each layer's queries, keys and values as outputs, and the two biases of each layer."""
    bundle = read_bundle(source)
    for name in bundle.files:
        shutil.copyfile(source / name, folder / name)
    model = ir.load(source / "score.onnx")
    nodes = [node for node in model.graph if node.op_type == "RelativeAttention"]
    added: dict[str, Tensor] = {}
    weights = []
    for layer, node in enumerate(nodes):
        qkv, *biases = (value for value in node.inputs[:3] if value is not None)
        qkv.name = QKV.format(layer)
        model.graph.outputs.append(qkv)
        arrays = [bias.const_value.numpy() for bias in biases if bias.const_value is not None]
        weights.append(arrays)
        added[QKV.format(layer)] = Tensor("float32", ("batch", "segment", 3 * arrays[0].size))
    score = bundle.graphs["score"]
    score = replace(score, outputs={**score.outputs, **added})
    ir.save(model, folder / "score.onnx")
    return Model(
        folder, replace(bundle, graphs={**bundle.graphs, "score": score}), LoadOptions(threads=1, ops="none")
    ), weights


def in_float64(inputs: list[Array]) -> Array:
    """Return what the operator's definition gives in float64."""
    tensors = [torch.tensor(array) for array in inputs]
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    attended: Array = ops.relative_attention(*tensors)[0].numpy()
    return attended


def open_sessions(folder: Path, library: Path) -> dict[str, ort.InferenceSession]:
    """Return sessions of a graph of the operator alone: of the fallback, and of each instruction set."""
    dtypes = [*["FLOAT"] * 6, *["INT64"] * 4]
    inputs = [ir.val(f"x{i}", ir.DataType[dtype]) for i, dtype in enumerate(dtypes)]
    attention = ir.node("RelativeAttention", inputs, domain=ops.DOMAIN, num_outputs=3)
    attention.outputs[0].name, attention.outputs[0].dtype = "attended", ir.DataType.FLOAT
    graph = ir.Graph(inputs, attention.outputs[:1], nodes=[attention], opset_imports={"": OPSET}, name="one")
    model = ir.Model(graph, ir_version=IR_VERSION)
    ops.add_functions(model)
    content = ir.to_proto(model).SerializeToString()
    sessions = {}
    for name in (FALLBACK, *LEVELS):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        if name != FALLBACK:
            os.environ["XLEXPORT_OPS_INSTRUCTION_SET"] = name
            options.register_custom_ops_library(str(shutil.copyfile(library, folder / f"{name}.so")))
        sessions[name] = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return sessions


if __name__ == "__main__":
    main()
