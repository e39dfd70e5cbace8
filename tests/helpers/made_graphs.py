"""Bundles around graphs that a test makes node by node, with all digests right: what a stranger could send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from xlexport.manifest import digests, fingerprint, write_manifest
from xlruntime.bundle import Bundle, Choice, Feed, Graph, Tensor, TokenizerEntry
from xlruntime.evaluation import EvaluationRules

TOKENS = ("batch", "segment")
SCORE = {"log_prob": Tensor("float32", TOKENS)}
DETAIL = {
    **SCORE,
    "rank": Tensor("int64", TOKENS),
    "entropy": Tensor("float32", TOKENS),
    "top_ids": Tensor("int64", (*TOKENS, 10)),
    "top_log_probs": Tensor("float32", (*TOKENS, 10)),
}
INPUTS = {"tokens": Feed("tokens"), "targets": Feed("targets")}


def graph(
    nodes: Sequence[onnx.NodeProto],
    initializers: Iterable[onnx.TensorProto] = (),
    outputs: Iterable[str] = ("log_prob",),
) -> onnx.GraphProto:
    """Return a graph that takes tokens and targets (B, S). Its outputs have types and shapes that nothing declares."""
    taken = [helper.make_tensor_value_info(name, TensorProto.INT64, TOKENS) for name in ("tokens", "targets")]
    given = [helper.make_empty_tensor_value_info(name) for name in outputs]
    return helper.make_graph(nodes, "made", taken, given, list(initializers))


def model(made: onnx.GraphProto, functions: Sequence[onnx.FunctionProto] = (), *domains: str) -> onnx.ModelProto:
    """Return a model of the opset and IR version that bundles have."""
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in ("ai.xlexport", *domains))]
    return helper.make_model(made, opset_imports=opsets, functions=functions, ir_version=10)


def external(name: str, location: str, size: int) -> onnx.TensorProto:
    """Return a tensor of bytes that lies in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def made_bundle(
    folder: Path,
    models: Mapping[str, onnx.ModelProto],
    outputs: Mapping[str, Mapping[str, Tensor]] | None = None,
    unlisted: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a bundle of bytes without memory.

    Args:
        models: its graphs by purpose.
        outputs: what the manifest says that they give; None: what `score` and `detail` should.
        unlisted: files that lie in the folder, but not in the manifest.
    """
    folder.mkdir()
    declared = outputs or {"score": SCORE, "detail": DETAIL}
    graphs = {}
    for purpose, made in models.items():
        graphs[purpose] = Graph(f"{purpose}.onnx", "onnx", INPUTS, declared[purpose])
        (folder / f"{purpose}.onnx").write_bytes(made.SerializeToString())
    bundle = Bundle(
        architecture="made up",
        config={},
        vocab_size=256,
        tokenizer=TokenizerEntry("bytes"),
        precision="float32",
        evaluation=EvaluationRules(segment_len=8),
        memory=(),
        graphs=graphs,
        steps={purpose: (Choice(purpose),) for purpose in graphs},
        provenance={},
        files=(files := digests(folder)),
        fingerprint=fingerprint(files, graphs.values()),
    )
    write_manifest(folder, bundle)
    for name, content in (unlisted or {}).items():
        (folder / name).write_bytes(content)
    return folder


def endless() -> onnx.ModelProto:
    """Return a graph whose step never returns once a target is the id 255: a loop of 2^62 rounds, else of none."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["still"]), helper.make_node("Sin", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ],
    )
    loop = helper.make_node("Loop", ["rounds", "true", "m"], ["log_prob"], body=body)
    return _with_rounds([loop], most=2**62, fewest=0)


def endless_scan() -> onnx.ModelProto:
    """Return a graph like that of `endless`, of four scans within each other, of 10,000 rounds each, else of one."""
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    taken = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "tick")]
    body = helper.make_graph([helper.make_node("Sin", ["x"], ["y"])], "body", taken, [result])
    for _ in range(3):
        scan = helper.make_node("Scan", ["x", "ticks"], ["y"], body=body, num_scan_inputs=1)
        body = helper.make_graph([scan], "body", taken, [result])
    nodes = [
        helper.make_node("Reshape", ["rounds", "one"], ["shape"]),
        helper.make_node("Expand", ["scale", "shape"], ["ticks"]),
        helper.make_node("Scan", ["m", "ticks"], ["log_prob"], body=body, num_scan_inputs=1),
    ]
    return _with_rounds(nodes, most=10_000, fewest=1)


def _with_rounds(nodes: Sequence[onnx.NodeProto], most: int, fewest: int) -> onnx.ModelProto:
    """Return a graph that sets `rounds`, `most` if a target is the id 255, and `m` for these nodes."""
    first = [
        helper.make_node("ReduceMax", ["targets"], ["largest"], keepdims=0),
        helper.make_node("Equal", ["largest", "last"], ["whether"]),
        helper.make_node("Where", ["whether", "most", "fewest"], ["rounds"]),
        helper.make_node("Cast", ["targets"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
    ]
    held = {"last": np.int64(255), "most": np.int64(most), "fewest": np.int64(fewest), "true": np.array(True)}
    held |= {"one": np.array([1]), "scale": np.float32(-0.01)}
    return model(graph([*first, *nodes], [constant(name, value) for name, value in held.items()]))


def constant(name: str, array: object) -> onnx.TensorProto:
    """Return an initializer."""
    return onnx.numpy_helper.from_array(np.asarray(array), name)
