"""Graphs that PyTorch's two exporters write of modules with explicit states: the right ones pass, the wrong do not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import xlexport
from tests.graph_proof import exporters
from tests.graph_proof.exporters import GRU, LSTM, Cache, Drawn, NoPositions, export
from xlexport import GraphOptions
from xlexport.errors import XlexportError

pytestmark = pytest.mark.full
BOTH = pytest.mark.parametrize("dynamo", [True, False])
TRUSTED = GraphOptions(trust=True, steps=500)


def module(model: type[Drawn]) -> str:
    """Return how the command line names a module of `exporters.py`."""
    return f"{exporters.__file__}:{model.__name__}"


@BOTH
@pytest.mark.parametrize("model", [LSTM, GRU, NoPositions])
@pytest.mark.full(cases=1)
def test_graph_against_its_module(model: type[Drawn], dynamo: bool, tmp_path: Path) -> None:
    step = dynamo and model is not NoPositions  # the newer exporter fixes the length of recurrences
    path = export(model(), tmp_path / "graph.onnx", dynamo=dynamo, step=step)
    report = xlexport.verify_graph(path, module(model), options=TRUSTED)
    verdicts = {check.name: check.passed for check in report.checks}
    assert report.passed and verdicts["other"] and verdicts["state read"], report.rows()
    assert verdicts["cuts"] is (None if step else True), report.rows()


def test_free_length_that_the_newer_exporter_fixed_is_found(tmp_path: Path) -> None:
    # A GRU: PyTorch exports an LSTM of free length only once a process, later it unrolls each.
    path = export(GRU(), tmp_path / "graph.onnx", dynamo=True)  # declared free, and a Reshape has the example's five
    with pytest.raises(XlexportError, match="Reshape"):
        xlexport.verify_graph(path)
    report = xlexport.verify_graph(path, options=GraphOptions(length=5))
    assert {check.name: check.passed for check in report.checks}["cuts"] is False, report.rows()


def test_reset_gate_that_the_newer_exporter_once_placed_wrongly_is_found(tmp_path: Path) -> None:
    path = export(GRU(), tmp_path / "graph.onnx", dynamo=True, step=True)
    graph = onnx.load(path)
    (node,) = (node for node in graph.graph.node if node.op_type == "GRU")
    (attribute,) = (attribute for attribute in node.attribute if attribute.name == "linear_before_reset")
    node.attribute.remove(attribute)
    onnx.save(graph, path)
    report = xlexport.verify_graph(path, module(GRU), options=TRUSTED)
    assert [check.name for check in report.checks if check.passed is False] == ["other"], report.rows()


@BOTH
def test_table_of_positions_that_runs_out_is_found(dynamo: bool, tmp_path: Path) -> None:
    report = xlexport.verify_graph(export(Cache(), tmp_path / "graph.onnx", dynamo=dynamo))
    assert [pair.output for pair in report.pairs] == ["present.0.key", "present.0.value"]
    (failed,) = (check for check in report.checks if check.passed is False)
    assert failed.name == "horizon" and "64" in f"{failed.place} {failed.detail}", report.rows()
