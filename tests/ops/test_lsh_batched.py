"""The bodies without loops against those with loops, in ONNX Runtime: results, operators, and the largest tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers.cuda_kernels import missing_kernels, without_loops
from tests.helpers.lone_node import lone_model, lone_session, session_of
from tests.ops.test_lsh_attention import CASES, TOLERANCE, Case
from xlruntime.graph_gate import EMITTED

Array = npt.NDArray[Any]
WITHIN = 1e-5
RANDOM = settings(deadline=None, max_examples=60)


def batched_model(name: str, given: list[Array], n_outputs: int, **attributes: Any) -> onnx.ModelProto:
    """Return a graph of standard operators that computes the node without a loop."""
    return without_loops(onnx.load_from_string(lone_model(name, given, n_outputs, **attributes)))


def both(name: str, given: list[Array], n_outputs: int, **attributes: Any) -> tuple[list[Array], list[Array]]:
    """Return the results of the body with loops and of the other."""
    feeds = {f"x{i}": x for i, x in enumerate(given)}
    batched = session_of(batched_model(name, given, n_outputs, **attributes).SerializeToString())
    return lone_session(name, given, n_outputs, **attributes).run(None, feeds), batched.run(None, feeds)


def sorted_rows(random: np.random.Generator, shape: tuple[int, ...], n_buckets: int) -> tuple[Array, Array, Array]:
    """Return bucket ids of this shape, the stable order of its rows, and its inverse."""
    buckets = random.integers(0, n_buckets, shape)
    order = np.argsort(buckets, axis=-1, kind="stable")
    return buckets, order, np.argsort(order, axis=-1)


def band_inputs(B: int, H: int, R: int, C: int, S: int, d: int, rounds: int, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    key, value = random.standard_normal((2, B, H, C, d), np.float32)
    length = random.random((B, H, S), np.float32) + 1
    buckets, order, rank = sorted_rows(random, (B, H, R, C), int(random.integers(1, 6)))
    place = buckets * C + np.arange(C)
    lowest = np.maximum(place - random.integers(0, C + 1, place.shape), buckets * C)
    return [key, value, length, order, rank, place, lowest, random.permutation(C), np.array([rounds])]


@RANDOM
@given(
    sizes=st.tuples(*(st.integers(1, largest) for largest in (3, 3, 4))),
    C=st.integers(1, 40),
    W=st.integers(1, 9),
    d=st.integers(1, 5),
    data=st.data(),
)
@pytest.mark.release
def test_band_bodies(sizes: tuple[int, int, int], C: int, W: int, d: int, data: st.DataObject) -> None:
    """Compare bodies on rows fewer than a chunk, parts of chunks, batches, one round, and rounds that do not count."""
    S, rounds, seed = (data.draw(st.integers(low, high)) for low, high in ((1, C), (0, sizes[2]), (0, 99)))
    given = band_inputs(*sizes, C, S, d, rounds, seed)
    (rows, highest), (found_rows, found_highest) = both("LSHBandAttention", given, 2, chunk_length=W)
    np.testing.assert_allclose(found_highest, highest, rtol=0, atol=WITHIN)
    some = highest > -1e29  # rows without keys are undefined
    np.testing.assert_allclose(found_rows[some], rows[some], rtol=0, atol=WITHIN)


@RANDOM
@given(
    sizes=st.tuples(*(st.integers(1, largest) for largest in (3, 3, 4))),
    T=st.integers(1, 40),
    W=st.integers(1, 6),
    before=st.integers(0, 3),
    factor=st.integers(1, 3),
    short=st.booleans(),
    seed=st.integers(0, 99),
)
@example(sizes=(2, 2, 3), T=4, W=4, before=1, factor=2, short=True, seed=0)
@pytest.mark.release
def test_chunk_bodies(
    sizes: tuple[int, int, int], T: int, W: int, before: int, factor: int, short: bool, seed: int
) -> None:
    full, random = short and T <= W, np.random.default_rng(seed)
    _, order, rank = sorted_rows(random, (*sizes, T), 1 if full else 4)
    rows = random.standard_normal((3, *sizes[:2], T, 5), np.float32)
    given = [*rows, order, rank, np.array([int(full)])]
    attributes = {"chunk_length": W, "chunks_before": before, "multiple": factor * W, "self_mask": -1e5}
    (wanted,), (found,) = both("LSHChunkAttention", given, 1, **attributes)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=WITHIN)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.full
def test_lsh_attention_with_its_body_swapped(case: Case) -> None:
    given = [tensor.numpy() for tensor in case.inputs()]
    wanted, found = both("LSHAttention", given, 2, chunk_length=case.W, n_buckets=case.n_buckets)
    assert np.abs(found[0] - wanted[0]).max() < TOLERANCE
    assert np.array_equal(found[1], wanted[1])


def largest_tensor(model: onnx.ModelProto, given: list[Array]) -> int:
    """Return the bytes of the largest value that a node of the graph computes."""
    known = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    made = session_of(model.SerializeToString()).run(None, {f"x{i}": x for i, x in enumerate(given)})
    return max(int(array.nbytes) for array in made)


@pytest.mark.parametrize(("R", "d", "W"), [(2, 4, 8), (6, 4, 8), (2, 32, 8)])
def test_largest_tensors_and_operators(R: int, d: int, W: int) -> None:
    """Check the docstrings' formulas where scores, masks or windows are the largest, and the operators."""
    B, H, C = 2, 3, 30
    given = band_inputs(B, H, R, C, C, d, R, 0)
    band = batched_model("LSHBandAttention", given, 2, chunk_length=W)
    assert largest_tensor(band, given) == B * H * R * 32 * 2 * max(4 * W, 4 * d, R * W)
    given = [*given[0:2], given[1], *given[3:5], np.array([0])]
    attributes = {"chunk_length": W, "chunks_before": 1, "multiple": W, "self_mask": -1e5}
    chunk = batched_model("LSHChunkAttention", given, 1, **attributes)
    assert largest_tensor(chunk, given) == B * H * R * 32 * 2 * 4 * max(W, d)
    for model in (band, chunk):
        assert missing_kernels(model) == []
        assert {node.op_type for node in model.graph.node} <= EMITTED - {"Loop", "Scan"}
