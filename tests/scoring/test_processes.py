"""Documents that several processes share, and batches of similar lengths: the output is the same, byte for byte."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from tests.scoring.conftest import Score
from xlexport.scoring import backends, processes
from xlexport.scoring import chunks as chunk_module
from xlexport.scoring.chunks import ChunkState
from xlexport.scoring.resume import SavedRun
from xlexport.scoring.totals import Totals
from xlexport.terminal import INTERRUPTED
from xlruntime import Model, TextError

LENGTHS = (1, 30, 2, 7, 300, 90, 64, 65, 0, 128, 5)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return 40 documents of very different lengths; some have nothing to score, one is broken."""
    lines = [
        json.dumps({"id": f"d{number}", "text": ("It was the best of times. " * 12)[: LENGTHS[number % len(LENGTHS)]]})
        for number in range(40)
    ]
    lines[11] = '{"text": 5}'
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the documents into chunks of three."""
    monkeypatch.setattr(chunk_module, "MOST_DOCUMENTS", 3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("per", ["document", "word", "token"])
@pytest.mark.full
def test_one_document_at_a_time_is_what_a_plain_run_writes(score: Score, rows: Path, tmp_path: Path, per: str) -> None:
    plain, shared = tmp_path / "plain.csv", tmp_path / "shared.csv"
    options = (rows, "--field", "text", "--id-field", "id", "--per", per, "-o")
    expected = score(*options, plain)
    found = score(*options, shared, "--processes", 1, "--batch-size", 1)
    assert (expected.code, found.code) == (1, 1)  # some documents have nothing to score
    assert found.err.count("Error: ") == expected.err.count("Error: ") > 1
    assert shared.read_bytes() == plain.read_bytes()
    assert shared.read_bytes().count(b"document") == 1  # one header


@pytest.mark.usefixtures("small_chunks")
def test_batches_of_similar_lengths_keep_the_order_of_documents(score: Score, rows: Path, tmp_path: Path) -> None:
    plain, formed = tmp_path / "plain.jsonl", tmp_path / "formed.jsonl"
    options = (rows, "--field", "text", "--id-field", "id", "--per", "token", "-o")
    score(*options, plain)
    score(*options, formed, "--batch-size", "auto")
    expected, found = ([json.loads(line) for line in path.read_text().splitlines()] for path in (plain, formed))
    assert len(found) > 500
    for one, other in zip(expected, found, strict=True):
        assert (one["document"], one["index"], one["token"]) == (other["document"], other["index"], other["token"])
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=2e-5)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("stop", [1, 9])
@pytest.mark.full
def test_a_run_by_chunks_goes_on_to_the_same_bytes(
    score: Score, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    options = (rows, "--field", "text", "--batch-size", "auto", "--set", "save_every=0", "--per")
    score(*options, "word", "-o", whole)
    monkeypatch.setattr("xlexport.scoring.resume.BUSY", 0)
    save, saves = SavedRun.save, iter(range(stop))

    def saving(*given: object) -> None:
        save(*given)  # type: ignore[arg-type]
        if next(saves, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(SavedRun, "save", saving)
    interrupted = score(*options, "word", "-o", output)
    assert interrupted.code == 130
    assert "Continue with --resume" in interrupted.err
    state = output.with_name("out.jsonl.partial.state")
    assert 0 < state.stat().st_size < 8000  # nothing of any memory
    monkeypatch.setattr(SavedRun, "save", save)
    assert "--per was word, now line" in score(*options, "line", "-o", output, "--resume").err
    assert "going on after" in score(*options, "word", "-o", output, "--resume").err
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "way",
    [
        ("--batch-size", "auto"),
        ("--processes", "1", "--batch-size", "1"),
        pytest.param(("--processes", "2"), marks=pytest.mark.full),
    ],
    ids=" ".join,
)
@pytest.mark.full
def test_a_long_document_goes_on_in_its_middle(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    monkeypatch.setattr("xlexport.scoring.resume.BUSY", 0)
    text, whole, output = tmp_path / "text.txt", tmp_path / "whole.csv", tmp_path / "out.csv"
    text.write_text("It was the best of times. " * 40)
    score(text, "--per", "word", *way, "-o", whole).succeeded()
    save, states = SavedRun.save, []

    def saving(self: SavedRun, totals: Totals, number: int, state: ChunkState | None) -> None:
        save(self, totals, number, state)
        states.append(state)
        if len(states) == 60:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SavedRun, "save", saving)
        assert score(text, "--per", "word", "--set", "save_every=0", *way, "-o", output).code == INTERRUPTED
    assert states[-1].fields["scorer"]["rows"][0]["position"] > 400
    with mock.patch.object(Model, "step", autospec=True, side_effect=Model.step) as step:
        resumed = score(text, "--per", "word", *way, "-o", output, "--resume").succeeded()
    assert "going on after " in resumed.err
    assert output.read_bytes() == whole.read_bytes()
    assert step.call_count < 100  # of 130, in segments of eight bytes


class PretendedWorker:
    """A worker whose chunk is the list of its own messages."""

    def __init__(self) -> None:
        self.left: list[bytes] = []

    def begin(self, chunk: Any, state: ChunkState | None) -> None:
        assert not self.left  # it is idle
        self.left = [pickle.dumps(message) for message in [*([state] if state else []), *chunk, None]]

    def receive(self) -> bytes:
        return self.left.pop(0)


def in_turns(cut: Iterable[list[Any]], state: ChunkState | None = None) -> Iterator[Any]:
    """Yield the messages of three workers, of which the last one that works is always the fastest."""
    workers = [PretendedWorker() for _ in range(3)]
    return backends.in_order(workers, lambda heard: heard[-1:], iter(cast(Any, cut)), state)


def test_messages_come_in_the_order_of_chunks() -> None:
    cut = [[[chunk, part] for part in range(chunk % 4)] for chunk in range(20)]
    expected = [message for chunk in cut for message in (*chunk, None)]
    assert list(in_turns(cut)) == expected


def test_states_of_the_current_chunk_alone_are_passed_on() -> None:
    first, early, late = (ChunkState({"number": number}, {}) for number in range(3))
    cut: list[list[Any]] = [[[1], late], [[2], early], [[3]]]
    assert list(in_turns(cut, first)) == [first, [1], late, None, [2], None, [3], None]


def test_an_error_of_the_inputs_comes_after_the_chunks_before_it() -> None:
    def cut() -> Iterator[list[Any]]:
        yield [[1]]
        yield [[2]]
        raise TextError("no more")

    found = []
    with pytest.raises(TextError, match="no more"):
        for message in in_turns(cut()):
            found.append(message)
    assert found == [[1], None, [2], None]


def test_waiting_messages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "MOST_WAITING", 100)
    cut = [[[chunk] * 60] for chunk in range(9)]
    assert [message[0] for message in in_turns(cut) if message] == list(range(9))


@pytest.mark.full
def test_processes_write_the_same_bytes(score: Score, rows: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text(rows.read_text() * 8)
    outputs = [tmp_path / f"{count}.csv" for count in (1, 2)]
    errors = []
    for count, output in enumerate(outputs, 1):
        ran = score(many, "--field", "text", "--per", "word", "--processes", count, "-o", output)
        errors.append([line for line in ran.err.splitlines() if line.startswith("Error")])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert errors[0] == errors[1] != []


@pytest.mark.full
def test_a_killed_worker_is_an_error_and_the_run_goes_on(
    score: Score, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    options = (rows, "--field", "text", "--processes")
    score(*options, 1, "-o", whole)
    started = processes._started

    def doomed(task: object) -> processes._Worker:
        worker = started(task)  # type: ignore[arg-type]
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(processes, "_started", doomed)
    killed = score(*options, 2, "-o", output)
    assert killed.code == 1
    assert "a process that scored documents ended by SIGKILL" in killed.err
    assert not output.exists()
    monkeypatch.setattr(processes, "_started", started)
    score(*options, 2, "-o", output, "--resume")
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.full
def test_ctrl_c_ends_all_processes(bundle: Path, rows: Path, tmp_path: Path) -> None:
    many, output = tmp_path / "many.jsonl", tmp_path / "out.jsonl"
    many.write_text(rows.read_text() * 500)
    command = [sys.executable, "-m", "xlexport", "score", str(bundle), str(many), "--field", "text", "--processes", "2"]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited: these tests may run in the background
    try:
        run = subprocess.Popen([*command, "-o", str(output)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    partial = output.with_name("out.jsonl.partial")
    while run.poll() is None and not (partial.exists() and partial.stat().st_size):
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 130, errors
    assert "Continue with --resume" in errors
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        while True:
            os.killpg(run.pid, 0)
            time.sleep(0.05)
