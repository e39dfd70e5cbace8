"""Fourier transforms of graphs as products of matrices: ONNX Runtime's DFT loses digits unless a length is 2^n."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import onnx_ir as ir
from onnxscript import opset20

__all__ = ["exact_fourier_transforms"]

op: Any = opset20


class _Opset:
    """The operators of ONNX, with a `DFT` of its own; torch's translations of FFT call it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(op, name)

    def Unsqueeze(self, x: Any, axes: Any) -> Any:
        """Record the operator, and the shape, which the transform needs."""
        return _shaped(op.Unsqueeze(x, axes), [None] * (len(x.shape) + len(axes) - 1) + [1 if -1 in axes else 2])

    def Mul(self, x: Any, y: Any) -> Any:
        """Record the operator, and the shape of x."""
        return _shaped(op.Mul(x, y), x.shape)

    def Div(self, x: Any, y: Any) -> Any:
        """Record the operator, and the shape of x."""
        return _shaped(op.Div(x, y), x.shape)

    def DFT(self, x: Any, dft_length: Any = None, axis: int = 1, inverse: bool = False, onesided: bool = False) -> Any:
        """Record the transform over an axis of real numbers (…, 1) or complex ones (…, 2); the result is complex.

        Args:
            dft_length: numbers n of the signal; None: the size of the axis.
            inverse: divides by n.
            onesided: whether frequencies above n / 2 are left out: of the result, or of x in the inverse transform.
        """
        rank = len(x.shape) - 1
        turned = [*(place for place in range(rank) if place != axis), axis]  # the axis comes last
        parts = [op.Transpose(op.Gather(x, n, axis=-1), perm=turned) for n in range(x.shape[-1])]  # each (…, size)
        size = op.Squeeze(op.Shape(parts[0], start=-1))
        n = size if dft_length is None else dft_length
        half = op.Add(op.Div(n, 2), 1)
        count = half if onesided and not inverse else n
        rows, columns = op.Range(0, size, 1), op.Range(0, count, 1)
        products = op.Mod(op.Mul(op.Unsqueeze(rows, [1]), columns), n)  # (size, count), exact
        angle = op.Mul(op.Cast(products, to=1), op.Div(2 * math.pi, op.Cast(n, to=1)))
        real, imaginary = op.Cos(angle), op.Sin(angle)
        if inverse:
            weights: Any = op.Div(1.0, op.Cast(n, to=1))
            if onesided:  # the frequencies that are left out are those of the same size
                is_single = op.Equal(op.Mod(op.Mul(rows, 2), n), 0)
                weights = op.Unsqueeze(op.Mul(op.Where(is_single, 1.0, 2.0), weights), [1])
            real, imaginary = op.Mul(real, weights), op.Mul(imaginary, weights)
        else:
            imaginary = op.Neg(imaginary)
        results = [op.MatMul(parts[0], real), op.MatMul(parts[0], imaginary)]
        if len(parts) == 2:
            results[0] = op.Sub(results[0], op.MatMul(parts[1], imaginary))
            results[1] = op.Add(results[1], op.MatMul(parts[1], real))
        back = [turned.index(place) for place in range(rank)]
        pair = (op.Unsqueeze(op.Transpose(one, perm=back), [-1]) for one in results)
        return _shaped(op.Concat(*pair, axis=-1), [None] * rank + [2])


def _shaped(value: Any, shape: Any) -> Any:
    value.shape = ir.Shape(shape)
    return value


@contextmanager
def exact_fourier_transforms() -> Iterator[None]:
    """Let torch's translations of FFT record products of matrices; the table of translations takes no complex ones."""
    from onnxscript.function_libs.torch_lib.ops import fft  # takes long to import

    with mock.patch.object(fft, "op", _Opset()):
        yield
