"""Translations of PyTorch's operators for `torch.onnx.export`, where its own would compute other numbers.

Each equals PyTorch at extreme values, as far as float32 does: `tests/ops/test_translations.py` compares them. ONNX
Runtime computes Min, Max, Clip and Sign of int64 wrongly from 2^31 on, so graphs have none of them. Its Where keeps the
sign of zero in its last argument only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import onnx_ir as ir
import torch
from onnxscript import OnnxFunction, evaluator, opset20, script
from onnxscript.values import Opset

from xlexport.ops.rnn import translate_gru, translate_lstm, translate_rnn

__all__ = ["standard_translations"]

aten = torch.ops.aten
op: Any = opset20
# exp(x^2) erfc(x) / t for t = 1 / (1 + x / 2), as a polynomial of 2 t - 1: fitted at Chebyshev nodes, to 4e-7 of it.
_ERFC = (
    *(0.51079142, 0.34357986, 0.13973221, 0.018227814, -0.010721652, -0.0032659187, 0.0014416884, 0.0004609586),
    *(-0.00019636465, -0.000050173738),
)
_OPSET = Opset("xlexport.rows", 1)


def standard_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the mapping from PyTorch operators to functions that record standard ONNX operators."""
    from onnxscript.function_libs.torch_lib.ops import core  # takes long to import

    def flatten(tensor: Any, start: int = 0, end: int = -1) -> Any:
        if start and end in (-1, len(tensor.shape) - 1):
            shape: Any = op.Constant(value_ints=[0] * start + [-1])  # 0: the axis stays
            return op.Reshape(tensor, shape)
        return core.aten_flatten(tensor, start, end)

    def divide(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
        if rounding_mode == "floor":
            return _floor_divide(x, y)
        return op.Div(x, y) if rounding_mode and _is_whole(x, y) else core.aten_div_mode(x, y, rounding_mode)

    def shift(translation: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, count: op.Cast(translation(x, op.CastLike(count, x)), to=x.dtype)

    left, right = shift(core.aten_bitwise_left_shift), shift(core.aten_bitwise_right_shift)

    def scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
        if reduce != "mean":
            return core.aten_scatter_reduce(x, dim, index, source, reduce, include_self)
        ones = op.Expand(op.CastLike(1, x), op.Shape(index))
        counts = op.ScatterElements(op.Mul(x, 0.0), index, ones, axis=dim, reduction="add")
        first = x if include_self else op.Where(op.Greater(counts, 0.0), 0.0, x)
        sums = op.ScatterElements(first, index, source, axis=dim, reduction="add")
        return op.Div(sums, op.Add(counts, 1.0) if include_self else op.Max(counts, 1.0))

    return {
        torch.ops.xlexport.lstm.default: translate_lstm,
        torch.ops.xlexport.gru.default: translate_gru,
        torch.ops.xlexport.rnn.default: translate_rnn,
        torch.sym_max: _maximum,
        torch.sym_min: _minimum,
        aten.item.default: core.aten__local_scalar_dense,
        aten.to.dtype: core.aten__to_copy,
        aten.flatten.using_ints: flatten,
        aten.square.default: lambda x: op.Mul(x, x),
        aten.maximum.default: _maximum,
        aten.minimum.default: _minimum,
        **dict.fromkeys((aten.clamp.default, aten.clamp.Tensor), _clamp),
        **dict.fromkeys((aten.clamp_min.default, aten.clamp_min.Tensor), _maximum),
        **dict.fromkeys((aten.clamp_max.default, aten.clamp_max.Tensor), _minimum),
        **dict.fromkeys((aten.sign.default, aten.sgn.default), _sign),
        aten.relu.default: lambda x: _maximum(x, 0) if _is_whole(x) else op.Relu(x),
        aten.floor_divide.default: _floor_divide,
        **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode), divide),
        **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), _remainder),
        **dict.fromkeys((aten.fmod.Tensor, aten.fmod.Scalar), _fmod),
        aten.log.default: _log,
        aten.log1p.default: _log1p,
        aten.expm1.default: _expm1,
        aten.special_expm1.default: _expm1,
        aten.elu.default: _elu,
        aten.celu.default: lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1 / alpha),
        aten.selu.default: lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
        aten.log_sigmoid.default: lambda x: op.Sub(0.0, op.Softplus(op.Neg(x))),
        aten.logaddexp.default: _logaddexp,
        aten.logaddexp2.default: _logaddexp2,
        aten.atan2.default: _atan2,
        aten.logcumsumexp.default: lambda x, dim: _accumulated(_logaddexp_of_rows, x, dim, -math.inf),
        aten.cumprod.default: lambda x, dim: _accumulated(_product_of_rows, x, dim, 1.0),
        aten.cummax.default: _cummax,
        aten.cummin.default: lambda x, dim: _cummax(x, dim, op.Neg),
        aten.sort.stable: lambda x, stable=True, dim=-1, descending=False: core.aten_sort(x, dim, descending),
        aten.scaled_dot_product_attention.default: _attention,
        aten.scatter_reduce.two: scatter_reduce,
        aten.erfc.default: _erfc,
        aten.embedding_renorm.default: _limit_rows,
        aten.signbit.default: _is_negative,
        **dict.fromkeys((aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar), left),
        **dict.fromkeys((aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar), right),
        **dict.fromkeys((aten.__lshift__.Tensor, aten.__lshift__.Scalar), left),
        **dict.fromkeys((aten.__rshift__.Tensor, aten.__rshift__.Scalar), right),
    }


