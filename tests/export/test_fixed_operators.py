"""Graphs of fixed shapes hold nothing that a CUDA graph, or an accelerator of a phone, cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, inliner, shape_inference

from tests.conformance.models import FAMILIES, SAMPLES
from tests.helpers.export_cache import cached_exports
from tests.helpers.paths import GOLDEN
from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from xlexport.architectures import architecture
from xlexport.checkpoints.recurrent import module_source
from xlexport.export import onnx as exporter
from xlexport.fixed_shapes import FixedShapes
from xlexport.model_names import load_source

FLOATS = {TensorProto.FLOAT}
# Types that CUDA's kernels take, if they are not all that graphs hold (OperatorKernels.md of ONNX Runtime).
CUDA_TYPES = {
    "ArgMax": FLOATS,
    "Clip": FLOATS | {TensorProto.INT64},
    "Pad": FLOATS | {TensorProto.BOOL},
    "ReduceMean": FLOATS,
    "ReduceProd": FLOATS,
    "Sum": FLOATS,
}
# Inputs that kernels read on the host before they start: from a constant, or else after a copy, which waits.
ON_THE_HOST = {"Clip": [1, 2], "CumSum": [1], "Expand": [1], "Pad": [1, 2], "Reshape": [1], "Slice": [1, 2, 3, 4]}
ON_THE_HOST |= {"Split": [1], "Squeeze": [1], "TopK": [1], "Trilu": [1], "Unsqueeze": [1]}
WAITING = {"If", "Loop", "NonZero", "Range", "Scan"}  # their sizes or passes are known on the host only
IN_PLACE = {"ScatterElements", "ScatterND"}  # of rings; windows need none


def source_of(name: str) -> tuple[str, Any, dict[str, Any]]:
    """Return the architecture, the model and its configuration."""
    if name in ("gru", "rwkv4"):
        source = load_source(f"{SAMPLES / 'gru.py'}:model", trust=True)
        if name in FAMILIES:  # which reads tokens one by one
            make, sizes = FAMILIES[name]
            source = module_source(make(sizes))
        return source.architecture, source.build_model(), dict(source.config)
    if name == "reformer":
        return "reformer", tiny_reformer(BAND), BAND.to_dict()
    model = tiny_model(cutoffs=(5, 9), clamp_len=6) if name == "relative" else tiny_model(encoding=name)
    return "transformer_xl", model, model.config.to_dict()


def graphs(name: str, folder: Path) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield each graph of a model by its purpose, for segments of 8 tokens and for one token."""
    kind, model, config = source_of(name)
    adapter, fixed = architecture(kind), FixedShapes(1, 8, {})
    sizes = fixed.sizes(fixed.rules(adapter.evaluation(config)))
    first, *shorter = (adapter.build_fixed_step(model, each) for each in sizes)
    with cached_exports():
        described = exporter.export_onnx(first, folder, shorter)
    yield from ((purpose, read(folder / graph.file)) for purpose, graph in described.items())


def read(file: Path) -> onnx.GraphProto:
    """Return a graph without functions, with the types and shapes of all values."""
    inlined = inliner.inline_local_functions(onnx.load(file, load_external_data=False))
    return shape_inference.infer_shapes(inlined, strict_mode=True, data_prop=True).graph


def problems(graph: onnx.GraphProto) -> list[str]:
    """Return what a CUDA graph cannot capture: free shapes, nodes without a kernel, and sizes computed on the way."""
    values = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types = {name: value.elem_type for name, value in values.items()}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    found = [name for name, value in values.items() if not all(axis.dim_value for axis in value.shape.dim)]
    constant = {"", *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        if constant.issuperset(node.input):
            constant.update(node.output)
            continue
        if node.domain or node.op_type in WAITING | IN_PLACE:
            found.append(node.op_type)
        if types[node.input[0]] not in CUDA_TYPES.get(node.op_type, {types[node.input[0]]}):
            found.append(f"{node.op_type} of {TensorProto.DataType.Name(types[node.input[0]])}")
        on_host = [node.input[place] for place in ON_THE_HOST.get(node.op_type, []) if place < len(node.input)]
        found += [f"{node.op_type} by {name}" for name in on_host if name not in constant]
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", ["relative", "shaw", "reformer", "gru", "rwkv4"])
def test_nothing_waits_for_the_host(name: str, tmp_path: Path) -> None:
    for purpose, graph in graphs(name, tmp_path):
        assert problems(graph) == [], purpose
        operators = {node.op_type for node in graph.node}
        assert ("TopK" in operators) == purpose.startswith("detail")  # its most probable tokens


def test_the_same_check_finds_what_free_graphs_of_a_reformer_have() -> None:
    found = problems(read(GOLDEN / "reformer_band" / "bundle" / "score.onnx"))
    assert {"Loop", "Range", "ScatterND", "Pad of INT64", "tokens"} <= set(found)
    assert any(problem.startswith("Reshape by ") for problem in found)
