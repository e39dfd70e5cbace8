"""A stopped command, a closed pipe or a full disk leaves no unfinished output; two signals end any call."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
import torch
from onnx import helper

from tests.helpers.invoking import Finished, Invoke
from tests.helpers.made_graphs import endless, graph, made_bundle, model
from tests.helpers.manifests import edit_manifest
from xlexport.terminal import INTERRUPTED
from xlruntime.bundle_files import digest_file

Start = Callable[..., subprocess.Popen[bytes]]

SECONDS = 120


@pytest.fixture
def start(command: Callable[..., list[str]], environment: dict[str, str]) -> Iterator[Start]:
    """Start a command line in a separate process, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        *arguments: str | Path, stdout: int = subprocess.PIPE, on_ctrl_c: signal.Handlers = signal.SIG_DFL
    ) -> subprocess.Popen[bytes]:
        line = command(*arguments)
        before = signal.signal(signal.SIGINT, on_ctrl_c)  # inherited: these tests may themselves run in the background
        try:
            started.append(subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, env=environment))
        finally:
            signal.signal(signal.SIGINT, before)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for_line(stream: IO[bytes] | None, word: str) -> None:
    """Read until a line contains `word`."""
    assert stream is not None
    for line in stream:
        if word in line.decode():
            return
    pytest.fail(f"the command never said {word!r}")


def rest(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """Return the rest of both streams after the process has ended.

    `communicate` would lose the text in the buffers that `wait_for_line` has filled.
    """
    assert process.stdout is not None and process.stderr is not None
    with ThreadPoolExecutor(1) as beside:
        err = beside.submit(process.stderr.read)
        out = process.stdout.read()
        process.wait(timeout=SECONDS)
        return out, err.result(timeout=SECONDS).decode()


@pytest.mark.full(cases=1)
@pytest.mark.parametrize(
    ("stage", "number", "on_ctrl_c"),
    [
        ("exporting", signal.SIGTERM, signal.SIG_DFL),
        ("verifying", signal.SIGINT, signal.SIG_DFL),
        ("verifying", signal.SIGTERM, signal.SIG_IGN),  # as of a shell's jobs
    ],
)
def test_convert_that_is_stopped_leaves_nothing(
    stage: str, number: signal.Signals, on_ctrl_c: signal.Handlers, checkpoint: Path, start: Start, tmp_path: Path
) -> None:
    process = start("convert", checkpoint, "-o", tmp_path / "out", "--segments", "100000", on_ctrl_c=on_ctrl_c)
    wait_for_line(process.stderr, stage)
    assert [path.name.startswith(".out.tmp-") for path in tmp_path.iterdir()] == [True]
    process.send_signal(number)
    out, err = rest(process)
    assert (process.returncode, out) == (INTERRUPTED, b""), err
    assert err.splitlines()[-1] == "Error: interrupted; no unfinished output was left. Run the command again."
    assert not list(tmp_path.iterdir())


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 20_000)
    return path


@pytest.mark.full
def test_score_that_is_stopped(bundle: Path, long_text: Path, start: Start) -> None:
    process = start("score", bundle, long_text, "--per", "token", "--threads", "1")
    wait_for_line(process.stdout, '"index": 100,')
    process.send_signal(signal.SIGINT)
    out, err = rest(process)
    assert process.returncode == INTERRUPTED
    indices = [json.loads(line)["index"] for line in out.splitlines()[:-1]]
    assert indices == list(range(101, 101 + len(indices)))
    assert err.strip() == "Error: interrupted; standard output has what was scored until then."


@pytest.mark.full
def test_reader_that_has_read_enough(bundle: Path, long_text: Path, start: Start) -> None:
    """End without a traceback or a message, as before `| head -1`."""
    process = start("score", bundle, long_text, "--per", "token", "--threads", "1")
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["index"] == 1
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=SECONDS) == 1


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["score", "text"], ["score", "text", "--per", "token"], ["inspect", "--json"]])
def test_full_standard_output(
    arguments: list[str], bundle: Path, prose: Path, command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    name, *rest = arguments
    line = command(name, bundle, *[prose if value == "text" else value for value in rest])
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=SECONDS, check=False)
    said = "standard output: No space left on device."
    shown = json.dumps({"error": said, "hint": None, "type": "OSError"}) if "--json" in rest else f"Error: {said}"
    assert (done.returncode, done.stderr.decode()) == (1, f"{shown}\n")


@pytest.mark.full
def test_reader_that_is_gone_at_once(bundle: Path, command: Callable[..., list[str]]) -> None:
    for arguments in (("inspect", bundle, "--json"), ("doctor",), ("--help",)):
        line = " ".join(map(shlex.quote, command(*arguments)))
        done = subprocess.run(["bash", "-c", f"{line} | true"], capture_output=True, timeout=SECONDS, check=False)
        assert done.stderr == b""


@pytest.mark.full
def test_training_that_is_asked_to_end_saves_and_goes_on(
    start: Start, invoke: Invoke, prose: Path, tmp_path: Path
) -> None:
    """Send SIGTERM, as a machine that shuts down does: it acts like Ctrl-C."""
    size = ("--n-layer", "1", "--n-head", "1", "--d-model", "8", "--set=model.d_head=4", "--set=model.d_inner=8")
    run = ("train", prose, "-o", tmp_path / "run", *size, "--tgt-len", "8", "--mem-len", "8", "--batch-size", "2")
    process = start(*run, "--steps", "1000000", "--set=training.log_every=5", "--threads", "1")
    log = tmp_path / "run" / "log.jsonl"
    deadline = time.monotonic() + SECONDS
    while not (log.exists() and log.read_text()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == INTERRUPTED, err.decode()
    stopping, end = err.decode().splitlines()
    assert stopping == "stopping: the run will be saved. Another Ctrl-C ends it at once, unsaved."
    stopped = re.fullmatch(r"stopped at step ([0-9,]+) of 1,000,000; wrote .*checkpoint.pt; go on with --resume", end)
    assert stopped is not None, end
    step = int(stopped[1].replace(",", ""))
    assert step >= 5
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert checkpoint["training"]["step"] == step


# Calls of ONNX Runtime of any length.


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
def endless_bundle(tmp_path: Path) -> Path:
    return made_bundle(tmp_path / "bundle", {"score": endless()})


@pytest.fixture(params=["load", "step"])
def process(
    request: pytest.FixtureRequest, endless_bundle: Path, tmp_path: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start `score` in a call that does not return."""
    if request.param == "load":
        (endless_bundle / "score.onnx").write_bytes(billion_laughs())
        digest = vars(digest_file(endless_bundle / "score.onnx"))
        edit_manifest(endless_bundle, lambda manifest: manifest["files"].update({"score.onnx": digest}))
    (tmp_path / "text").write_bytes(b"a\xff")
    arguments = (request.param, "score", str(endless_bundle), str(tmp_path / "text"), "--threads", "1")
    line = [sys.executable, "-c", DRIVER, *arguments]
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


def test_step_timeout(endless_bundle: Path, tmp_path: Path, invoke: Callable[..., Finished]) -> None:
    (tmp_path / "text").write_bytes(b"a\xff")
    shown = invoke("score", endless_bundle, tmp_path / "text", "--set=step_timeout=0.1", "--threads", "1")
    assert shown.code == 1
    assert f"{endless_bundle / 'score.onnx'}: a step took longer than step_timeout, 0.1 seconds." in shown.err
    assert "Traceback" not in shown.err
    (tmp_path / "text").write_bytes(b"ab")
    invoke("score", endless_bundle, tmp_path / "text", "--set=step_timeout=100", "--threads", "1").succeeded()
