"""Angles of positions are those of exact arithmetic, for the longest documents too, without 64-bit floats."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from xltraining.reformer.angles import PI, angles

ROUNDING = 4e-7  # radians: of turns, of 2π and of their product, each about 1e-7 near π


def exact(position: int, width: int) -> list[float]:
    with localcontext() as context:
        context.prec = 80
        return [float(position * 10000 ** (Decimal(-index) / width) % (2 * PI)) for index in range(0, width, 2)]


@pytest.mark.parametrize("width", [2, 8, 64, 130])
def test_angles_against_exact_arithmetic(width: int) -> None:
    positions = [*range(300), 65_535, 65_536, 10**6 + 7, 123_456_789, 2**31 + 5, 2**40 + 12_345, 2**48 - 1]
    found = angles(torch.tensor(positions), width)
    assert found.dtype == torch.float32
    expected = np.array([exact(position, width) for position in positions])
    difference = (found.double().numpy() - expected + np.pi) % (2 * np.pi) - np.pi
    assert abs(difference).max() < ROUNDING


def test_no_operation_has_64_bit_floats() -> None:
    class Dtypes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            assert not isinstance(result, torch.Tensor) or result.dtype != torch.float64
            return result

    with Dtypes():
        angles(torch.arange(5), 16)
        with pytest.raises(AssertionError):
            torch.arange(5).double()
