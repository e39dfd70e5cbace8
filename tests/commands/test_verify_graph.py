"""`xlexport verify GRAPH.onnx` as a command."""

from __future__ import annotations

from pathlib import Path

from tests.graph_proof.graphs import BEFORE, write
from tests.helpers.invoking import Invoke

QUICK = ("--steps", "60")


def test_table_json_and_exit_status(tmp_path: Path, invoke: Invoke) -> None:
    right = write(tmp_path / "before.onnx", BEFORE)
    wrong = write(tmp_path / "wrong.onnx", BEFORE.replace("y = Add(x, before)", "y = Add(x, last)"))
    shown = invoke("verify", right, *QUICK)
    assert shown.code == 0 and "state          last → new_last (by their names)\n" in shown.out
    assert "cuts           ok" in shown.out and shown.out.endswith("passed         yes\n")
    shown = invoke("verify", wrong, right, *QUICK, "--json")
    assert shown.code == 1 and not shown.object["passed"]
    failed = {check["name"]: check["place"] for check in shown.object["checks"] if check["passed"] is False}
    assert failed == {"cuts": "y, step 1"}


def test_trouble_is_one_line_and_status_2(tmp_path: Path, invoke: Invoke) -> None:
    path = write(tmp_path / "before.onnx", BEFORE)
    (tmp_path / "text.onnx").write_text("Call me Ishmael.", "utf-8")
    for line, words in {
        (str(tmp_path / "absent.onnx"),): "absent.onnx: no such file. Did you mean",
        (str(tmp_path / "text.onnx"),): "text.onnx: not an ONNX graph",
        (str(path), "--state", "last=z"): "before.onnx: no output z",
        (str(path), "--state", "last"): "expected INPUT=OUTPUT",
        (str(path), "--text", "book.txt", "--set", "ops=none"): "--text and --set ops are for bundles",
        (str(path), "--against", "own.py:f"): "--against is for bundles",
        (str(tmp_path), "--steps", "5", "--set", "seed=1"): "--steps and --set seed are for graphs of others",
    }.items():
        shown = invoke("verify", *line)
        assert (shown.code, shown.out) == (2, "") and words in shown.err, (line, shown)