def _is_whole(*values: Any) -> bool:
    """Return whether all of them, tensors or numbers of Python, are integers."""
    return all(isinstance(one, int) if isinstance(one, (int, float)) else one.dtype.is_integer() for one in values)


def _is_wide(*values: Any) -> bool:
    """Return whether one is a tensor of int64."""
    return any(getattr(one, "dtype", None) == ir.DataType.INT64 for one in values)


def _maximum(x: Any, y: Any) -> Any:
    return op.Where(op.Greater(x, y), x, y) if _is_wide(x, y) else op.Max(x, y)


def _minimum(x: Any, y: Any) -> Any:
    return op.Where(op.Less(x, y), x, y) if _is_wide(x, y) else op.Min(x, y)


def _clamp(x: Any, least: Any = None, most: Any = None) -> Any:
    is_wide = _is_wide(x, least, most)
    if least is not None:
        x = op.Where(op.Greater(x, least), x, least) if is_wide else op.Max(x, least)
    if most is not None:
        x = op.Where(op.Less(x, most), x, most) if is_wide else op.Min(x, most)
    return x


def _sign(x: Any) -> Any:
    return op.Where(op.Greater(x, 0), 1, op.Where(op.Less(x, 0), -1, 0)) if _is_wide(x) else op.Sign(x)


def _remainder(x: Any, y: Any) -> Any:
    """Record x modulo y with the sign of y: exact, unlike x - floor(x / y) y."""
    if _is_whole(x, y):
        return op.Mod(x, y)
    rest = op.Mod(x, y, fmod=1)
    return op.Where(op.Less(op.Mul(rest, op.Sign(y)), 0.0), op.Add(rest, y), rest)


def _fmod(x: Any, y: Any) -> Any:
    """Record x modulo y with the sign of x; ONNX Runtime computes that of integers in float64."""
    return op.Sub(x, op.Mul(op.Div(x, y), y)) if _is_whole(x, y) else op.Mod(x, y, fmod=1)


def _floor_divide(x: Any, y: Any) -> Any:
    """Record the floor of x / y, which the rounded quotient of floats may exceed."""
    quotient, rest = op.Div(x, y), _fmod(x, y)
    if _is_whole(x, y):
        return op.Where(op.Equal(op.Mod(x, y), rest), quotient, op.Sub(quotient, op.CastLike(1, quotient)))
    is_above = op.CastLike(op.Less(op.Mul(rest, op.Sign(y)), 0.0), quotient)
    whole = op.Round(op.Sub(op.Div(op.Sub(x, rest), y), is_above))
    signed = op.Where(op.Greater(op.Abs(whole), 0.0), whole, op.Mul(quotient, 0.0))
    return op.Where(op.Equal(y, 0.0), quotient, signed)


