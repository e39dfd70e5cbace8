"""`verify` finds the mistake of each broken graph, and passes the same graph without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import xlexport
from tests.graph_proof.broken import CASES, GRU, write_graph
from xlexport import GraphOptions

pytestmark = pytest.mark.full
STEPS = 1000


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_found_and_the_right_graph_passes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    other = case.other and write_graph(tmp_path / "other.onnx", case.other)
    options = GraphOptions(steps=STEPS, **case.right_options)
    right = xlexport.verify_graph(write_graph(tmp_path / "right.onnx", case.right), other, options=options)
    assert right.passed, right.rows()
    wrong = xlexport.verify_graph(
        write_graph(tmp_path / "wrong.onnx", case.wrong), other, options=GraphOptions(steps=STEPS)
    )
    failed = {check.name: f"{check.place} {check.detail}" for check in wrong.checks if check.passed is False}
    found = failed.keys() & set(case.checks)
    assert found and all(re.search(case.pattern, failed[check]) for check in found), wrong.rows()
    assert not wrong.passed


def test_free_axes_need_no_names(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph.onnx", GRU.replace("time, batch", "?, ?").replace("batch", "?"))
    report = xlexport.verify_graph(path, options=GraphOptions(steps=STEPS))
    assert report.passed, report.rows()
