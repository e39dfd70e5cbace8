"""Each kernel in ONNX Runtime against its fallback, and the errors of both against float64."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from tests.helpers.kernel_and_body import Given, kernel_and_body, run_node
from tests.ops.test_relative_attention import Case
from xlexport import ops

pytestmark = pytest.mark.full  # compiles C++

# Weighted means of values of about 1: float32, sums in another order, exponentials of 2 units of the last place.
TOLERANCE = 1e-5
MOST = 1.25  # times the fallback's error
SEEDS = range(5)
SEEN = -1e29  # normaliser of a query of rule `band` that sees a key; the results of others are undefined
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Operator:
    """A run of a custom operator: its inputs for a seed, its outputs, its attributes and its definition in PyTorch."""

    name: str
    inputs: Callable[[int], Given]
    n_outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    definition: Callable[..., Any] | None = None

    def run(self, arrays: Given, library: Path | None) -> Given:
        return run_node(self.name, arrays, self.n_outputs, library, **self.attributes)

    def seen(self, outputs: Given) -> Any:
        """Return which rows of the first output are defined."""
        return outputs[1] > SEEN if self.name == "LSHBandAttention" else ...


def sorted_ids(ids: Array) -> tuple[Array, Array]:
    """Return the stable order of ids along the last axis, and its inverse."""
    order = np.argsort(ids, axis=-1, kind="stable")
    return order, np.argsort(order, axis=-1)


def sort(shape: tuple[int, ...], low: int, high: int) -> Operator:
    return Operator("LSHSort", lambda seed: [np.random.default_rng(seed).integers(low, high, shape)], 2)


def gather(leading: tuple[int, ...], N: int, D: int, M: int, dtype: str = "float32") -> Operator:
    def inputs(seed: int) -> Given:
        random = np.random.default_rng(seed)
        return [random.normal(size=(*leading, N, D)).astype(dtype), random.integers(0, N, (*leading, M))]

    return Operator("LSHGather", inputs)


def band(sizes: tuple[int, ...], n_buckets: int, reach: int, rounds: int) -> Operator:
    """Return a run with inputs as step graphs make them; `sizes` are B, H, R, C, S, d, W."""

    def inputs(seed: int) -> Given:
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

    return Operator("LSHBandAttention", inputs, 2, {"chunk_length": sizes[-1]}, ops.lsh_band_attention)


def ring(S: int, C: int, W: int, n_buckets: int, window: int | None, rounds: int, position: list[int]) -> Operator:
    def inputs(seed: int) -> Given:
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

    return Operator("LSHAttention", inputs, 2, {"chunk_length": W, "n_buckets": n_buckets}, ops.lsh_attention)


def chunk(sizes: tuple[int, ...], W: int, before: int, multiple: int, full: bool, self_mask: float = -1e5) -> Operator:
    """Return a run; `sizes` are B, H, R, T, d, and the number of buckets."""

    def inputs(seed: int) -> Given:
        B, H, R, T, d, n_buckets = sizes
        random = np.random.default_rng(seed)
        query, key, value = (random.normal(0, s, (B, H, T, d)).astype(np.float32) for s in (2, 2 / d**0.5, 1))
        order, rank = sorted_ids(random.integers(0, 1 if full else n_buckets, (B, H, R, T)))
        return [query, key, value, order, rank, np.array([int(full)])]

    attributes = {"chunk_length": W, "chunks_before": before, "multiple": multiple, "self_mask": self_mask}
    return Operator("LSHChunkAttention", inputs, 1, attributes, ops.lsh_chunk_attention)


def local(S: int, c: int, before: int, kept: int, position: list[int], d: int) -> Operator:
    def inputs(seed: int) -> Given:
        random = np.random.default_rng(seed)
        B, H = len(position), 3
        query = random.normal(size=(B, H, S, d)).astype(np.float32)
        key, value = random.normal(size=(2, B, H, kept + S, d)).astype(np.float32)
        return [query, key / d**0.5, value, np.array(position), np.array([S, kept])]

    return Operator("LocalAttention", inputs, 1, {"chunk_length": c, "chunks_before": before}, ops.local_attention)


def relative(S: int) -> Operator:
    """Return a run with inputs like those of the sample's fifth layer: positional scores up to 80, others below 5."""

    def inputs(seed: int) -> Given:
        case = Case(S=S, C=384 + S, H=2, d=48, near=192 + S, length=(384,))
        inputs = list(case.inputs(seed))
        inputs[0] *= case.d**-0.25
        inputs[3] *= case.d**-0.25
        query = inputs[0].view(1, S, 3, case.H, case.d)[:, :, 0].transpose(1, 2)  # (1, H, S, d)
        inputs[5] *= 80 / float(((query + inputs[2]) @ inputs[5]).max())
        return [tensor.numpy() for tensor in inputs]

    return Operator("RelativeAttention", inputs, 3, {}, ops.relative_attention)


