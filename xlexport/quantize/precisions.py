"""The precisions that a bundle can be quantized to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from xlexport.quantize import dynamic_int8 as int8
from xlexport.quantize import float16
from xlexport.quantize import weight_only as blocks
from xlexport.quantize.matmuls import WeightStore
from xlruntime import spec

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

    def tensor(self, tensor: spec.Tensor, memories: Mapping[str, str]) -> spec.Tensor:
        """Return the new spec of a float32 graph's input or output; `memories` holds the dtypes of memories."""
        if tensor.name in memories:
            return replace(tensor, dtype=memories[tensor.name])
        if self.half and tensor.name.startswith(float16.POSITION_KEY):
            return replace(tensor, dtype="float16")
        return tensor


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("int8", int8.rewrite, int8.OPSET),
        Precision("weight-int8", functools.partial(blocks.rewrite, bits=8), blocks.OPSET),
        Precision("weight-int4", functools.partial(blocks.rewrite, bits=4), blocks.OPSET),
        Precision("float16", float16.rewrite, float16.OPSET, float16.INLINED, half=True),
    )
}
