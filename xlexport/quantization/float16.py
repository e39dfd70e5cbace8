"""Float16 for CUDA: products, normalisations and the nodes between them; sums of probabilities stay float32.

There are three kinds of nodes. Products and normalisations compute in float16 (inside them, ONNX Runtime accumulates in
float32). Nodes that only move or add numbers have the dtype of their inputs. All other nodes compute in float32, for
example logarithms of probabilities, angles, custom operators, and products that are kept. Casts connect the kinds.
The custom operators of `INLINED` are replaced by their bodies before, so that the same rules hold for their nodes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from xlexport.quantization.matmuls import WeightStore, find_products

__all__ = ["INLINED", "OPSET", "POSITION_KEY", "rewrite"]

OPSET = 20
POSITION_KEY = "position_key_"
FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = 65504.0  # in float16
INLINED = frozenset({"RelativeAttention", "RelativeMasks"})  # functions that compute in float16, too
IN_HALF = {"Gemm", "LayerNormalization", "MatMul", "Softmax"}
FOLLOWS = {
    *("Add", "Concat", "Expand", "Flatten", "Gather", "Gelu", "Identity", "Max", "Min", "Mul", "Neg", "Pad", "Relu"),
    *("GatherElements", "GatherND", "Reshape", "ScatterElements", "ScatterND", "Shape", "Slice", "Split", "Squeeze"),
    *("Sub", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where"),
}


def rewrite(model: ir.Model, keep: frozenset[str], store: WeightStore) -> None:
    """Rewrite a graph to compute in float16, except for the products in `keep`.

    The dtypes of its inputs and outputs must already be set; float32 ones stay float32. A node with a constant that is
    too large for float16 computes in float32.
    """
    _Rewriter(model, keep, store).run()
    RemoveUnusedNodesPass()(model)


class _Rewriter:
    def __init__(self, model: ir.Model, keep: frozenset[str], store: WeightStore) -> None:
        self.graph, self.store = model.graph, store
        self.kept = {product.node for product in find_products(model) if product.name in keep}
        self.floats = {value for value in _values(model.graph) if value.dtype in (FLOAT, HALF)}
        self.cast: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        outputs = [
            (value, value.dtype) for value in self.graph.outputs if value in self.floats and value.dtype is not None
        ]
        for node in list(self.graph):
            dtype = self._dtype(node)
            for place, value in enumerate(node.inputs):
                if value in self.floats:
                    node.replace_input_with(place, self._as(value, dtype, node))
            for value in node.outputs:
                if value in self.floats:
                    value.dtype = dtype
        for value, dtype_before in outputs:
            if value.dtype != dtype_before:
                self._convert_output(value, dtype_before)

    def _dtype(self, node: ir.Node) -> ir.DataType:
        """Return the dtype for the floating-point inputs and outputs of a node."""
        if node in self.kept or node.domain not in ("", "ai.onnx") or node.op_type not in IN_HALF | FOLLOWS:
            return FLOAT
        if not all(_fits(value) for value in node.inputs if value in self.floats):
            return FLOAT
        if any(user.graph is not self.graph for value in node.outputs for user, _ in value.uses()):
            return FLOAT  # the body of a scan reads it
        if node.op_type in IN_HALF:
            # As in `find_products`, only matrices are rounded, not weights with more axes, such as hash rotations.
            constants = (value for value in node.inputs if value is not None and value.is_initializer())
            return FLOAT if any(len(value.shape or ()) > 2 for value in constants) else HALF
        dtypes = {value.dtype for value in node.inputs if value in self.floats and not value.is_initializer()}
        return FLOAT if FLOAT in dtypes else HALF

    def _as(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in self.cast:
            cast = self._half(value) if value.is_initializer() else self._insert_cast(value, dtype, before)
            self.cast[value, dtype] = cast
        return self.cast[value, dtype]

    def _half(self, value: ir.Value) -> ir.Value:
        """Return a weight or constant in float16."""
        assert value.const_value is not None
        name, array = f"{value.name}.float16", value.const_value.numpy().astype(np.float16)
        if value.const_value.size == 1:  # the name may be that of another number in another graph
            return WeightStore().value(self.graph, name, array)
        return self.store.value(self.graph, name, array)

    def _insert_cast(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        cast = ir.node("Cast", [value], {"to": dtype})
        self.graph.insert_before(before, cast)
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(dtype), value.shape
        return cast.outputs[0]

    def _convert_output(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Cast a graph output to its declared dtype."""
        producer = value.producer()
        assert producer is not None
        cast = ir.node("Cast", [value], {"to": dtype})
        self.graph.insert_after(producer, cast)
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(dtype), value.shape
        cast.outputs[0].name, value.name = value.name, f"{value.name}.computed"
        self.graph.outputs[self.graph.outputs.index(value)] = cast.outputs[0]


def _fits(value: ir.Value | None) -> bool:
    """Return whether float16 can hold a value; nodes that hide keys by a large number need float32."""
    if value is None or value.const_value is None:
        return True
    size = np.abs(value.const_value.numpy())
    return bool((size[np.isfinite(size)] <= LARGEST).all())


def _values(graph: ir.Graph) -> list[ir.Value]:
    outputs = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *outputs]
