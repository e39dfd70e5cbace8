"""Which axis holds the rows, the stream or a cache: by names, by places, or by what two rows and two steps show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.graph_proof.broken import ATTENTION, GRU, POSITIONS, STEP, write_graph
from tests.graph_proof.graphs import ATTENTION as MASKED
from tests.graph_proof.graphs import SUM
from xlexport import GraphOptions
from xlexport.callbacks import no_progress
from xlexport.graph_proof.report import Check, GraphReport
from xlexport.graph_proof.run import run_proof

CACHE = ATTENTION.replace("past, 4] past_0", "past, 4] past_key_0").replace("past_0)", "past_key_0)")
CACHE = CACHE.replace("past_0,", "past_key_0,").replace("present_0", "present_key_0")
GROUPED = """
(float[batch, time, 8] x, int64[batch, total] attention_mask,
 float[batch, 1, past, 8] past_key, float[batch, 1, past, 8] past_value)
=> (float[batch, time, 8] y, float[batch, 1, total, 8] present_key, float[batch, 1, total, 8] present_value)
<int64[1] last = {1}, int64[1] one = {1}, int64 at = {1}, float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1}> {
  normal = LayerNormalization(x, scale)  queries = MatMul(normal, wide_query)
  seen = ReduceSum <keepdims = 0> (attention_mask, last)  before = Sub(seen, one)  lengths = Cast <to = 6> (before)
  shape = Shape(attention_mask)  total_length = Gather(shape, at)  size = Cast <to = 6> (total_length)
  y, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1>
    (queries, normal, normal, past_key, past_value, lengths, size)
}"""


def proved(path: Path, **options: Any) -> tuple[GraphReport, dict[str, Check]]:
    report = run_proof(path, None, GraphOptions(**{"steps": 50, **options}), path.parent, no_progress)
    return report, {check.name: check for check in report.checks}


def swapped(text: str, **names: str) -> str:
    """Return a graph whose axes have other names."""
    axes = re.compile(rf"\b({'|'.join(names)})\b(?=[\w, ]*\] \w)")
    return axes.sub(lambda found: names[found[0]], text) if names else text


@pytest.mark.parametrize(
    ("text", "rows", "cuts"),
    [
        pytest.param(swapped(SUM, time="N"), True, True, id="samples called N"),
        pytest.param(swapped(SUM, batch="1", time="n"), None, True, id="samples called n, and one row"),
        pytest.param(swapped(GRU, batch="1", time="b"), None, True, id="samples called b, and one row"),
        pytest.param(swapped(GRU, batch="N"), True, True, id="rows called N"),
        pytest.param(swapped(POSITIONS, batch="n"), True, True, id="rows that a state lacks"),
        pytest.param(swapped(STEP, batch="N"), True, None, id="rows of a step"),
        pytest.param(swapped(CACHE, batch="1"), None, True, id="cache of one row"),
        pytest.param(swapped(CACHE, batch="1", time="?", past="?", total="?"), None, True, id="cache without names"),
        pytest.param(swapped(CACHE, batch="?", time="?", past="?", total="?"), True, True, id="rows without names"),
        pytest.param(swapped(CACHE, time="seq", past="seq", total="seq"), True, True, id="cache called as the stream"),
        pytest.param(swapped(CACHE, batch="1", time="seq", past="seq", total="seq"), None, True, id="and of one row"),
        pytest.param(MASKED, True, True, id="mask"),
    ],
)
def test_axes(text: str, rows: bool | None, cuts: bool | None, tmp_path: Path) -> None:
    report, checks = proved(write_graph(tmp_path / "graph.onnx", text))
    assert report.passed and (checks["rows"].passed, checks["cuts"].passed) == (rows, cuts), report.rows()


def reordered(path: Path, *names: str) -> Path:
    """Write a graph with these inputs first."""
    model = onnx.load(path)
    inputs = {value.name: value for value in model.graph.input}
    del model.graph.input[:]
    model.graph.input.extend([*(inputs.pop(name) for name in names), *inputs.values()])
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("is_named", [True, False])
def test_mask_before_ids(is_named: bool, tmp_path: Path) -> None:
    text = MASKED if is_named else swapped(MASKED, batch="?", time="?", total="?", past="?")
    report, checks = proved(reordered(write_graph(tmp_path / "graph.onnx", text), "attention_mask", "position_ids"))
    assert report.passed and checks["rows"].passed and checks["cuts"].passed, report.rows()


@pytest.mark.parametrize("is_fixed", [True, False])
def test_axes_that_an_exporter_named_are_unnamed(is_fixed: bool, tmp_path: Path) -> None:
    """PyTorch calls free axes that were given as a list by their input and a number."""
    model = onnx.load(write_graph(tmp_path / "graph.onnx", swapped(MASKED, **({"batch": "1"} if is_fixed else {}))))
    for value in (*model.graph.input, *model.graph.output):
        axes = [axis for axis in value.type.tensor_type.shape.dim if axis.dim_param]
        for at, axis in enumerate(axes, 1):
            axis.dim_param = f"{value.name}_dynamic_axes_{at}"
    onnx.save(model, tmp_path / "graph.onnx")
    report, checks = proved(tmp_path / "graph.onnx")
    assert report.passed and checks["cuts"].passed, report.rows()
    assert checks["rows"].passed is (None if is_fixed else True), report.rows()


def test_rows_that_only_the_input_has_free_are_none(tmp_path: Path) -> None:
    text = swapped(GRU, batch="1").replace("time, 1, 3] x", "time, batch, 3] x")
    report, checks = proved(write_graph(tmp_path / "graph.onnx", text))
    assert report.passed and checks["rows"].passed is None and checks["cuts"].passed, report.rows()


def test_cache_of_onnx_runtime_begins_empty(tmp_path: Path) -> None:
    """As onnxruntime-genai exports: lengths come from the mask, and a normalization is among the standard ones."""
    path = write_graph(tmp_path / "graph.onnx", GROUPED)
    model = onnx.load(path)
    (node,) = (node for node in model.graph.node if node.op_type == "LayerNormalization")
    node.op_type = "SimplifiedLayerNormalization"
    onnx.save(model, path)
    report, checks = proved(path)
    assert report.passed and checks["cuts"].passed and checks["rows"].passed, report.rows()
    assert "states of 50 steps" in checks["horizon"].detail
