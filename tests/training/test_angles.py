"""Angles of positions are those of exact arithmetic, for the longest documents too, without 64-bit floats."""

from __future__ import annotations

import warnings
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch.jit._trace import TracerWarning

from xltraining.reformer.angles import PI, Angles

POSITIONS = torch.tensor([*range(300), 65_535, 65_536, 10**6 + 7, 123_456_789, 2**31 + 5, 2**40 + 12_345, 2**48 - 1])
ROUNDING = 4e-7  # radians: of turns, of 2π and of their product, each about 1e-7 near π


def exact(position: int, width: int) -> list[float]:
    with localcontext() as context:
        context.prec = 80
        return [float(position * 10000 ** (Decimal(-index) / width) % (2 * PI)) for index in range(0, width, 2)]


@pytest.mark.parametrize("width", [2, 8, 64, 130])
@pytest.mark.full
def test_angles_against_exact_arithmetic(width: int) -> None:
    found = Angles(width)(POSITIONS)
    assert found.dtype == torch.float32
    expected = np.array([exact(position, width) for position in POSITIONS.tolist()])
    difference = (found.double().numpy() - expected + np.pi) % (2 * np.pi) - np.pi
    assert abs(difference).max() < ROUNDING


def test_no_operation_has_64_bit_floats() -> None:
    class Dtypes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            assert not isinstance(result, torch.Tensor) or result.dtype != torch.float64
            return result

    with Dtypes():
        Angles(16)(torch.arange(5))
        with pytest.raises(AssertionError):
            torch.arange(5).double()


def test_constants_are_neither_rounded_nor_saved() -> None:
    with torch.device("meta"):
        unloaded = Angles(64)
    unloaded.load_state_dict(Angles(64).state_dict(), assign=True)
    expected = Angles(64)(POSITIONS)
    for angles in (Angles(64).half(), Angles(64).double(), unloaded):
        assert torch.equal(angles(POSITIONS), expected)
    assert not Angles(64).state_dict()


def test_tracing_makes_no_constants() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", TracerWarning)
        traced = torch.jit.trace(Angles(16), torch.arange(5))
    assert torch.equal(traced(POSITIONS), Angles(16)(POSITIONS))
