"""Four processes run one command with the same output: one complete result stays, and the others report why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.invoking import PROSE, write_checkpoint
from tests.helpers.paths import EMPTY, ROOT, golden_bundle
from xlexport.commands import run
from xlruntime import load

pytestmark = pytest.mark.full

RunAtOnce = Callable[[tuple[str, ...]], list[tuple[int, str]]]

PROCESSES = 4
GOLDEN = golden_bundle(EMPTY)
PROGRAM = """
import json, os, sys
import xlexport.convert, xlexport.scoring.run  # once for all processes, which are forks of this one
from tests.helpers.export_cache import cached_exports
from xlexport.commands import run

def begin(arguments, errors, gate, end):
    process = os.fork()
    if process:
        return process
    os.close(end)
    os.read(gate, 1)  # until nobody holds the other end, so that all begin their work together
    with open(errors, "w") as sys.stderr, open(os.devnull, "w") as sys.stdout, cached_exports():
        status = run(arguments)
    os._exit(status)

for line in sys.stdin:
    arguments, files = json.loads(line)
    gate, end = os.pipe()
    processes = [begin([*arguments], errors, gate, end) for errors in files]
    os.close(end)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in processes]), flush=True)
    os.close(gate)
"""


@pytest.fixture
def lines(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """Return the arguments of each command, without its output."""
    text = tmp_path / "prose.txt"
    text.write_bytes(PROSE * 40)
    checkpoint = write_checkpoint(tmp_path / "tiny.pt")
    lines = {
        "convert": ("convert", str(checkpoint), "--segments", "2"),
        "quantize": ("quantize", str(tmp_path / "float.bundle"), "--dtype", "weight-int8", "--text", str(text),
                     "--max-delta-bits", "9", "--tokens", "2048"),
        "score": ("score", str(GOLDEN), str(text), "--per", "word", "--save-every", "0"),
        "report": ("report", str(GOLDEN), str(text)),
    }  # fmt: skip
    return {name: (*line, "--threads", "1") for name, line in lines.items()}


@pytest.fixture
def run_at_once(tmp_path: Path) -> Iterator[RunAtOnce]:
    """Return a function that runs the processes and returns the exit status and standard error of each."""
    files = [tmp_path / f"{number}.txt" for number in range(PROCESSES)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as parent:  # fmt: skip
        assert parent.stdin is not None and parent.stdout is not None
        given, found = parent.stdin, parent.stdout

        def start(line: tuple[str, ...]) -> list[tuple[int, str]]:
            given.write(json.dumps([line, list(map(str, files))]) + "\n")
            given.flush()
            statuses = json.loads(found.readline())
            return [(status, file.read_text("utf-8")) for status, file in zip(statuses, files, strict=True)]

        yield start


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("command", ["convert", "quantize", "score", "report"])
def test_one_whole_result_stays(
    command: str, lines: dict[str, tuple[str, ...]], run_at_once: RunAtOnce, tmp_path: Path
) -> None:
    if command == "quantize":
        assert run([*lines["convert"], "-o", str(tmp_path / "float.bundle")]) == 0
    ending = {"score": ".jsonl", "report": ".html"}.get(command, ".bundle")
    alone, output = tmp_path / f"alone{ending}", tmp_path / "place" / f"out{ending}"
    assert run([*lines[command], "-o", str(alone)]) == 0
    output.parent.mkdir()
    for force in ((), ("--force",)):
        found = run_at_once((*lines[command], "-o", str(output), *force))
        succeeded = [status for status, _ in found if status == 0]
        assert len(succeeded) == (PROCESSES if force and command != "score" else max(len(succeeded), 1)), found
        assert len(succeeded) == 1 or force
        for status, said in found:
            errors = [text for text in said.splitlines() if text.startswith("Error: ")]
            assert "Traceback" not in said
            assert (status, len(errors)) in ((0, 0), (1, 1)), said
            assert not errors or str(output) in errors[0]
        assert [path.name for path in output.parent.iterdir()] == [output.name]
        if output.is_dir():
            assert {path.name for path in output.iterdir()} == {path.name for path in alone.iterdir()}
            load(output, threads=1)  # compares all digests
        else:
            assert output.read_bytes() == alone.read_bytes()
