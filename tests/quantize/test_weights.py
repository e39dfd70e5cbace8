"""Rounded weights: columns of int8 and blocks of 8 and 4 bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from xlexport.quantize.dynamic_int8 import _limit_pairs, quantize_columns
from xlexport.quantize.weight_only import BLOCK, block_size, quantize_blocks


def weights(rows: int, columns: int) -> npt.NDArray[np.float32]:
    made = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    made[:, 0] = 0  # avoids a division by zero
    made[3, 1] = 100  # an outlier coarsens only its own column or block
    return made


@pytest.mark.parametrize("rows", [256, 41])  # of 41 rows, the last has no neighbour
def test_columns_fit_any_processor_and_lose_no_more_than_7_bits(rows: int) -> None:
    exact = weights(rows, 24)
    integers, step = quantize_columns(exact)
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max() == 127
    pairs = integers[: rows // 2 * 2].astype(int).reshape(-1, 2, 24)
    for sign in (1, -1):
        assert np.clip(sign * pairs, 0, None).sum(axis=1).max() <= 128
    plain = np.maximum(np.abs(exact).max(axis=0) / 63.5, 1e-30)
    lost = np.square(integers * step - exact).sum(axis=0)
    assert (lost <= np.square(np.rint(exact / plain) * plain - exact).sum(axis=0) * (1 + 1e-5)).all()
    assert step[1] > 10 * step[2]
    assert not integers[:, 0].any()


def test_pairs_that_are_too_large_move_towards_zero_together() -> None:
    column = np.array([127, 127, -127, -30, 127, -127, 1, 127], np.float32)
    _, step = quantize_columns(np.stack([column] * 16, axis=1))
    assert step[0] > 1  # a finer one would lose more
    limited = _limit_pairs(column[:, None])
    assert limited[:, 0].tolist() == [64, 64, -113, -15, 127, -127, 1, 127]


@pytest.mark.parametrize("rows", [256, 200, 16])  # whole blocks, a partial block at the end, less than one block
@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_lose_no_more_than_the_plain_step(bits: int, rows: int) -> None:
    exact, block = weights(rows, 24), block_size(rows, bits)
    assert block == min(BLOCK[bits], 2 ** int(np.log2(rows)))
    integers, step = quantize_blocks(exact, bits, block)
    assert step.shape == (-(-rows // block), 24)
    assert integers.min() >= -(2 ** (bits - 1)) and integers.max() < 2 ** (bits - 1)
    found = integers.astype(np.float32) * step.repeat(block, axis=0)[:rows]  # the factors of the graphs
    assert not found[:, 0].any()
    largest = 2 ** (bits - 1) - 1
    for start in range(0, rows, block):
        part = exact[start : start + block]
        plain = np.maximum(np.abs(part).max(axis=0) / largest, 1e-30)
        lost = np.square(found[start : start + block] - part).sum(axis=0)
        assert (lost <= np.square(np.rint(part / plain) * plain - part).sum(axis=0) * (1 + 1e-5) + 1e-9).all()