def _log(x: Any) -> Any:
    """Record log x; of a sigmoid, which ONNX Runtime takes for zero below -18, by its definition."""
    if (node := x.producer()) is not None and node.op_type == "Sigmoid":
        x = op.Reciprocal(op.Add(op.Exp(op.Neg(node.inputs[0])), 1.0))
    return op.Log(x)


def _log1p(x: Any) -> Any:
    """Record log(1 + x) with a correction for the digits that 1 + x loses (Higham 2002, section 1.14.1)."""
    sum_ = op.Add(x, 1.0)
    added = op.Sub(sum_, 1.0)
    log = op.Log(sum_)
    corrected = op.Where(op.Less(x, 1.0), op.Mul(log, op.Div(x, added)), log)
    return op.Where(op.Greater(op.Abs(added), 0.0), corrected, x)


def _expm1(x: Any) -> Any:
    return op.Where(op.Greater(x, 0.5), op.Sub(op.Exp(x), 1.0), _small_expm1(x))


def _small_expm1(x: Any) -> Any:
    """Record exp(x) - 1 as 2 t / (1 - t) for t = tanh(x / 2), which loses no digits near zero."""
    half = op.Tanh(op.Mul(x, 0.5))
    return op.Div(op.Add(half, half), op.Sub(1.0, half))


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = op.Mul(_small_expm1(_times(x, input_scale)), alpha * scale)
    return op.Where(op.Greater(x, 0.0), _times(x, scale), below)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else op.Mul(x, factor)


def _logaddexp(x: Any, y: Any) -> Any:
    added = op.Add(op.Max(x, y), op.Softplus(op.Neg(op.Abs(op.Sub(x, y)))))
    return op.Where(op.Equal(x, y), op.Add(x, math.log(2)), added)  # equal infinities have no difference


def _logaddexp2(x: Any, y: Any) -> Any:
    small = _log1p(op.Pow(2.0, op.Neg(op.Abs(op.Sub(x, y)))))
    return op.Where(op.Equal(x, y), op.Add(x, 1.0), op.Add(op.Max(x, y), op.Div(small, math.log(2))))


def _limit_rows(rows: Any, _index: Any, most: float, power: float) -> Any:
    """Record `nn.Embedding(max_norm=)` for all rows; ONNX Runtime computes them once, as they are constants."""
    norm = op.Pow(op.ReduceSum(op.Pow(op.Abs(rows), power), [1]), 1 / power)
    return op.Where(op.Greater(norm, most), op.Mul(rows, op.Div(most, op.Add(norm, 1e-7))), rows)


def _erfc(x: Any) -> Any:
    size = op.Min(op.Abs(x), 12.0)  # beyond it, float32 has only zero
    part = op.Reciprocal(op.Add(op.Mul(size, 0.5), 1.0))
    place = op.Sub(op.Add(part, part), 1.0)
    total: Any = _ERFC[-1]
    for factor in _ERFC[-2::-1]:
        total = op.Add(op.Mul(place, total), factor)
    coarse = op.Div(op.Floor(op.Mul(size, 64.0)), 64.0)  # its square has no rounding
    fine = op.Mul(op.Sub(size, coarse), op.Add(size, coarse))
    exponential = op.Mul(op.Exp(op.Neg(op.Mul(coarse, coarse))), op.Exp(op.Neg(fine)))
    above = op.Mul(op.Mul(part, total), exponential)
    return op.Where(op.Less(x, 0.0), op.Sub(2.0, above), above)


def _is_negative(x: Any) -> Any:
    """Record whether the sign bit is set, as it is in -0."""
    return op.Less(op.Where(op.Equal(x, 0.0), op.Reciprocal(x), x), 0.0)


