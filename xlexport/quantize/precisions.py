"""The precisions that a bundle can be quantized to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from xlexport.quantize import dynamic_int8 as int8
from xlexport.quantize import float16
from xlexport.quantize import weight_only as blocks
from xlexport.quantize.matmuls import WeightStore

__all__ = ["PRECISIONS", "Precision"]

Rewrite = Callable[[ir.Model, frozenset[str], WeightStore], None]


@dataclass(frozen=True)
class Precision:
    """One precision, with the function that rewrites graphs.

    Attributes:
        rewrite: changes all products of a graph in place, except the products to keep in float32.
        opset: the opset of the resulting graphs.
        inlined: names of custom operators whose nodes are replaced by their bodies before.
        half: whether activations and positional keys are float16, and memories if the options say so.
    """

    name: str
    rewrite: Rewrite
    opset: int
    inlined: frozenset[str] = frozenset()
    half: bool = False

    def dtype(self, name: str, before: str) -> str:
        """Return the dtype of an input or output other than a memory; `before` is that of the float32 graph."""
        return "float16" if self.half and name.startswith(float16.POSITION_KEY) else before


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("int8", int8.rewrite, int8.OPSET),
        Precision("weight-int8", functools.partial(blocks.rewrite, bits=8), blocks.OPSET),
        Precision("weight-int4", functools.partial(blocks.rewrite, bits=4), blocks.OPSET),
        Precision("float16", float16.rewrite, float16.OPSET, float16.INLINED, half=True),
    )
}
