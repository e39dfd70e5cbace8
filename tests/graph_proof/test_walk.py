"""The whole proof in this process: axes, caches that grow, other graphs and modules, and what fails where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph_proof.graphs import ATTENTION, BEFORE, STACKED, SUM, TABLE, write
from xlexport import GraphOptions
from xlexport.errors import GraphError, TrustError
from xlexport.graph_proof.checks import check_state_read, read_baseline
from xlexport.graph_proof.graph_file import read_graph_file
from xlexport.graph_proof.report import Check, GraphReport
from xlexport.graph_proof.run import run_proof
from xlexport.graph_proof.walk import open_walk

MODULE = """
import numpy as np, torch

def right(x, total): return np.cumsum(x, 1) + total, total + x.sum(1, keepdims=True)
def forgets(x, total): return np.cumsum(x, 1), total + x.sum(1, keepdims=True)
def short(x, total): return x
def fails(x, total): return x["x"]

class Module(torch.nn.Module):
    def forward(self, x, total): return {"y": torch.cumsum(x, 1) + total, "rest": [total + x.sum(1, keepdim=True)]}
"""


def prove(path: Path, other: str | None = None, **options: Any) -> tuple[GraphReport, dict[str, Check]]:
    report = run_proof(path, other, GraphOptions(**{"steps": 200, **options}), path.parent, lambda done, of: None)
    assert GraphReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    return report, {check.name: check for check in report.checks}


def test_axes_are_found_by_their_names_and_by_their_places(tmp_path: Path) -> None:
    for text in (BEFORE, BEFORE.replace("batch", "?").replace("time", "?")):
        report, checks = prove(write(tmp_path / "before.onnx", text))
        assert report.passed and report.steps == 200, report.rows()
        assert {name for name, check in checks.items() if check.passed} >= {"cuts", "rows", "buffers", "save", "range"}


@pytest.mark.full
def test_cache_that_grows_begins_empty_and_the_mask_follows(tmp_path: Path) -> None:
    report, checks = prove(write(tmp_path / "attention.onnx", ATTENTION))
    assert report.passed, report.rows()
    assert [line.split(": ")[1] for line in report.inputs] == ["random 0 to 3", "1", "its place in the stream"]
    assert (
        checks["cuts"].passed and checks["buffers"].passed is None and "states of 200 steps" in checks["horizon"].detail
    )
    late = ATTENTION.replace("Mul(present_key_0, wide)", "Mul(wide, wide)")
    assert prove(write(tmp_path / "late.onnx", late))[1]["state read"].passed is False


@pytest.mark.parametrize(
    ("old", "new", "check", "place"),
    [
        ("Add(sums, total)", "Identity(sums)", "state read", "total"),
        ("Add(total, sum)", "Identity(total)", "state written", "new_total, step 0"),
        ("Add(total, sum)", "Mul(sum, sum)", "cuts", "y, step 1"),
        ("ReduceSum(x, axis)", "ReduceL1(x, axis)", "range", "total, step 199"),  # a sum of sizes
        ("Add(sums, total)", "Div(sums, total)", "range", "y, step 0"),
    ],
)
def test_first_place_that_fails_is_named(old: str, new: str, check: str, place: str, tmp_path: Path) -> None:
    report, checks = prove(write(tmp_path / "wrong.onnx", SUM.replace(old, new)))
    assert (checks[check].passed, checks[check].place, report.passed) == (False, place, False), report.rows()


@pytest.mark.full
def test_each_layer_of_a_stacked_state_is_checked(tmp_path: Path) -> None:
    both = "new_last = Concat <axis = 0> (now, then)"
    right = write(tmp_path / "right.onnx", STACKED)
    assert prove(right)[0].passed, prove(right)[0].rows()
    checks = prove(write(tmp_path / "wrong.onnx", STACKED.replace(both, both.replace("then", "below"))))[1]
    assert (checks["state written"].passed, checks["state written"].place) == (False, "new_last[1], step 0")
    checks = prove(write(tmp_path / "deaf.onnx", STACKED.replace("Add(now, below)", "Add(now, then)")))[1]
    assert (checks["state read"].passed, checks["state read"].place) == (False, "last[1]")


def test_place_in_a_ring_is_no_counter_and_a_table_ends(tmp_path: Path) -> None:
    check = prove(write(tmp_path / "ring.onnx", TABLE))[1]["horizon"]  # 200 steps do not reach its end
    assert check.passed, check
    check = prove(write(tmp_path / "table.onnx", TABLE.replace("Mod(next, size)", "Identity(next)")))[1]["horizon"]
    assert check.passed is False and "fails from 300 on" in check.detail


@pytest.mark.full
def test_another_graph_and_modules(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODULE, "utf-8")
    path = write(tmp_path / "sum.onnx", SUM)
    step = SUM.replace("batch, time] x", "1, 1] step").replace("batch, time] y", "1, 1] z").replace("y = ", "z = ")
    step = step.replace("CumSum(x", "CumSum(step").replace("ReduceSum(x", "ReduceSum(step")
    write(tmp_path / "step.onnx", step)
    write(tmp_path / "wrong.onnx", SUM.replace("Add(total, sum)", "Sub(total, sum)"))
    for other, passed in (
        ("sum.onnx", True), ("step.onnx", True), ("wrong.onnx", False),
        ("own.py:right", True), ("own.py:Module", True), ("own.py:forgets", False),
    ):  # fmt: skip
        check = prove(path, other, trust=True)[1]["other"]
        assert (check.passed, check.place) == (passed, None if passed else "y, step 1"), (other, check)
    assert "64 steps in one call" in prove(tmp_path / "step.onnx", "sum.onnx")[1]["other"].detail
    for other, words in (
        ("own.py:short", "returns 1 arrays, expected 2"), ("own.py:fails", "own.py:fails: IndexError"),
        ("absent.onnx", "no such file"), ("own", "no such file"),
    ):  # fmt: skip
        with pytest.raises(GraphError, match=words):
            prove(path, other, trust=True)
    with pytest.raises(TrustError, match="would run"):
        prove(path, "own.py:right")


def test_first_states_and_files_of_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "sum.onnx", SUM)
    np.savez(tmp_path / "first.npz", total=np.full((1, 1), 1000.0))
    np.save(tmp_path / "x.npy", np.ones(50))
    report, checks = prove(path, first=Path("first.npz"), input=("x=x.npy",))
    assert report.steps == 50 and checks["range"].value == 1050
    np.savez(tmp_path / "first.npz", total=np.zeros((1, 2)))
    with pytest.raises(GraphError, match=r"total of shape \(1, 2\), expected total float32"):
        prove(path, first=Path("first.npz"))


def test_numbers_without_axes_are_inputs_and_states(tmp_path: Path) -> None:
    text = """
