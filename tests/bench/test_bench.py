"""The counts of `bench` for a step against counts by hand, and the sums of a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.helpers.paths import GOLDEN
from xlexport.bench.measuring import RateMeter, Rates
from xlexport.bench.operator_profile import BETWEEN, profile_step, sum_events
from xlexport.bench.roofline import Floor, step_floor, weight_bytes
from xlexport.bench.sides import GraphSide, Purpose, StepWork
from xlexport.errors import XlexportError
from xlexport.families import workload_of
from xlexport.families.workload import StepSize
from xlruntime import load
from xlruntime.devices import Device
from xlruntime.model import Model


def open_golden(name: str) -> Model:
    return load(GOLDEN / name / "bundle", threads=1)


def a_side(model: Model, purpose: Purpose, segment_len: int, batch_size: int, **settings: Any) -> GraphSide:
    evaluation = model.evaluation(segment_len, **settings)
    return GraphSide(model, StepWork(purpose, evaluation, segment_len, batch_size))


def test_bytes_of_a_transformer_xl_step_against_a_count_by_hand() -> None:
    """Count two layers, two heads of 12, width 24, and 40 tokens with embeddings separate from the output layer."""
    layer = 24 * 3 * 24 + 24 * 24 + 2 * 24 * 32 + (32 + 24) + 2 * 2 * 24 + 2 * 24  # products, biases, norms, u and v
    head = 24 * 40 + 40
    for batch_size, segment_len, rows in ((1, 1, 1), (3, 5, 15), (3, 30, 40)):  # of embeddings; the table has only 40
        C = 7 + segment_len
        rings = 2 * 2 * batch_size * 24 * (C + segment_len)
        positions = 2 * 24 * (C + 1)
        side = a_side(open_golden("post_lnorm_zeros"), "score", segment_len, batch_size, mem_len=7, clamp_len=-1)
        counted = 2 * layer + head + rows * 24 + rings + positions
        assert step_floor(side).bytes == 4 * counted
        products = 24 * 4 * 24 + 2 * 24 * 32 + 24 * (3 * C + 1)
        assert step_floor(side).flops == 2 * batch_size * segment_len * (2 * products + 24 * 40)
    # Clamped at 10, the five queries have fifteen distinct distances.
    clamped = step_floor(a_side(open_golden("post_lnorm_zeros"), "score", 5, 1, mem_len=30))
    assert clamped.bytes == 4 * (2 * layer + head + 5 * 24 + 2 * 2 * 24 * (35 + 5) + 2 * 24 * 16)
    assert clamped.flops == 2 * 5 * (2 * (24 * 4 * 24 + 2 * 24 * 32 + 24 * (2 * 35 + 16)) + 24 * 40)
    generated = step_floor(a_side(open_golden("post_lnorm_zeros"), "generate", 5, 3, mem_len=7, clamp_len=-1))
    assert generated.flops == 2 * 3 * (5 * 2 * (24 * 4 * 24 + 2 * 24 * 32 + 24 * (3 * 12 + 1)) + 24 * 40)


def test_bytes_of_a_reformer_step_against_a_count_by_hand() -> None:
    """Count local and LSH layers, two heads of 8, width 16, chunks of 4 and 6, memory 12; two of three rounds run."""
    local = 4 * 16 * 16 + 2 * 16 * 24 + 24 + 16 + 4 * 16
    lsh = local - 16 * 16 + 3 * 2 * 8 * 2  # keys are queries; rotations of two columns
    head = 32 * 258 + 258 + 2 * 32
    model = open_golden("reformer_band")
    for purpose, graph, segment_len in (("score", "score", 40), ("score", "score_few", 3), ("generate", "generate", 1)):
        B, S, C = 2, segment_len, 12 + segment_len
        side = a_side(model, purpose, S, B, n_hashes=2)  # type: ignore[arg-type]  # a literal
        assert side.graph == graph
        rows = min(B * S, 258) * 16 + min(B * S, 10) * 6 + min(B * S, 20) * 10  # of embeddings and axial positions
        recent = 2 * 2 * B * 2 * 8 * 8  # keys and values, read and written, of two chunks
        read = 2 * C if graph == "score" else min(C, S * 2 * 6)  # sorted in each round; or six per token and round
        rings = 2 * B * 2 * 8 * (read + S) + B * 2 * 3 * (C + S)
        assert step_floor(side).bytes == 4 * (local + lsh + head + rows + recent + rings)


def test_bytes_of_a_document_that_is_one_step() -> None:
    """Count no memory, because none is carried, and no intermediate results."""
    local = 4 * 16 * 16 + 2 * 16 * 24 + 24 + 16 + 4 * 16
    lsh = local - 16 * 16 + 2 * 2 * 8 * 2
    head = 32 * 40 + 40 + 2 * 32
    floor = step_floor(a_side(open_golden("reformer_chunk"), "score", 50, 1))
    assert floor.bytes == 4 * (local + lsh + head + 40 * 16 + 50 * 16)


def write_graph(folder: Path) -> Path:
    """Write a graph with an int8 table to gather from, a packed 4-bit matrix, a cluster of rare tokens, and a shape."""

    def constant(name: str, array: ir.TensorProtocol) -> ir.Value:
        return ir.Value(
            name=name, const_value=array, type=ir.TensorType(array.dtype), shape=ir.Shape(array.shape.numpy())
        )

    ids, x = (
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(["n"]))
        for name, dtype in (("ids", ir.DataType.INT64), ("x", ir.DataType.FLOAT))
    )
    table = constant("table", ir.tensor(np.zeros((100, 6), np.int8)))
    packed = constant("packed", ir.PackedTensor(np.zeros(15, np.uint8), ir.DataType.INT4, shape=ir.Shape([6, 5])))
    rare = constant("head.clusters.1.weight", ir.tensor(np.zeros((50, 3), np.float16)))
    bias = constant("head.clusters.1.bias", ir.tensor(np.zeros(50, np.float32)))
    shape = constant("shape", ir.tensor(np.array([3, 2], np.int64)))
    nodes = [
        ir.node("Gather", [table, ids]),
        ir.node("Gather", [rare, ids]),
        ir.node("Identity", [rare]),
        ir.node("Identity", [bias]),
        ir.node("Identity", [packed]),
        ir.node("Reshape", [x, shape]),
    ]
    outputs = [node.outputs[0] for node in nodes]
    graph = ir.Graph(
        [ids, x],
        outputs,
        nodes=nodes,
        initializers=[table, packed, rare, bias, shape],
        opset_imports={"": 21},
        name="g",
    )
    ir.save(ir.Model(graph, ir_version=10), folder / "graph.onnx")
    return folder / "graph.onnx"


def test_weights_count_at_the_size_that_they_have_in_the_file(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    assert weight_bytes(path, tokens=4) == 4 * 6 + 15 + 50 * 3 * 2 + 50 * 4
    assert weight_bytes(path, tokens=1000) == 100 * 6 + 15 + 50 * 3 * 2 + 50 * 4
    # No target is in the cluster: its embedding also counts one row for each token.
    assert weight_bytes(path, tokens=4, unused_clusters=frozenset({1})) == 4 * 6 + 15 + 4 * 3 * 2


def test_arithmetic_of_a_vocabulary_in_clusters_against_a_count_by_hand() -> None:
    config = {"n_token": 100, "n_layer": 1, "n_head": 1, "d_model": 8, "d_head": 2, "d_inner": 4, "cutoffs": [10, 40]}
    layer = 6 * (8 * 4 * 2 + 2 * 8 * 4 + 2 * (3 * 20 + 1))  # of six tokens, on rings of 20 slots
    targets = np.array([[3, 9, 10], [99, 40, 39]])  # two of each cluster
    flops, size = workload_of("transformer_xl").flops, StepSize(2, 3, 20, targets=targets)
    assert flops({**config, "div_val": 1}, size) == 2 * (layer + 6 * 8 * (10 + 2) + 2 * 8 * 30 + 2 * 8 * 60)
    projected = {**config, "div_val": 2}  # widths 8, 4 and 2, all of them projected, in the embedding layer as well
    embedding = 6 * 8 * (8 + 4 + 2)
    heads = (8 * 8 + 8 * (10 + 2), 8 * 4 + 4 * 30, 8 * 2 + 2 * 60)
    assert flops(projected, size) == 2 * (layer + embedding + 6 * heads[0] + 2 * heads[1] + 2 * heads[2])
    assert flops(projected, StepSize(2, 3, 20, last_only=True)) == 2 * (layer + embedding + 2 * sum(heads))


def test_tokens_of_a_vocabulary_in_clusters_are_mostly_frequent() -> None:
    model = open_golden("post_lnorm_zeros")
    work = StepWork("score", model.evaluation(500), 500, 4)
    cut, plain = (work.ids({"n_token": 1000, "cutoffs": cutoffs}) for cutoffs in ([100], []))
    for ids in (cut, plain):
        assert ids.shape == (2, 4, 500) and ids.min() >= 0 and ids.max() < 1000
    # Expected are ln 101 / ln 1001 = 0.668 and 0.1; the standard deviation of 4,000 draws is at most 0.0075.
    assert (cut < 100).mean() == pytest.approx(0.668, abs=0.04)
    assert (plain < 100).mean() == pytest.approx(0.1, abs=0.04)


def test_the_floor_is_the_larger_of_both() -> None:
    rates = Rates(sgemm=10.0, copy=2.0, read=4.0)
    long, short = Floor(flops=20 * 10**9, bytes=4 * 10**9), Floor(flops=5 * 10**9, bytes=4 * 10**9)
    assert (long.seconds(rates), long.bound(rates)) == (2.0, "arithmetic")
    assert (short.seconds(rates), short.bound(rates)) == (1.0, "bytes")


def test_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.bench.measuring.SGEMM_SIZE", 128)
    monkeypatch.setattr("xlexport.bench.measuring.COPY_BYTES", 1 << 20)
    rates = RateMeter(Device("cpu"), 1).rates(3)
    # Current machines are within or near these bounds; a unit that is wrong by 1,000 is not.
    assert 0.1 < rates.sgemm < 20_000
    assert 0.1 < rates.copy < 20_000 and 0.1 < rates.read < 20_000


# Profiles.


def node(operator: str, start: int, length: int) -> dict[str, Any]:
    return {
        "cat": "Node",
        "name": f"n_{operator}_kernel_time",
        "ts": start,
        "dur": length,
        "args": {"op_name": operator},
    }


def run_of(start: int, length: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": length, "args": {}}


EVENTS = [
    {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 50, "args": {}},
    node("MatMul", 100, 5),
    run_of(100, 10),  # the first run does not count, although it is fast
    node("MatMul", 200, 300),
    {**node("MatMul", 200, 300), "name": "n_MatMul_fence_before"},
    node("Loop", 500, 400),
    node("Loop", 510, 200),
    node("Add", 520, 150),
    node("Add", 720, 100),
    node("MatMul", 910, 40),
    run_of(190, 1000),
    node("MatMul", 2000, 9000),
    run_of(2000, 9000),
]


def test_profile_subtracts_inner_nodes_from_loops() -> None:
    found = {entry.operator: entry for entry in sum_events(EVENTS, skip=1)}
    assert {name: (entry.ms, entry.count) for name, entry in found.items()} == {
        "MatMul": (0.34, 2),
        BETWEEN: (0.26, 0),
        "Add": (0.25, 2),
        "Loop": (0.15, 2),  # 400 - 200 - 100 outside, 200 - 150 inside
    }
    assert [entry.ms for entry in found.values()] == sorted((entry.ms for entry in found.values()), reverse=True)
    assert sum(entry.percent for entry in found.values()) == pytest.approx(100)


def test_profile_without_a_whole_run_is_refused() -> None:
    with pytest.raises(XlexportError, match="more nodes than ONNX Runtime's profile holds"):
        sum_events(EVENTS[:6], skip=1)


@pytest.mark.parametrize("name", ["post_lnorm_zeros", "reformer_band", "reformer_chunk"])
def test_profile_of_a_step(name: str) -> None:
    """Check that no time is negative, so none was counted twice, and that the memory stays valid."""
    side = a_side(open_golden(name), "score", 40 if name == "reformer_band" else 20, 1)
    found = {entry.operator: entry for entry in profile_step(side)}
    assert sum(entry.percent for entry in found.values()) == pytest.approx(100)
    assert all(entry.ms >= 0 for entry in found.values())
    assert found[BETWEEN].count == 0 and found["MatMul"].count >= 2
    if name != "post_lnorm_zeros":
        assert found["Loop"].count > 2  # including nodes inside others
    assert np.isfinite(side.step()["log_prob"]).all()


def test_sums_and_normalizations_are_not_fused_on_a_cpu() -> None:
    """Check that they stay separate, because ONNX Runtime's fused kernel is several times slower on a CPU."""
    operators = {entry.operator for entry in profile_step(a_side(open_golden("post_lnorm_zeros"), "score", 20, 1))}
    assert "LayerNormalization" in operators and "SkipLayerNormalization" not in operators


def test_profile_is_of_the_graph_that_serves_so_few_tokens() -> None:
    operators = {entry.operator for entry in profile_step(a_side(open_golden("reformer_band"), "score", 3, 1))}
    assert "TopK" in operators and "Loop" not in operators