def _atan2(y: Any, x: Any) -> Any:
    rise, run = op.Abs(y), op.Abs(x)
    slope = op.Where(op.Equal(rise, run), 1.0, op.Div(rise, run))
    angle = op.Atan(op.Where(op.Equal(rise, 0.0), 0.0, slope))
    angle = op.Where(_is_negative(x), op.Sub(math.pi, angle), angle)
    return op.Mul(angle, op.Where(_is_negative(y), -1.0, 1.0))


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Record attention over any number of axes; a query that sees no key gets zeros."""
    *_, width = query.shape
    if enable_gqa:  # queries (B, H, S, D) share keys and values with fewer heads
        repeats = op.Constant(value_ints=[query.shape[1] // key.shape[1], 1, 1])
        key, value = (
            op.Reshape(
                op.Expand(op.Unsqueeze(one, [2]), repeats),
                op.Constant(value_ints=[0, query.shape[1], -1, one.shape[3]]),
            )
            for one in (key, value)
        )
    axes = [*range(len(query.shape))]
    keys = op.Transpose(key, perm=[*axes[:-2], axes[-1], axes[-2]])
    scores = op.MatMul(op.Mul(query, scale or 1 / math.sqrt(width)), keys)
    mask, is_boolean = attn_mask, is_causal
    if is_causal:
        mask = op.Cast(op.Trilu(op.Expand(op.CastLike(1.0, query), op.Shape(scores, start=-2)), upper=0), to=9)
    if mask is None:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    is_boolean |= mask.dtype == ir.DataType.BOOL
    scores = op.Where(mask, scores, -math.inf) if is_boolean else op.Add(scores, mask)
    is_hidden = op.Equal(op.ReduceMax(scores, [-1]), -math.inf)
    return op.MatMul(op.Where(is_hidden, 0.0, op.Softmax(scores, axis=-1)), value)


def _accumulated(body: OnnxFunction[..., Any], x: Any, dim: int, start: float) -> Any:
    return _scan(body, dim % len(x.shape), [x], [start])[0] if x.shape else op.Identity(x)


def _cummax(x: Any, dim: int, turned: Callable[[Any], Any] = lambda x: x) -> Any:
    axis = dim % len(x.shape)
    places = op.Range(0, op.Squeeze(op.Shape(x, start=axis, end=axis + 1)), 1)
    most, place = _scan(_largest_of_rows, axis, [turned(x), places], [-math.inf, 0])
    return turned(most), place


def _scan(body: OnnxFunction[..., Any], axis: int, rows: Sequence[Any], starts: Sequence[float]) -> Sequence[Any]:
    """Record a `Scan` over an axis of the first of the rows; others have that axis alone.

    Args:
        body: takes the carried values and a row of each of `rows`, and returns the new values twice.
        starts: what is carried to the first row.
    """
    shape = op.Shape(op.Gather(rows[0], 0, axis=axis))
    carried = [op.Expand(op.CastLike(start, one), shape) for start, one in zip(starts, rows, strict=True)]
    graph = ir.serde.deserialize_function(body.to_function_proto()).graph
    recorder: Any = evaluator.default()  # the exporter's
    graph.name = f"{body.name}_{len(recorder.nodes)}"
    for value in (*graph.inputs, *(output for inner in graph for output in inner.outputs)):
        value.name = f"{graph.name}.{value.name}"  # names are of one graph, also those within it
    node = ir.node(
        "Scan",
        [*carried, *rows],
        {
            "body": graph,
            "num_scan_inputs": len(rows),
            "scan_input_axes": [axis] + [0] * (len(rows) - 1),
            "scan_output_axes": [axis] * len(rows),
        },
        num_outputs=2 * len(rows),
    )
    recorder.nodes.append(node)
    return node.outputs[len(rows) :]


@script(_OPSET, default_opset=op)
@no_type_check
def _logaddexp_of_rows(before, row):
    added = op.Softplus(op.Neg(op.Abs(before - row)))
    both = op.Where(op.Equal(before, row), row + 0.6931471805599453, op.Max(before, row) + added)
    return both, op.Identity(both)


@script(_OPSET, default_opset=op)
@no_type_check
def _product_of_rows(before, row):
    both = before * row
    return both, op.Identity(both)


@script(_OPSET, default_opset=op)
@no_type_check
def _largest_of_rows(before, place_before, row, place):
    newer = row >= before
    both = op.Where(newer, row, before)
    place_of_both = op.Where(newer, place, place_before)
    return both, place_of_both, op.Identity(both), op.Identity(place_of_both)
