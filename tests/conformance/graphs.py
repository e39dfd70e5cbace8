"""Graphs that a runtime must refuse before or after it runs them, in bundles whose digests are right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .actions import manifest_files

node = helper.make_node
TOKENS = ["batch", "segment"]
TOP = [*TOKENS, 10]
OUTPUTS: Mapping[str, tuple[str, list[Any]]] = {
    "log_prob": ("float32", TOKENS),
    "rank": ("int64", TOKENS),
    "entropy": ("float32", TOKENS),
    "top_ids": ("int64", TOP),
    "top_log_probs": ("float32", TOP),
}
SECRET = bytes(64)  # what an escape reads if it is not refused
DOMAIN = "ai.xlexport"
CONSTANTS = {"minus": np.float32(-0.01), "one": np.array([1]), "two": np.array([2]), "top": np.array([1, 1, 10])}
SCORED = [node("Cast", ["targets"], ["f"], to=TensorProto.FLOAT), node("Mul", ["f", "minus"], ["log_prob"])]
LISTED = [
    *SCORED,
    node("Neg", ["log_prob"], ["entropy"]),
    node("Unsqueeze", ["targets", "two"], ["each"]),
    node("Expand", ["each", "top"], ["top_ids"]),
    node("Cast", ["top_ids"], ["g"], to=TensorProto.FLOAT),
]
WEIGHED = [SCORED[0], node("Mul", ["f", "weights"], ["log_prob"])]


def bundle_of(graphs: Mapping[str, bytes], outputs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the manifest of a bundle of bytes without memory."""
    inputs = {name: {"feed": name} for name in ("tokens", "targets")}
    common = {"format": "onnx", "fixed": {}, "inputs": inputs}
    return {
        "format": 5,
        "requires": {"onnxruntime": "1.24.1", "opset": 20, "domains": {DOMAIN: 1}},
        "model": {"architecture": "artificial", "config": {}, "vocab_size": 256, "precision": "float32"},
        "tokenizer": {"kind": "bytes", "file": None, "first_id": 0},
        "document": {
            **{"segment_len": 8, "max_positions": None, "restart": False, "full_document": False},
            **{"bidirectional": False, "fresh_memory": "empty", "encoder": None},
        },
        **{"settings": {}, "rings": {}, "memory": []},
        "graphs": {
            name: {
                "file": f"{name}.onnx",
                "outputs": {each: dict(zip(("dtype", "shape"), OUTPUTS[each], strict=True)) for each in outputs[name]},
                **common,
            }
            for name in graphs
        },
        "steps": {name: [{"graph": name, "max_segment": None, "kernels": [], "device": None}] for name in graphs},
        "meaning": {},
        "provenance": {"licence": None, "data": None, "intended_use": None},
        "fingerprint": "0" * 64,
        "files": {
            f"{name}.onnx": {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
            for name, raw in graphs.items()
        },
    }


def hostile_graphs() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of graphs that do not open."""
    yield "no_graph", b"no graph at all"
    yield "empty", b""
    yield "file_of_nothing", _graph(WEIGHED, tensors=[_external("elsewhere.data")])
    yield "file_for_people", _graph(WEIGHED, tensors=[_external("README.md")])
    yield "function_missing", _graph([SCORED[0], node("Missing", ["f"], ["log_prob"], domain=DOMAIN)])
    yield "other_input", _graph(SCORED, inputs=("tokens", "targets", "more"))
    yield "other_output", _graph([SCORED[0], node("Mul", ["f", "minus"], ["score"])], outputs=("score",))


def graphs_that_open() -> Iterator[tuple[str, dict[str, bytes], dict[str, Sequence[str]], dict[str, Any]]]:
    """Yield a name, graphs, their outputs, and the fields of a `score` that is refused."""
    short = node("Slice", ["all", "one", "two", "one"], ["log_prob"])
    scaled = [SCORED[0], node("Mul", ["f", "minus"], ["all"])]
    yield "score_shape", {"score": _graph([*scaled, short])}, {"score": ["log_prob"]}, {}
    ranks = [*LISTED, node("Mul", ["g", "minus"], ["top_log_probs"]), node("Neg", ["targets"], ["rank"])]
    graphs = {"score": _graph(SCORED), "detail": _graph(ranks, outputs=[*OUTPUTS])}
    yield "ranks", graphs, {"score": ["log_prob"], "detail": [*OUTPUTS]}, {"detail": 3}


def graphs_of_other_outputs() -> Iterator[tuple[str, dict[str, bytes], dict[str, Any], dict[str, Any]]]:
    """Yield a purpose, graphs, the outputs of the graph for it, which are others, and an action that needs it."""
    score = {"do": "score", "document": {"ids": [97, 98, 99, 100, 101]}}
    single, scoring = node("Mul", ["f", "minus"], ["single"]), _graph(SCORED)
    for kind, nodes, output, dtype, shape in (
        ("score", [node("Cast", ["single"], ["log_prob"], to=TensorProto.DOUBLE)], "log_prob", "float64", TOKENS),
        ("score", [node("ReduceMax", ["single", "one"], ["log_prob"])], "log_prob", "float32", ["batch", 1]),
        ("score", [], "single", "float32", TOKENS),
        ("generate", [node("Identity", ["single"], ["logits"])], "logits", "float32", TOKENS),
    ):
        graph = _graph([SCORED[0], single, *nodes], outputs=(output,))
        action = (
            {"do": "generate", "prompt": {"ids": [97, 98]}, "max_tokens": 1, "sampling": {}}
            if kind == "generate"
            else score
        )
        yield kind, {"score": scoring, kind: graph}, {output: {"dtype": dtype, "shape": shape}}, action
    fewer = [node("ReduceMax", ["g", "two"], ["least"]), node("Mul", ["least", "minus"], ["top_log_probs"])]
    ones = [node("Sub", ["targets", "targets"], ["zero"]), node("Add", ["zero", "one"], ["rank"])]
    outputs: dict[str, Any] = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in OUTPUTS.items()}
    outputs["top_log_probs"]["shape"] = [*TOKENS, 1]
    detail = _graph([*LISTED, *fewer, *ones], outputs=[*OUTPUTS])
    yield "detail", {"score": scoring, "detail": detail}, outputs, {**score, "detail": 3}


def _initializer(tensor: TensorProto) -> bytes:
    return _graph(WEIGHED, tensors=[tensor])


def _constant(tensor: TensorProto) -> bytes:
    return _graph([node("Constant", [], ["weights"], value=tensor), *WEIGHED])


def _function(tensor: TensorProto) -> bytes:
    held = helper.make_function(
        DOMAIN, "Weights", [], ["y"], [node("Constant", [], ["y"], value=tensor)], [helper.make_opsetid("", 20)]
    )
    return _graph([node("Weights", [], ["weights"], domain=DOMAIN), *WEIGHED], functions=[held])


def _sparse(tensor: TensorProto) -> bytes:
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [0])
    return _graph(WEIGHED, sparse=[onnx.SparseTensorProto(values=tensor, indices=indices, dims=[1])])


# The places in a graph that can name a file.
PLACES = {"initializer": _initializer, "constant": _constant, "function": _function, "sparse": _sparse}


def write_escapes(kit: Path) -> list[str]:
    """Write twelve bundles whose graphs read a file of the kit that is not in their folder; return their names.

    They read it by a relative path, by an absolute one, and by a link in their folder that `files` does not list.
    """
    secret = kit / "files" / "secret.bin"
    secret.parent.mkdir(exist_ok=True)
    secret.write_bytes(SECRET)
    names = []
    for way, location in {"relative": "../../files/secret.bin", "absolute": str(secret), "link": "link.data"}.items():
        for place, graph_with in PLACES.items():
            names.append(f"escape_{way}_{place}")
            folder = kit / "bundles" / names[-1]
            folder.mkdir()
            raw = graph_with(_external(location))
            if way == "link":
                (folder / location).symlink_to("../../files/secret.bin")
            for file, content in manifest_files(bundle_of({"score": raw}, {"score": ["log_prob"]})).items():
                (folder / file).write_bytes(content)
            (folder / "score.onnx").write_bytes(raw)
    return names


def _external(location: str) -> TensorProto:
    """Return a tensor of one number, whose data lie in another file."""
    tensor = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str] = ("tokens", "targets"),
    outputs: Sequence[str] = ("log_prob",),
    tensors: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    sparse: Sequence[onnx.SparseTensorProto] = (),
) -> bytes:
    """Return the content of a graph's file."""
    graph = helper.make_graph(
        nodes,
        "artificial",
        [helper.make_tensor_value_info(name, TensorProto.INT64, TOKENS) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [*(numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()), *tensors],
        sparse_initializer=sparse,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10).SerializeToString())