(float[1, 4] x, float gain, float count) => (float[1, 4] y, float new_count) <float half = {0.5}, float one = {1}> {
  kept = Mul(count, half)
  new_count = Add(kept, one)
  scale = Mul(gain, new_count)
  y = Mul(x, scale)
}"""
    report, _ = prove(write(tmp_path / "scalars.onnx", text), input=("gain=0.5",))
    assert report.passed, report.rows()


def test_other_graph_that_fails_is_the_one_that_fails(tmp_path: Path) -> None:
    other = write(tmp_path / "other.onnx", TABLE.replace("Mod(next, size)", "Identity(next)"))
    report, checks = prove(write(tmp_path / "ring.onnx", TABLE), str(other), steps=400)
    assert report.steps == 400 and checks["horizon"].passed is not False, report.rows()
    assert checks["other"].passed is False and str(checks["other"].place).startswith("step 300, where the other graph")


ACCUMULATOR = """
(float[1, 4] x, float[1, 4] memory) => (float[1, 4] y, float[1, 4] new_memory) <float keep = {0.9}> {
  kept = Mul(memory, keep)
  size = Abs(x)
  new_memory = Add(kept, size)
  y = Mul(x, memory)
}"""


@pytest.mark.parametrize(
    ("old", "new", "passed"),
    [
        ("0.9", "0.9", True),
        ("0.9", "0.9999", True),
        ("Add(kept, size)", "Max(memory, size)", True),
        ("0.9", "1", False),
    ],
)
@pytest.mark.full
def test_loud_end_of_a_file_is_no_growth_without_end(old: str, new: str, passed: bool, tmp_path: Path) -> None:
    loudness = np.concatenate([np.full(200, 1e-3), np.linspace(0.1, 1, 200)])
    np.save(tmp_path / "loud.npy", np.random.default_rng(0).uniform(-1, 1, (400, 1, 4)) * loudness[:, None, None])
    path = write(tmp_path / "memory.onnx", ACCUMULATOR.replace(old, new))
    check = prove(path, input=("x=loud.npy",), steps=400)[1]["range"]
    assert check.passed is passed and "memory still grows" in check.detail, check


@pytest.mark.full
def test_types_of_both_graphs_count_in_either_order(tmp_path: Path) -> None:
    text = ACCUMULATOR.replace("float keep", "float[1] part").replace("kept =", "keep = Cast <to = 1> (part)  kept =")
    half = text.replace("float[1, 4]", "float16[1, 4]").replace("to = 1>", "to = 10>")
    for one, two, passed in ((text, half, True), (text, half.replace("{0.9}", "{0.8}"), False)):
        paths = [write(tmp_path / f"{at}.onnx", graph) for at, graph in enumerate((one, two))]
        checks = [prove(paths[at], str(paths[1 - at]))[1]["other"] for at in range(2)]
        assert [check.passed for check in checks] == [passed, passed], checks


def test_states_that_are_left_are_named_if_the_time_is_over(tmp_path: Path) -> None:
    path = write(tmp_path / "memory.onnx", ACCUMULATOR)
    walk = open_walk(read_graph_file(path), GraphOptions(), tmp_path)
    check = check_state_read(read_baseline(walk, 20), seconds=0.0)
    assert check.passed is None and "not all tried, as 0 s were over: memory" in check.detail
