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
    """How graphs are rewritten.

    Attributes:
        rewrite: changes a graph in place: all its products but those that are kept in float32.
        opset: of the graphs that it makes.
        half: whether activations are float16, and with them positional keys, and memories where that is asked for.
    """

    name: str
    rewrite: Rewrite
    opset: int
    half: bool = False

    def tensor(self, tensor: spec.Tensor, memories: Mapping[str, str]) -> spec.Tensor:
        """What an input or output of a float32 graph becomes; `memories` says of which dtype those are."""
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
        Precision("float16", float16.rewrite, float16.OPSET, half=True),
    )
}