# Sizes that stand for all; the programs of runtime/c/tests try thousands against plain references.
SHAPES = [
    *(sort((2, 3, 500), 0, 8), sort((3, 0), 0, 3), sort((2, 3, 1, 40), -(1 << 50), 1 << 50)),
    *(gather((2, 3), 5, 64, 2000, "float16"), gather((2,), 4, 0, 3), gather((), 9, 6, 4, "float64")),
    *(band((1, 2, 4, 500, 500, 64, 32), 12, 500, 4), band((2, 2, 4, 900, 7, 64, 128), 20, 900, 4)),
    *(band((1, 2, 3, 40, 20, 8, 100), 3, 40, 0), band((2, 1, 2, 90, 33, 130, 1), 2, 0, 2)),
    *(ring(5, 300, 16, 8, None, 4, [1000, 0]), ring(600, 1500, 8, 4, 64, 4, [40])),
    *(ring(300, 900, 400, 1, None, 2, [700]), ring(40, 90, 16, 30, None, 0, [50])),
    *(chunk((2, 3, 2, 77, 16, 8), 8, 2, 24, False), chunk((1, 1, 2, 10, 4, 2), 16, 1, 16, True)),
    *(chunk((1, 2, 4, 1, 8, 2), 4, 9, 4, False), chunk((1, 2, 2, 1100, 24, 40), 16, 1, 16, False)),
    *(local(16, 64, 1, 128, [0, 60, 5000], 64), local(300, 200, 2, 600, [150], 8), local(9, 1, 0, 1, [7], 3)),
]
ACCURATE = {
    "relative": relative(128),
    "relative, few": relative(4),
    "local": local(300, 64, 1, 128, [1000], 64),
    "band": band((1, 2, 4, 900, 900, 64, 32), 12, 900, 4),
    "band on rings": ring(64, 700, 32, 16, None, 4, [5000]),
    "band on rings, few": ring(5, 700, 32, 16, None, 4, [5000]),
    "chunk": chunk((1, 2, 4, 600, 64, 8), 32, 1, 64, False, -20.0),  # rounds less than -1e5
}


@pytest.mark.parametrize("operator", SHAPES, ids=lambda operator: operator.name)
def test_kernel_equals_fallback(operator: Operator, kernel_library: Path) -> None:
    arrays = operator.inputs(3)
    kernel, body = kernel_and_body(operator.name, arrays, operator.n_outputs, kernel_library, **operator.attributes)
    seen = operator.seen(body)
    assert np.array_equal(operator.seen(kernel), seen)
    for result, expected in zip(kernel, body, strict=True):
        exact = operator.name in ("LSHSort", "LSHGather") or expected.dtype.kind != "f"
        assert np.abs(result - expected)[seen].max(initial=0) <= (0 if exact else TOLERANCE)


