"""The kernels of local attention and of rule `band` on rings against their bodies in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tests.helpers.kernel_and_body import Given, kernel_and_body, run_node

pytestmark = pytest.mark.full  # compiles C++

# Weighted means of values of about 1: float32, sums in another order, exponentials of 2 units of the last place.
TOLERANCE = 1e-5


def local_inputs(S: int, c: int, before: int, kept: int, position: list[int], d: int, seed: int = 1) -> Given:
    random = np.random.default_rng(seed)
    B, H = len(position), 3
    query = random.normal(size=(B, H, S, d)).astype(np.float32)
    key, value = random.normal(size=(2, B, H, kept + S, d)).astype(np.float32)
    return [query, key / d**0.5, value, np.array(position), np.array([S, kept])]


@pytest.mark.parametrize(
    ("S", "c", "before", "kept", "position", "d"),
    [
        *((1, 64, 1, 128, [1000], 64), (16, 64, 1, 128, [0, 60, 5000], 64), (512, 64, 1, 128, [3, 70], 64)),
        *((64, 64, 1, 128, [64], 41), (300, 200, 2, 600, [150], 8), (500, 128, 1, 0, [0], 64), (9, 1, 0, 1, [7], 3)),
    ],
)
def test_local_attention(
    kernel_library: Path, S: int, c: int, before: int, kept: int, position: list[int], d: int
) -> None:
    given = local_inputs(S, c, before, kept, position, d)
    (kernel,), (body,) = kernel_and_body(
        "LocalAttention", given, 1, kernel_library, chunk_length=c, chunks_before=before
    )
    assert np.abs(kernel - body).max() <= TOLERANCE


def ring_inputs(
    S: int, C: int, n_buckets: int, window: int | None, rounds: int, position: list[int], seed: int = 2
) -> Given:
    random = np.random.default_rng(seed)
    B, H, R, d = len(position), 3, 4, 24
    key, value = random.normal(size=(2, B, H, C, d)).astype(np.float32)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    ids = random.integers(0, n_buckets, (B, H, R, C)).astype(np.int32)
    length = random.uniform(0, 5, (B, H, S)).astype(np.float32)
    offset = 3 * C - S // 2
    own = (offset + np.arange(S)) % C
    reach = (position, [offset], [C - S + 1 if window is None else window], [rounds], [S, C])
    return [key, value, ids, length, value[:, :, own], *map(np.array, reach)]


@pytest.mark.parametrize(
    ("S", "C", "W", "n_buckets", "window", "rounds", "position"),
    [
        *((1, 300, 16, 8, None, 4, [1000]), (5, 300, 16, 8, None, 4, [1000, 0]), (12, 300, 16, 8, 100, 3, [90])),
        *((64, 700, 32, 16, None, 4, [5000, 20]), (300, 300, 32, 4, None, 4, [0]), (300, 900, 400, 1, None, 2, [700])),
        *((600, 1500, 8, 4, 64, 4, [40]), (40, 90, 16, 30, 1, 4, [50]), (40, 90, 16, 30, None, 0, [50])),
    ],
)
def test_band_on_rings(
    kernel_library: Path,
    S: int,
    C: int,
    W: int,
    n_buckets: int,
    window: int | None,
    rounds: int,
    position: list[int],
) -> None:
    given = ring_inputs(S, C, n_buckets, window, rounds, position)
    attributes = {"chunk_length": W, "n_buckets": n_buckets}
    kernel, body = kernel_and_body("LSHAttention", given, 2, kernel_library, **attributes)
    few = [run_node("LSHFewAttention", given, 2, None, **attributes)] if S <= 64 else []
    for attended, overflow in (body, *few):
        assert np.abs(kernel[0] - attended).max() <= TOLERANCE
        assert np.array_equal(kernel[1], overflow)


@pytest.mark.parametrize(
    ("index", "wrong", "message"),
    [
        (2, np.zeros((1, 3, 4, 31), np.int32), "axis 3 of LSHAttention: buckets is 31, expected 30"),
        (3, np.zeros((1, 3, 7), np.float32), "axis 2 of LSHAttention: length is 7, expected 6"),
        (5, np.array([-1]), "LSHAttention: position is -1, expected 0 to"),
        (7, np.array([0]), "LSHAttention: window is 0, expected at least 1"),
        (8, np.array([5]), "LSHAttention: rounds is 5, expected 0 to 4"),
    ],
)
def test_refusals(kernel_library: Path, index: int, wrong: np.ndarray, message: str) -> None:
    given = ring_inputs(6, 30, 4, None, 4, [50])
    given[index] = wrong
    with pytest.raises(InvalidArgument, match=message):
        run_node("LSHAttention", given, 2, kernel_library, chunk_length=8, n_buckets=4)


def test_ids_that_are_far_apart(kernel_library: Path) -> None:
    """Give ids that a kernel cannot count; it then looks at all of them."""
    given = ring_inputs(20, 90, 5, None, 4, [70])
    wanted = run_node("LSHAttention", given, 2, kernel_library, chunk_length=8, n_buckets=5)
    given[2] = given[2] * 400_000_000 - 1_000_000_000
    found = run_node("LSHAttention", given, 2, kernel_library, chunk_length=8, n_buckets=5)
    assert np.abs(found[0] - wanted[0]).max() <= TOLERANCE
    assert np.array_equal(found[1], wanted[1])
