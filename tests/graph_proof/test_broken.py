"""`verify` finds the mistake of each broken graph, and passes the same graph without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.graph_proof.broken import CASES, CHAOS, CHAOS_STEP, GRU, UNUSUAL, write_graph
from tests.helpers.tiers import thinned
from xlexport import GraphOptions
from xlexport.graph_proof.report import GraphReport
from xlexport.graph_proof.run import run_proof

pytestmark = pytest.mark.full(every=True)
STEPS = 1000
SLOW = "one of 70 states is never read"


def prove(path: Path, other: Path | None = None, **options: Any) -> GraphReport:
    """Return the report of a proof in this process, which starts sooner."""
    chosen = GraphOptions(**{"steps": STEPS, **options})
    return run_proof(path, None if other is None else str(other), chosen, path.parent, lambda done, of: None)


@pytest.mark.parametrize("name", thinned(CASES, CASES.keys() - {SLOW}, pytest.mark.release))
def test_mistake_is_found_and_the_right_graph_passes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    other = write_graph(tmp_path / "other.onnx", case.other) if case.other else None
    right = prove(write_graph(tmp_path / "right.onnx", case.right), other, **case.right_options)
    assert right.passed, right.rows()
    wrong = prove(write_graph(tmp_path / "wrong.onnx", case.wrong), other)
    failed = {check.name: f"{check.place} {check.detail}" for check in wrong.checks if check.passed is False}
    found = failed.keys() & set(case.checks)
    assert found and all(re.search(case.pattern, failed[check]) for check in found), wrong.rows()
    assert not wrong.passed


@pytest.mark.parametrize("name", UNUSUAL)
def test_right_graph_that_looks_wrong_passes_with_the_reason(name: str, tmp_path: Path) -> None:
    text, check, words = UNUSUAL[name]
    report = prove(write_graph(tmp_path / "right.onnx", text))
    (found,) = (one for one in report.checks if one.name == check)
    assert report.passed and re.search(words, found.detail), report.rows()


def test_free_axes_need_no_names(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph.onnx", GRU.replace("time, batch", "?, ?").replace("batch", "?"))
    report = prove(path)
    assert report.passed, report.rows()


def test_graph_in_which_rounding_grows_without_end_passes(tmp_path: Path) -> None:
    """A step, and a sequence that sums in another order, agree until the last digits decide."""
    sequence, step = (
        write_graph(tmp_path / f"{name}.onnx", text) for name, text in (("all", CHAOS), ("one", CHAOS_STEP))
    )
    for report in (prove(sequence), prove(step, sequence)):
        assert report.passed, report.rows()
    turned = write_graph(tmp_path / "turned.onnx", CHAOS_STEP.replace("Tanh", "Sin"))
    assert not prove(turned, sequence).passed