@pytest.mark.parametrize("level", ["base", "avx2", "avx512"])
def test_rows_become_the_integers_of_the_body(
    level: str, kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Include halves of steps, the limits of float32, rows shorter than a vector, and rows of several threads."""
    monkeypatch.setenv("XLEXPORT_OPS_INSTRUCTION_SET", level)
    library = Path(shutil.copyfile(kernel_library, tmp_path / f"{level}.so"))
    random = np.random.default_rng(5)
    normal = random.normal(size=(2, 3, 333)) * [[1e-38], [1], [1e37]]
    for numbers in (normal, normal[..., :5], 0.37 * random.integers(-254, 255, (80, 1024)) / 2):
        rows = numbers.astype(np.float32)
        kernel, body = kernel_and_body("QuantizeRows", [rows], 2, library)
        assert all(map(np.array_equal, kernel, body))
        assert np.array_equal(body[1], np.abs(rows).max(axis=-1, keepdims=True))
        assert np.abs(body[0] - (128 + 127 * (rows / body[1].astype(np.float64)))).max() <= 0.5 + 1e-4
    _, largest = run_node("QuantizeRows", [np.array([[1, np.nan, 2], [-3, np.inf, 1]], np.float32)], 2, library)
    np.testing.assert_array_equal(largest, [[np.nan], [np.inf]])  # so the scores show it


BAND, CHUNK = band((1, 2, 2, 40, 9, 4, 8), 4, 40, 2), chunk((1, 1, 2, 12, 4, 3), 4, 1, 4, False)
RING = ring(6, 30, 8, 4, None, 4, [50])
GATHER = gather((3,), 5, 2, 4)
REFUSED: list[tuple[Operator, int, Any, str]] = [  # an input, its last number or the whole of it, and the error
    *((GATHER, 1, wrong, f"LSHGather: index {wrong} is out of range, expected 0 to 4") for wrong in (-1, 5, 1 << 40)),
    *((BAND, 3, wrong, "LSHBandAttention: order has an index out of range, expected 0 to 39") for wrong in (-41, 40)),
    *((BAND, 4, wrong, "LSHBandAttention: rank has an index out of range, expected 0 to 39") for wrong in (-1, 40)),
    (BAND, 7, 1 << 40, "LSHBandAttention: slot has an index out of range, expected 0 to 39"),
    (BAND, 8, 3, "LSHBandAttention: rounds is 3, expected 0 to 2"),
    *((CHUNK, place, 12, "order or rank has an index out of range, expected 0 to 11") for place in (3, 4)),
    (RING, 2, np.zeros((1, 3, 4, 31), np.int32), "axis 3 of LSHAttention: buckets is 31, expected 30"),
    (RING, 3, np.zeros((1, 3, 7), np.float32), "axis 2 of LSHAttention: length is 7, expected 6"),
    (RING, 5, -1, "LSHAttention: position is -1, expected 0 to"),
    (RING, 7, 0, "LSHAttention: window is 0, expected at least 1"),
    (RING, 8, 5, "LSHAttention: rounds is 5, expected 0 to 4"),
]


@pytest.mark.parametrize(("operator", "index", "wrong", "message"), REFUSED)
def test_kernel_refuses(operator: Operator, index: int, wrong: Any, message: str, kernel_library: Path) -> None:
    arrays = operator.inputs(4)
    if isinstance(wrong, int):
        arrays[index] = arrays[index].copy()
        arrays[index].flat[-1] = wrong
    else:
        arrays[index] = wrong
    with pytest.raises(InvalidArgument, match=message):
        operator.run(arrays, kernel_library)
    if operator in (GATHER, BAND):  # the others have no checks of numbers
        with pytest.raises((InvalidArgument, Fail)):
            operator.run(arrays, None)


def errors(operator: Operator, library: Path | None, arrays: Given, expected: Array) -> Array:
    """Return the absolute errors of an operator's first output."""
    outputs = operator.run(arrays, library)
    return np.abs(outputs[0] - expected)[operator.seen(outputs)]


def in_float64(operator: Operator, arrays: Given) -> Array:
    """Return the first output of an operator's definition in float64."""
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    assert operator.definition is not None
    outputs = operator.definition(*wide, *operator.attributes.values())
    attended: Array = (outputs if operator.n_outputs == 1 else outputs[0]).numpy()
    return attended


def figures(by_seed: list[Array]) -> tuple[float, float]:
    """Return the root mean square over all seeds, and the mean of the largest errors: one alone varies by chance."""
    squares = [np.square(each).mean() for each in by_seed]
    return float(np.sqrt(np.mean(squares))), float(np.mean([each.max() for each in by_seed]))


@pytest.mark.parametrize("operator", ACCURATE.values(), ids=ACCURATE)
def test_error_is_at_most_that_of_the_fallback(
    operator: Operator, kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(arrays, in_float64(operator, arrays)) for arrays in map(operator.inputs, SEEDS)]
    fallback = figures([errors(operator, None, *case) for case in cases])
    for level in ("avx512", "avx2", "base"):  # the kernels choose once, and take one that the processor has
        monkeypatch.setenv("XLEXPORT_OPS_INSTRUCTION_SET", level)
        library = Path(shutil.copyfile(kernel_library, tmp_path / f"{level}.so"))
        kernel = figures([errors(operator, library, *case) for case in cases])
        assert kernel[0] <= MOST * fallback[0] and kernel[1] <= MOST * fallback[1], (level, kernel, fallback)
