"""The process that runs a graph: what it may use up, what it sees, and what becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import xlexport
from tests.graph_proof.graphs import ENDLESS, SUM, write
from xlexport import GraphOptions
from xlexport.errors import GraphError
from xlexport.graph_proof import child

SPY = """
import json, os, resource
def seen(x, total):
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    raise ValueError(json.dumps([os.listdir("."), resource.getrlimit(resource.RLIMIT_AS)[0], [*os.environ], files]))
"""


def test_child_sees_nothing_of_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sum.onnx", SUM)
    (tmp_path / "spy.py").write_text(SPY, "utf-8")
    (tmp_path / "secret.txt").write_text("do not tell", "utf-8")
    with (tmp_path / "secret.txt").open("rb") as file, pytest.raises(GraphError) as caught:
        os.set_inheritable(file.fileno(), True)
        options = GraphOptions(trust=True, memory=7 << 30)
        xlexport.verify_graph("sum.onnx", "spy.py:seen", options=options)
    told = caught.value.message
    assert told.startswith("spy.py:seen: ValueError") and str(7 << 30) in told and "[], " in told
    assert "SECRET" not in told and "secret.txt" not in told


@pytest.mark.full
def test_time_is_over(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(GraphError, match=r"endless.onnx: not finished after 2 s"):
        xlexport.verify_graph(write(tmp_path / "endless.onnx", ENDLESS), options=GraphOptions(seconds=2))
    assert time.monotonic() - began < 60


def test_child_ends_with_its_command(tmp_path: Path) -> None:
    path = write(tmp_path / "endless.onnx", ENDLESS)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited: these tests may run in the background
    command = subprocess.Popen([sys.executable, "-m", "xlexport", "verify", path], stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    while not (children := _children(command.pid)) and command.poll() is None:
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=60)
    assert command.returncode == 130 and told.strip().startswith("Error: interrupted")
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in children):
            return
        time.sleep(0.1)
    pytest.fail("the child still runs")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ended with status -9"),
        (b"{", "not valid JSON"),
        (b'{"report": {"graph": "x"}}', "left no report"),
        (b'{"type": "MemoryError", "message": "", "hint": null}', "needs more than 8,589,934,592 bytes of memory"),
        (b'{"type": "os", "message": "x", "hint": null}', "graph.onnx: os: x"),
    ],
)
def test_result_of_a_child_is_not_trusted(content: bytes, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        child._result(Path("graph.onnx"), content, -9, GraphOptions())
    assert caught.value.hint
