"""Graphs that a runtime must refuse before or after it runs them, in bundles whose digests are right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from xlexport.architectures.detail import TOP_K
from xlruntime import spec

__all__ = ["DETAIL", "INPUTS", "SCORE", "hostile_graphs", "with_metadata"]

node = helper.make_node
TOKENS = ("batch", "segment")
INPUTS = (spec.Tensor("tokens", "int64", TOKENS), spec.Tensor("targets", "int64", TOKENS))
SCORE = (spec.Tensor("log_prob", "float32", TOKENS),)
DETAIL = (
    *SCORE,
    spec.Tensor("rank", "int64", TOKENS),
    spec.Tensor("entropy", "float32", TOKENS),
    spec.Tensor("top_ids", "int64", (*TOKENS, TOP_K)),
    spec.Tensor("top_log_probs", "float32", (*TOKENS, TOP_K)),
)
FLOATS = node("Cast", ["targets"], ["f"], to=TensorProto.FLOAT)
CONSTANTS = {"minus": np.float32(-0.01), "plus": np.float32(0.01), "one": np.array([1]), "more": np.array([100])}
DOMAIN = "ai.xlexport"


def hostile_graphs() -> Iterator[tuple[str, str, onnx.ModelProto, bool]]:
    """Yield the name, a word of the refusal, the graph, and whether it opens and only a step is refused."""
    yield "operator", "RandomUniformLike", _model([node("RandomUniformLike", ["f"], ["log_prob"])]), False
    yield (
        "contrib_operator",
        "QuickGelu",
        _model([node("QuickGelu", ["f"], ["log_prob"], domain="com.microsoft")]),
        False,
    )
    foreign = _function("Twice", [node("Add", ["x", "x"], ["y"])], "other.domain")
    yield "foreign_function", "Twice", _model([_call("Twice", "f", "log_prob", "other.domain")], [foreign]), False
    same = _function("Round", [_call("Round", "x", "y")])
    yield "function_calls_itself", "calls itself", _model([_call("Round", "f", "log_prob")], [same]), False
    missing = _model([_call("Missing", "f", "log_prob")])
    yield "function_missing", "Missing", missing, False
    yield "many_nodes", "100,000", _laughs(8, 5), False
    yield "deep_functions", "16", _laughs(18, 1), False
    yield "deep_graphs", "16", _nested(18), False
    yield "weights_elsewhere", "elsewhere.bin", _external("elsewhere.bin"), False
    yield "weights_in_description", "README.md", _external("README.md"), False
    training = _model([node("Mul", ["f", "minus"], ["log_prob"])])
    training.training_info.add()
    yield "training", "training", training, False
    scaled = node("Mul", ["f", "minus"], ["m"])
    yield "score_above_zero", "log_prob", _model([node("Mul", ["f", "plus"], ["log_prob"])]), True
    yield "score_shape", "log_prob", _model([scaled, node("Slice", ["m", "one", "more", "one"], ["log_prob"])]), True
    yield "score_type", "log_prob", _model([scaled, node("Cast", ["m"], ["log_prob"], to=TensorProto.DOUBLE)]), True


def with_metadata(made: onnx.ModelProto, graph: spec.Graph) -> bytes:
    """Return the content of a graph's file, with the part of the manifest that it repeats."""
    made.metadata_props.add(key=spec.METADATA_KEY, value=graph.metadata(()))
    return bytes(made.SerializeToString())


def _model(
    nodes: Sequence[onnx.NodeProto],
    functions: Sequence[onnx.FunctionProto] = (),
    tensors: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    taken = [helper.make_tensor_value_info(tensor.name, TensorProto.INT64, TOKENS) for tensor in INPUTS]
    held = [*(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()), *tensors]
    graph = helper.make_graph([FLOATS, *nodes], "made", taken, [helper.make_empty_tensor_value_info("log_prob")], held)
    domains = ("com.microsoft", "other.domain", DOMAIN)
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def _function(name: str, nodes: Sequence[onnx.NodeProto], domain: str = DOMAIN) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(domain, name, ["x"], ["y"], nodes, opsets)


def _call(name: str, x: str, y: str, domain: str = DOMAIN) -> onnx.NodeProto:
    return node(name, [x], [y], domain=domain)


def _laughs(levels: int, calls: int) -> onnx.ModelProto:
    """Return a graph of functions that each call the next one `calls` times."""
    functions = [_function(f"F{levels}", [node("Neg", ["x"], ["y"])])]
    for level in range(levels):
        values = ["x", *(f"v{number}" for number in range(calls - 1)), "y"]
        nodes = [_call(f"F{level + 1}", a, b) for a, b in itertools.pairwise(values)]
        functions.append(_function(f"F{level}", nodes))
    return _model([_call("F0", "f", "log_prob")], functions)


def _nested(depth: int) -> onnx.ModelProto:
    """Return a graph of loops within loops."""
    inner = node("Identity", ["f"], ["y0"])
    for level in range(depth):
        taken = [
            helper.make_tensor_value_info(f"round{level}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"go{level}", TensorProto.BOOL, []),
        ]
        given = [
            helper.make_tensor_value_info(f"on{level}", TensorProto.BOOL, []),
            helper.make_empty_tensor_value_info(f"y{level}"),
        ]
        go_on = node("Identity", [f"go{level}"], [f"on{level}"])
        body = helper.make_graph([inner, go_on], f"body{level}", taken, given)
        inner = node("Loop", ["one", "", ""], [f"y{level + 1}"], body=body)
    return _model([inner, node("Identity", [f"y{depth}"], ["log_prob"])])


def _external(location: str) -> onnx.ModelProto:
    tensor = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return _model([node("Mul", ["f", "weights"], ["log_prob"])], tensors=[tensor])
