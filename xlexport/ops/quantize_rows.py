"""`ai.xlexport::QuantizeRows`: whole numbers for the rows of a product, in graphs of `quantize --dtype int8`."""

from __future__ import annotations

from typing import no_type_check

from onnxscript import FLOAT, UINT8, script
from onnxscript import opset20 as op

from xlexport.ops.operator import OWN_OPSET

__all__ = ["QuantizeRows"]


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def QuantizeRows(x: FLOAT[...]) -> tuple[UINT8[...], FLOAT[...]]:
    """Return x (…, K) in ±127 steps of each row's largest absolute number, where 128 is zero; and these numbers (…, 1).

    A row of zeros is divided by zero and becomes arbitrary integers, but these are later multiplied by zero.
    """
    largest = op.ReduceMax(op.Abs(x), op.Constant(value_ints=[-1]), keepdims=1)
    step = op.Constant(value_float=0.007874015748031496)  # 1 / 127
    middle = op.Cast(op.Constant(value_float=128.0), to=2)  # uint8
    integers = op.QuantizeLinear(x / largest, step, middle)
    return integers, largest
