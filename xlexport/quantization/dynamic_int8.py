"""Dynamic int8: integers in both factors of products, for speed on a CPU.

At every step, each row that enters a product is divided by its largest number and rounded to ±127. Each row has its
own scale, so a token's scores do not depend on the rest of its batch or segment. With `DynamicQuantizeLinear`, which
has one scale for the whole tensor, they would. The nodes are standard operators (opset 19). ONNX Runtime computes
QuantizeLinear, DequantizeLinear and MatMul as one product of integers.

Its sums are exact on every processor. Without VNNI, x86-64 multiplies unsigned bytes (a row's numbers + 128) by signed
ones, and adds the products of each pair of neighbours in 16 bits, where larger sums saturate. So the two weights of a
pair add up to at most ±128: 255 · 128 is below 2^15.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from xlexport.ops import DOMAIN, add_functions
from xlexport.quantization.matmuls import Product, WeightStore, replace_products

__all__ = ["OPSET", "quantize_columns", "rewrite"]

OPSET = 20
LARGEST = 127  # symmetric: -128 is not used
LARGEST_PAIR = 128  # sum of two weights of a column, in rows 2k and 2k + 1
STEPS = np.linspace(1, 2, 17, dtype=np.float32)  # candidates, in steps that reach LARGEST; at 2, every pair fits
NOT_NEGATIVE = ("Relu", "Softmax", "Sigmoid")  # operators whose results are never below zero


def quantize_columns(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return integers (K, N) and the step of each column (N): of `STEPS` times the finest, the one that loses least.

    `integers * step` is the weight within half a step, except in pairs that are too large for a fine step.
    """
    finest = np.maximum(np.abs(weight).max(axis=0) / LARGEST, np.finfo(np.float32).tiny)
    best, step = np.zeros(weight.shape, np.int8), np.zeros_like(finest)
    least = np.full_like(finest, np.inf)
    for candidate in STEPS[:, None] * finest:
        integers = _limit_pairs(np.rint(weight / candidate))
        error = np.square(integers * candidate - weight).sum(axis=0)
        better = error < least
        least, step = np.where(better, error, least), np.where(better, candidate, step)
        best = np.where(better, integers.astype(np.int8), best)
    return best, step


def _limit_pairs(integers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Move both numbers of each pair of rows towards zero, by equal parts, until their sum is small enough."""
    K, N = integers.shape
    pairs = np.zeros((-(-K // 2), 2, N), np.float32)
    pairs.reshape(-1, N)[:K] = integers
    total = pairs.sum(axis=1)
    excess = np.sign(total) * np.maximum(np.abs(total) - LARGEST_PAIR, 0)
    pairs[:, 0] -= np.fix(excess / 2)
    pairs[:, 1] -= excess - np.fix(excess / 2)
    return pairs.reshape(-1, N)[:K]


def rewrite(model: ir.Model, keep: frozenset[str], store: WeightStore) -> None:
    """Quantize all products of a graph except `keep`."""
    # An input of several products of a graph is quantized once.
    rows: dict[tuple[ir.Value, ir.Graph], tuple[ir.Value, ir.Value]] = {}

    def build(product: Product, store: WeightStore) -> list[ir.Node]:
        nodes: list[ir.Node] = []
        if (product.x, product.graph) not in rows:
            nodes, largest = _quantize_rows(product, store)
            rows[product.x, product.graph] = nodes[-1].outputs[0], largest
        x, largest = rows[product.x, product.graph]
        names = [f"{product.name}.{part}{product.suffix}" for part in ("int8", "step")]
        integers, step = store.values(product.graph, names, lambda: quantize_columns(product.read()))
        weight = ir.node("DequantizeLinear", [integers, step], {"axis": 1})
        product_node = ir.node("MatMul", [x, weight.outputs[0]])
        return [*nodes, weight, product_node, ir.node("Mul", [product_node.outputs[0], largest])]

    replace_products(model, keep, store, build)
    if model.functions:
        add_functions(model)


def _quantize_rows(product: Product, store: WeightStore) -> tuple[list[ir.Node], ir.Value]:
    """Divide each row of a product's x by its largest number and round it to ±127 steps; return the largest, too.

    A row of zeros is divided by zero and becomes arbitrary integers, but these are later multiplied by zero.
    """
    graph, x = product.graph, product.x
    last = store.value(graph, f"int8.last_axis{product.suffix}", np.array([-1]))
    step = store.value(graph, f"int8.row_step{product.suffix}", np.float32(1 / LARGEST))
    # Unsigned, because ONNX Runtime multiplies no signed rows that several products share.
    middle = store.value(graph, f"int8.middle{product.suffix}", np.uint8(128))
    if DOMAIN in graph.opset_imports and not product.is_scanned:
        own = ir.node("QuantizeRows", [x], domain=DOMAIN, num_outputs=2)
        return [own, ir.node("DequantizeLinear", [own.outputs[0], step, middle])], own.outputs[1]
    producer = x.producer()
    size = [] if producer is not None and producer.op_type in NOT_NEGATIVE else [ir.node("Abs", [x])]
    largest = ir.node("ReduceMax", [size[0].outputs[0] if size else x, last], {"keepdims": 1})
    scaled = ir.node("Div", [x, largest.outputs[0]])
    rounded = ir.node("QuantizeLinear", [scaled.outputs[0], step, middle])
    integers = ir.node("DequantizeLinear", [rounded.outputs[0], step, middle])
    return [*size, largest, scaled, rounded, integers], largest.outputs[0]
