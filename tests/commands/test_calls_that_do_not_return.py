"""SIGTERM and a second Ctrl-C end a command during a call of ONNX Runtime of any length."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from onnx import helper

from tests.helpers.invoking import Finished
from tests.helpers.made_graphs import endless, graph, made_bundle, model
from tests.helpers.manifests import edit_manifest
from xlruntime.bundle_files import digest_file

SECONDS = 120
# The command itself. It prints when the call begins, and has shorter time limits than usual.
DRIVER = """
import sys
from xlruntime import providers, session
import xlexport.commands as commands
from xlexport.commands import signals
signals.PATIENCE, signals.SECOND_CHANCE = 0.5, 0.1
def announced(call):
    def said(*given, **named):
        print("calling", file=sys.stderr, flush=True)
        return call(*given, **named)
    return said
if sys.argv[1] == "load":
    ort = providers.import_onnxruntime()
    providers.read_graph = lambda path, data_files: path.read_bytes()
    ort.InferenceSession = announced(ort.InferenceSession)
else:
    session.GraphSession.step = announced(session.GraphSession.step)
del sys.argv[1]
commands.main()
"""
AT_ONCE = "Error: ended at once, within a call that did not return. Run the command again.\n"


def billion_laughs() -> bytes:
    """Return nested functions that ONNX Runtime would expand forever; xlruntime's own check would refuse them."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.xlexport", 1)]
    functions = [
        helper.make_function("ai.xlexport", "f0", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], opsets)
    ]
    for level in range(1, 31):
        names = ["x", "t1", "t2", "t3", "y"]
        calls = [
            helper.make_node(f"f{level - 1}", [x], [y], domain="ai.xlexport") for x, y in itertools.pairwise(names)
        ]
        functions.append(helper.make_function("ai.xlexport", f"f{level}", ["x"], ["y"], calls, opsets))
    nodes = [
        helper.make_node("Cast", ["targets"], ["f"], to=1),
        helper.make_node("f30", ["f"], ["log_prob"], domain="ai.xlexport"),
    ]
    return model(graph(nodes), functions).SerializeToString()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return made_bundle(tmp_path / "bundle", {"score": endless()})


@pytest.fixture(params=["load", "step"])
def process(
    request: pytest.FixtureRequest, bundle: Path, tmp_path: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start `score` in a call that does not return."""
    if request.param == "load":
        (bundle / "score.onnx").write_bytes(billion_laughs())
        digest = vars(digest_file(bundle / "score.onnx"))
        edit_manifest(bundle, lambda manifest: manifest["files"].update({"score.onnx": digest}))
    (tmp_path / "text").write_bytes(b"a\xff")
    line = [sys.executable, "-c", DRIVER, request.param, "score", str(bundle), str(tmp_path / "text"), "--threads", "1"]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited: these tests may run in the background
    try:
        started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert started.stderr is not None
        for said in started.stderr:
            if said == "calling\n":
                break
        time.sleep(0.5)  # wait until it is in the call; an earlier signal is handled in good order
        assert started.poll() is None
        yield started
    finally:
        started.kill()
        started.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    assert process.stderr is not None
    process.wait(timeout=SECONDS)
    return process.returncode, process.stderr.read()


@pytest.mark.full
def test_sigterm(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert (code, said[-len(AT_ONCE) :]) == (128 + signal.SIGTERM, AT_ONCE)


@pytest.mark.full
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal(second: signal.Signals, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None  # the first one waits for the call to return
    process.send_signal(second)
    code, said = ended(process)
    assert (code, said[-len(AT_ONCE) :]) == (128 + second, AT_ONCE)


def test_step_timeout(bundle: Path, tmp_path: Path, invoke: Callable[..., Finished]) -> None:
    (tmp_path / "text").write_bytes(b"a\xff")
    shown = invoke("score", bundle, tmp_path / "text", "--set=step_timeout=0.1", "--threads", "1")
    assert shown.code == 1
    assert f"{bundle / 'score.onnx'}: a step took longer than step_timeout, 0.1 seconds." in shown.err
    assert "Traceback" not in shown.err
    (tmp_path / "text").write_bytes(b"ab")
    invoke("score", bundle, tmp_path / "text", "--set=step_timeout=100", "--threads", "1").succeeded()
