"""Refuse operators that graphs of bundles cannot have, right after the trace, while the model's line is known."""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from xlexport.errors import OperatorError
from xlruntime.graph_gate import OPERATORS

__all__ = ["FX_NODE", "check_operators", "without_wide_limits"]

FX_NODE = "pkg.torch.onnx.fx_node"  # where the exporter records the origin of a node
INEXACT = ("Clip", "Max", "Min", "Sign")  # of int64: ONNX Runtime computes them wrongly from 2^31 on


def without_wide_limits(model: ir.Model) -> None:
    """Replace Max and Min of int64, which torch's own translations record, by comparisons."""
    for node in [*model.graph.all_nodes()]:
        if node.op_type not in ("Max", "Min") or node.outputs[0].dtype != ir.DataType.INT64 or node.graph is None:
            continue
        limit, *others = node.inputs
        nodes = [] if others else [ir.node("Identity", [limit])]
        for other in others:
            is_chosen = ir.node("Greater" if node.op_type == "Max" else "Less", [limit, other])
            nodes += [is_chosen, ir.node("Where", [is_chosen.outputs[0], limit, other])]
            limit = nodes[-1].outputs[0]
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], nodes, node.outputs, nodes[-1].outputs)


def check_operators(model: ir.Model) -> None:
    """Raise OperatorError if a node of a traced model is not allowed, inexact, float64, or unknown to ONNX Runtime."""
    seen = set()
    for node in model.graph.all_nodes():
        types = [value.dtype for value in (*node.inputs, *node.outputs) if value is not None]
        key = node.op_type, *types, *(str(one) for one in node.attributes.values() if one.type == ir.AttributeType.INT)
        if node.domain or key in seen:
            continue
        seen.add(key)
        kind = " and ".join(sorted({str(one).lower() for one in types if one is not None}))
        hint = "Compute it with other operators, such as exp, cumsum, matmul and where."
        if node.op_type not in OPERATORS:
            fault = f"becomes the operator {node.op_type}, which graphs of bundles do not have"
        elif ir.DataType.DOUBLE in types:
            fault = "computes in float64, which GPUs in browsers lack"
            hint = "Compute in float32. Keep counters in integers, and take `%` of them before `.float()`."
        elif node.op_type in INEXACT and ir.DataType.INT64 in types:
            fault = f"becomes {node.op_type} of int64, which ONNX Runtime computes wrongly from 2^31 on"
            hint = "Use torch.where and a comparison."
        elif not _has_kernel(node):
            fault = f"becomes {node.op_type} of {kind}, which ONNX Runtime cannot compute"
            hint = "Compute it in float32, int32 or int64, and convert the result."
        else:
            continue
        origin = re.search(r"target=torch\.ops\.([\w.]+)", node.metadata_props.get(FX_NODE, ""))
        name = origin[1].removesuffix(".default") if origin else node.op_type
        raise OperatorError(f"{name} {fault}.", hint)


def _has_kernel(node: ir.Node) -> bool:
    """Return whether ONNX Runtime opens a graph of this node alone; true for nodes with graphs or unknown types."""
    if any(one.type == ir.AttributeType.GRAPH for one in node.attributes.values()):
        return True
    inputs: Any
    outputs: Any
    inputs, outputs = (
        [value and ir.Value(name=f"{name}{n}", type=value.type) for n, value in enumerate(values)]
        for name, values in (("x", node.inputs), ("y", node.outputs))
    )
    lone = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=outputs)
    values = [value for value in (*inputs, *outputs) if value]
    if any(value.type is None for value in values):
        return True
    graph = ir.Graph(values[: -len(outputs)], outputs, nodes=[lone], opset_imports={"": 20}, name="lone")
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = ir.serde.serialize_model(ir.Model(graph, ir_version=10)).SerializeToString()
    try:
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return type(error).__name__ not in ("NotImplemented", "InvalidGraph")
    return True
