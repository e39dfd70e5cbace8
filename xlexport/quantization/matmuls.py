"""The products of a step graph that can be quantized: the products with the model's own weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

__all__ = ["Build", "Product", "WeightStore", "find_products", "replace_products", "unquantized_weights"]

SMALLEST_SIDE = 16  # of a weight worth quantizing, and of a block; the few columns that choose a cluster are too small

Weight = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """One node `x·W` or `x·W + b` of one graph, or of the body of a scan in it.

    Attributes:
        name: the weight's name in the model, such as `layers.0.qkv`; equal in all graphs and for all uses of a weight.
        transposed: whether the graph holds the weight as (N, K) instead of (K, N).
        is_scanned: whether the node is in the body of a scan.
    """

    name: str
    node: ir.Node
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    transposed: bool
    is_scanned: bool

    @property
    def graph(self) -> ir.Graph:
        """The graph that holds the node. It holds the quantized weight, too: ONNX Runtime looks nowhere else."""
        assert isinstance(self.node.graph, ir.Graph)
        return self.node.graph

    @property
    def suffix(self) -> str:
        """The ending of names of tensors that are made for the product: a scan's body has its own."""
        return f".{self.graph.name}" if self.is_scanned else ""

    @property
    def rows(self) -> int:
        """K, the length of each column."""
        assert self.weight.const_value is not None
        return int(self.weight.const_value.shape.numpy()[1 if self.transposed else 0])

    def read(self) -> Weight:
        """Return the weight, (K, N)."""
        assert self.weight.const_value is not None
        weight = np.asarray(self.weight.const_value.numpy(), np.float32)
        return np.ascontiguousarray(weight.T) if self.transposed else weight


class WeightStore:
    """Tensors that the graphs of a bundle share; each is made once, by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, ir.TensorProtocol] = {}

    def values(
        self, graph: ir.Graph, names: Sequence[str], make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[ir.Value]:
        """Return initializers of `graph` with the tensors `names`; `make` returns the tensors if they are missing."""
        if not self._tensors.keys() >= set(names):
            arrays = zip(names, make(), strict=True)
            self._tensors |= {name: ir.tensor(array, name=name) for name, array in arrays}
        return [self._value(graph, self._tensors[name]) for name in names]

    def value(self, graph: ir.Graph, name: str, array: npt.ArrayLike) -> ir.Value:
        """Return an initializer of `graph` that holds `array`."""
        return self.values(graph, [name], lambda: [np.asarray(array)])[0]

    @staticmethod
    def _value(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
        name = str(tensor.name)
        if name not in graph.initializers:
            shape, kind = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
            graph.register_initializer(ir.Value(name=name, shape=shape, type=kind, const_value=tensor))
        return graph.initializers[name]


# Returns the nodes of x·W for a product and a store; the last node computes the result.
Build = Callable[[Product, WeightStore], list[ir.Node]]


def find_products(model: ir.Model) -> Iterator[Product]:
    """Yield all products of a graph and of the bodies of its scans that can be quantized, in order.

    Products inside functions have no weights of their own. Only matrices count. Weights with more axes, such as hash
    rotations, stay unchanged: rounding them could change which keys a token sees, not only their weights.
    """
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Gemm"):
            continue
        x, weight, turned = node.inputs[0], *_before_transpose(node.inputs[1])
        if x is None or weight is None or weight.const_value is None or not weight.is_initializer():
            continue
        shape, gemm = weight.const_value.shape.numpy(), node.op_type == "Gemm"
        if x.is_initializer() or weight.dtype != ir.DataType.FLOAT or len(shape) != 2 or min(shape) < SMALLEST_SIDE:
            continue
        if gemm and not _is_plain(node):
            continue
        name = str(weight.name).removesuffix(".T").removesuffix(".weight")
        transposed = turned != (gemm and node.attributes.get_int("transB", 0) == 1)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        yield Product(name, node, x, weight, bias, transposed, node.graph is not model.graph)


def _before_transpose(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return a weight, and whether a node transposes it before use."""
    producer = None if value is None else value.producer()
    if (
        producer is None
        or producer.op_type != "Transpose"
        or list(producer.attributes.get_ints("perm", [1, 0])) != [1, 0]
    ):
        return value, False
    return producer.inputs[0], True


def _is_plain(node: ir.Node) -> bool:
    """Return whether a Gemm computes exactly x·W + b."""
    attributes = node.attributes
    return (
        attributes.get_int("transA", 0) == 0
        and attributes.get_float("alpha", 1.0) == 1.0
        and attributes.get_float("beta", 1.0) == 1.0
    )


def replace_products(model: ir.Model, keep: frozenset[str], store: WeightStore, build: Build) -> None:
    """Replace every product whose name is not in `keep` by the nodes that `build` returns."""
    for product in list(find_products(model)):
        if product.name in keep:
            continue
        nodes = build(product, store)
        # In a scan's body, ONNX Runtime would first make a Gemm of MatMul and Add, which takes no integers.
        add = "Sum" if product.is_scanned else "Add"
        if product.bias is not None:
            nodes.append(ir.node(add, [nodes[-1].outputs[0], product.bias]))
        old, new = product.node, nodes[-1]
        for user, _ in old.outputs[0].uses():
            if user.op_type == "Add":
                user.op_type = add
        ir.convenience.replace_nodes_and_values(product.graph, old, [old], nodes, [old.outputs[0]], [new.outputs[0]])
    RemoveUnusedNodesPass()(model)
    NameFixPass()(model)  # a body names its new values without regard to outer ones


def unquantized_weights(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Yield the name of each weight of an LSTM, GRU or RNN, and why it stays float32."""
    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx") and node.op_type in ("LSTM", "GRU", "RNN"):
            for weight in node.inputs[1:3]:
                assert weight is not None
                yield str(weight.name), f"the operator {node.op_type} needs float32"
