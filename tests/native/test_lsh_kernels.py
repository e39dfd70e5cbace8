"""The kernels of the LSH operators against their bodies in ONNX Runtime, and the C++ program that tests them alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from tests.helpers.kernel_and_body import kernel_and_body as both
from tests.helpers.kernel_and_body import run_node as run

pytestmark = pytest.mark.full  # compiles C++

Array = npt.NDArray[Any]
Given = list[Array]

# Weighted means of values of about 1: float32, sums in another order, exponentials of 2 units of the last place.
TOLERANCE = 1e-5


def sorted_ids(ids: Array) -> tuple[Array, Array]:
    """Return the stable order of ids along the last axis, and its inverse."""
    order = np.argsort(ids, axis=-1, kind="stable")
    return order, np.argsort(order, axis=-1)


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        *(((2, 3, 500), 0, 8), ((7,), -9, 9), ((2, 0, 5), 0, 3), ((3, 0), 0, 3), ((1, 4096), 5, 6)),
        *(((2, 3000), 0, 1 << 20), ((2, 3, 1, 40), -(1 << 50), 1 << 50)),
    ],
)
def test_sort(kernel_library: Path, shape: Sequence[int], low: int, high: int) -> None:
    ids = np.random.default_rng(1).integers(low, high, shape)
    kernel, body = both("LSHSort", [ids], 2, kernel_library)
    for found, wanted, expected in zip(kernel, body, sorted_ids(ids), strict=True):
        assert np.array_equal(found, wanted)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("leading", "N", "D", "M"),
    [((), 9, 6, 4), ((3,), 9, 1, 9), ((2, 3), 5, 64, 2000), ((2,), 7, 3, 0), ((0,), 7, 2, 3), ((2,), 4, 0, 3)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_gather(kernel_library: Path, leading: tuple[int, ...], N: int, D: int, M: int, dtype: str) -> None:
    random = np.random.default_rng(2)
    rows, index = random.normal(size=(*leading, N, D)).astype(dtype), random.integers(0, N, (*leading, M))
    (kernel,), (body,) = both("LSHGather", [rows, index], 1, kernel_library)
    assert np.array_equal(kernel, body)
    assert np.array_equal(kernel, np.take_along_axis(rows, index[..., None], axis=-2))


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_gather_out_of_range_is_an_error(kernel_library: Path, wrong: int) -> None:
    rows, index = np.zeros((3, 5, 2), np.float32), np.zeros((3, 4), np.int64)
    index[1, 2] = wrong
    with pytest.raises(InvalidArgument, match=f"LSHGather: index {wrong} is out of range, expected 0 to 4"):
        run("LSHGather", [rows, index], 1, kernel_library)
    with pytest.raises(InvalidArgument, match="out of data bounds"):
        run("LSHGather", [rows, index], 1, None)


def band_inputs(sizes: tuple[int, ...], n_buckets: int, reach: int, rounds: int, seed: int) -> Given:
    """Return inputs as step graphs make them; `sizes` are B, H, R, C, S, d, W."""
    B, H, R, C, S, d, W = sizes
    random, ages = np.random.default_rng(seed), np.arange(C)
    key, value = random.normal(size=(2, B, H, C, d)).astype(np.float32)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    length = random.uniform(0, 5, (B, H, S)).astype(np.float32)
    buckets = random.integers(0, n_buckets, (B, H, R, C))
    order, rank = sorted_ids(buckets)
    place = buckets * C + ages
    before = np.concatenate([np.zeros((B, H, R, W), np.int64), np.take_along_axis(place, order, -1)], axis=-1)
    latest = np.take_along_axis(before[..., :C], rank, -1)  # the place W ranks before
    lowest = np.maximum(buckets * C + np.maximum(ages - reach, 0), latest)
    return [key, value, length, order, rank, place, lowest, (ages + C // 3) % C, np.array([rounds])]


@pytest.mark.parametrize(
    ("sizes", "n_buckets", "reach", "rounds"),
    [
        *(((2, 3, 2, 77, 77, 16, 8), 5, 77, 2), ((1, 2, 4, 500, 500, 64, 32), 12, 500, 4)),
        *(((1, 2, 4, 500, 500, 64, 32), 1, 500, 4), ((1, 2, 3, 600, 300, 41, 64), 4, 100, 3)),
        *(((2, 2, 4, 900, 7, 64, 128), 20, 900, 4), ((1, 1, 2, 3000, 1, 3, 64), 9, 3000, 2)),
        *(((1, 2, 4, 1500, 1500, 24, 50), 30, 1500, 3), ((1, 2, 3, 40, 20, 8, 100), 3, 40, 0)),
        *(((1, 1, 1, 1, 1, 1, 1), 1, 1, 1), ((2, 1, 2, 90, 33, 130, 1), 2, 0, 2)),
    ],
)
def test_band_attention(kernel_library: Path, sizes: tuple[int, ...], n_buckets: int, reach: int, rounds: int) -> None:
    given = band_inputs(sizes, n_buckets, reach, rounds, seed=3)
    kernel, body = both("LSHBandAttention", given, 2, kernel_library, chunk_length=sizes[-1])
    seen = body[1] > -1e29  # other rows are undefined
    assert np.array_equal(kernel[1] > -1e29, seen)
    assert seen.any() == (rounds > 0 and reach > 0 and sizes[3] > 1)
    for found, wanted in zip(kernel, body, strict=True):
        assert np.abs(found - wanted)[seen].max(initial=0) <= TOLERANCE


BAND = (1, 2, 2, 40, 9, 4, 8)


@pytest.mark.parametrize(
    ("index", "wrong", "message"),
    [
        (3, -41, "order has an index out of range, expected 0 to 39"),
        (3, 40, "order has an index out of range, expected 0 to 39"),
        (4, -1, "rank has an index out of range, expected 0 to 39"),
        (4, 40, "rank has an index out of range, expected 0 to 39"),
        (7, 1 << 40, "slot has an index out of range, expected 0 to 39"),
        (8, 3, "rounds is 3, expected 0 to 2"),
    ],
)
def test_band_attention_refuses_what_its_body_refuses(
    kernel_library: Path, index: int, wrong: int, message: str
) -> None:
    given = band_inputs(BAND, 4, 40, 2, seed=4)
    given[index] = given[index].copy()
    given[index].flat[-1] = wrong
    with pytest.raises(InvalidArgument, match=f"LSHBandAttention: {message}"):
        run("LSHBandAttention", given, 2, kernel_library, chunk_length=8)
    with pytest.raises((InvalidArgument, Fail)):
        run("LSHBandAttention", given, 2, None, chunk_length=8)


def chunk_inputs(B: int, H: int, R: int, T: int, d: int, n_buckets: int, full: bool, seed: int = 5) -> Given:
    random = np.random.default_rng(seed)
    query, key, value = (random.normal(0, s, (B, H, T, d)).astype(np.float32) for s in (2, 2 / d**0.5, 1))
    order, rank = sorted_ids(random.integers(0, 1 if full else n_buckets, (B, H, R, T)))
    return [query, key, value, order, rank, np.array([int(full)])]


@pytest.mark.parametrize(
    ("sizes", "W", "before", "multiple", "full"),
    [
        *(((2, 3, 2, 77, 16, 8), 8, 2, 24, False), ((1, 2, 4, 300, 64, 8), 32, 1, 64, False)),
        *(((1, 1, 2, 10, 4, 2), 16, 1, 16, True), ((1, 1, 3, 10, 4, 2), 16, 1, 16, False)),
        *(((1, 2, 2, 30, 41, 2), 8, 5, 8, False), ((1, 1, 1, 5, 4, 2), 8, 3, 8, False)),
        *(((2, 1, 2, 33, 64, 4), 8, 0, 8, False), ((1, 2, 4, 1, 8, 2), 4, 9, 4, False)),
        ((1, 2, 2, 1100, 24, 40), 16, 1, 16, False),
    ],
)
def test_chunk_attention(
    kernel_library: Path, sizes: tuple[int, int, int, int, int, int], W: int, before: int, multiple: int, full: bool
) -> None:
    """Compare also the first row, which sees nothing but itself at -1e5: both round its normaliser equally."""
    attributes: dict[str, Any] = {"chunk_length": W, "chunks_before": before, "multiple": multiple, "self_mask": -1e5}
    given = chunk_inputs(*sizes, full)
    (kernel,), (body,) = both("LSHChunkAttention", given, 1, kernel_library, **attributes)
    assert np.abs(kernel - body).max() <= TOLERANCE


@pytest.mark.parametrize(("index", "wrong"), [(3, 12), (4, 12)])
def test_chunk_attention_refuses_indices_out_of_range(kernel_library: Path, index: int, wrong: int) -> None:
    given = chunk_inputs(1, 1, 2, 12, 4, 3, full=False)
    given[index].flat[3] = wrong
    attributes: dict[str, Any] = {"chunk_length": 4, "chunks_before": 1, "multiple": 4, "self_mask": -1e5}
    with pytest.raises(InvalidArgument, match="order or rank has an index out of range, expected 0 to 11"):
        run("LSHChunkAttention", given, 1, kernel_library, **attributes)
