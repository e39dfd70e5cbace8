"""Weight-only int8 and int4: each column of a weight is in blocks with their own scale; activations stay float32.

It suits small bundles and steps of few tokens, which spend their time on reading weights. The nodes are standard
operators (opset 21, blocked DequantizeLinear). ONNX Runtime fuses them with the MatMul into one product on integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from xlexport.quantization.matmuls import Product, WeightStore, replace_products

__all__ = ["BLOCK", "OPSET", "block_size", "quantize_blocks", "rewrite"]

OPSET = 21
BLOCK = {8: 128, 4: 32}  # by bits: larger blocks lose too much in int4; smaller blocks gain nothing in int8
# Candidates for the largest number of a block, in steps. The best is chosen for each block: clipping the largest number
# a little can bring the others closer. Negative candidates give the additional step to the side of the largest number.
LARGEST = {8: (127.0,), 4: (6.5, 7.0, 7.5, 8.0, 8.5, -7.5, -8.0, -8.5)}


def block_size(rows: int, bits: int) -> int:
    """Return the rows of one block for a weight with `rows` rows: a power of two, at least 16."""
    size = BLOCK[bits]
    while size > rows:
        size //= 2
    return size


def quantize_blocks(
    weight: npt.NDArray[np.float32], bits: int, block: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return integers (K, N) and steps (ceil(K / block), N), with the least squared error in each block."""
    K, N = weight.shape
    blocks = -(-K // block)
    padded = np.zeros((blocks * block, N), np.float32)
    padded[:K] = weight
    padded = padded.reshape(blocks, block, N)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    size = np.abs(padded).max(axis=1)  # (blocks, N)
    positive = padded.max(axis=1) >= size  # the largest number is positive
    best = np.zeros((blocks, block, N), np.int8)
    step = np.ones((blocks, N), np.float32)
    least = np.full((blocks, N), np.inf, np.float32)
    for largest in LARGEST[bits]:
        sign = np.where(positive, 1.0, -1.0) * np.sign(largest) if largest < 0 else 1.0
        candidate = np.where(size > 0, sign * size / abs(largest), 1.0).astype(np.float32)
        integers = np.clip(np.rint(padded / candidate[:, None]), low, high)
        error = np.square(integers * candidate[:, None] - padded).sum(axis=1)
        better = error < least
        least, step = np.where(better, error, least), np.where(better, candidate, step)
        best = np.where(better[:, None], integers.astype(np.int8), best)
    return best.reshape(-1, N)[:K], step


def rewrite(model: ir.Model, keep: frozenset[str], store: WeightStore, bits: int) -> None:
    """Quantize all products of a graph except `keep`; `bits` is 8 or 4."""

    def build(product: Product, store: WeightStore) -> list[ir.Node]:
        block = block_size(product.rows, bits)
        names = [f"{product.name}.{part}{product.suffix}" for part in (f"int{bits}", "step")]
        integers, step = store.values(product.graph, names, lambda: _tensors(product.read(), bits, block))
        weight = ir.node("DequantizeLinear", [integers, step], {"axis": 0, "block_size": block})
        return [weight, ir.node("MatMul", [product.x, weight.outputs[0]])]

    replace_products(model, keep, store, build)


def _tensors(
    weight: npt.NDArray[np.float32], bits: int, block: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    integers, step = quantize_blocks(weight, bits, block)
    return (integers if bits == 8 else integers.astype(ir.DataType.INT4.numpy())), step
