"""A stopped command, a closed pipe or a full disk leaves no unfinished output and shows no traceback."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
import torch

from xlexport.terminal import INTERRUPTED
from xlruntime.bundle_files import read_bundle

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("stage", "number", "on_ctrl_c"),
    [
        ("exporting", signal.SIGTERM, signal.SIG_DFL),
        ("verifying", signal.SIGINT, signal.SIG_DFL),
        ("verifying", signal.SIGTERM, signal.SIG_IGN),  # as a shell starts background jobs
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


@pytest.mark.full
def test_convert_that_is_killed_leaves_only_a_temporary(
    checkpoint: Path, start: Start, invoke: Invoke, reuse_export: None, tmp_path: Path
) -> None:
    process = start("convert", checkpoint, "-o", tmp_path / "out")
    wait_for_line(process.stderr, "exporting")
    process.kill()
    process.wait()
    (left,) = [path.name for path in tmp_path.iterdir()]
    assert left.startswith(".out.tmp-")
    invoke("convert", checkpoint, "-o", tmp_path / "out", "--segments", "2").succeeded()
    assert sorted(path.name for path in tmp_path.iterdir()) == [left, "out"]
    read_bundle(tmp_path / "out")


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
    size = ("--n-layer", "1", "--n-head", "1", "--d-model", "8", "--d-head", "4", "--d-inner", "8")
    run = ("train", prose, "-o", tmp_path / "run", *size, "--tgt-len", "8", "--mem-len", "8", "--batch-size", "2")
    process = start(*run, "--steps", "1000000", "--log-every", "5", "--threads", "1")
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    mountable = os.geteuid() == 0 and shutil.which("mount") is not None
    if not mountable or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(reuse_export: None, checkpoint: Path, small_disk: Path, invoke: Invoke) -> None:
    shown = invoke("convert", checkpoint, "-o", small_disk / "out")
    assert (shown.code, shown.out) == (1, "")
    error = shown.err.splitlines()[-1]
    assert error.startswith("Error: ")
    assert error.endswith("No space left on device. Free some space, or write to another disk; nothing was published.")
    assert not list(small_disk.iterdir())
