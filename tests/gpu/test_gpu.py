"""The trial for a GPU (`python -m tests.gpu`), rehearsed on a CPU and on a pretended CUDA device."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sides import SideError
from tests.gpu import __main__ as trial
from tests.gpu import checks, speed
from tests.gpu.__main__ import PARTS
from tests.gpu.bundles import REFORMERS, TEXT_MODEL, Shape, bundle_of, make_bundles
from tests.gpu.checks import judge
from tests.gpu.parts import NEEDS_CUDA, Outcome, Part, PartError, Record, Settings, Status, run_apart, run_here
from tests.gpu.speed import BUNDLE, CAPTURED, COMPILED, EAGER, side_name
from tests.helpers.paths import ROOT
from tests.helpers.pretended_cuda import pretend
from xlruntime.cuda_graphs import CapturedSession
from xlruntime.memory import Memory
from xlruntime.session import GraphSession

REHEARSAL = Settings("cpu", True, "")
PRETENDED = Settings("cuda:0", True, "")
ABSENT = Settings("cuda:99", True, "")


def part_that(run: Callable[[Settings, Record], None], needs_cuda: bool = False) -> Part:
    return Part("made_up", "", 5, run, needs_cuda)


def test_parts_come_with_what_they_need_in_their_order() -> None:
    assert trial.chosen_parts(None) == list(PARTS)
    assert trial.chosen_parts(["speed", "capture"]) == ["machine", "bundles", "capture", "speed"]
    assert trial.chosen_parts(["in_place"]) == ["in_place"]


def test_part_that_needs_cuda_never_passes_on_a_cpu() -> None:
    nothing = part_that(lambda settings, record: None, needs_cuda=True)
    found = run_here(nothing, REHEARSAL)
    assert (found.status, found.reason) == ("skipped", NEEDS_CUDA)
    assert run_here(nothing, PRETENDED).status == "passed"


def test_part_that_fails_says_why_and_keeps_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(settings: Settings, record: Record) -> None:
        record({"steps": 3})
        raise ValueError("too\nlong")

    for needs_cuda in (False, True):
        found = run_here(part_that(fails, needs_cuda), REHEARSAL)
        assert (found.status, found.reason, found.figures) == ("failed", "ValueError: too long", {"steps": 3})
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.full
def test_device_that_is_absent_fails_in_a_process_of_its_own() -> None:
    found = run_apart(PARTS["in_place"], ABSENT, None)
    assert found.status == "failed"
    assert re.search(r"ProviderError: device cuda:99: ", found.reason)


def test_part_that_takes_too_long_is_ended() -> None:
    found = run_apart(PARTS["in_place"], REHEARSAL, 0.05)
    assert (found.status, found.reason) == ("failed", "not done after 0 s")


def test_other_parts_go_on_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statuses: dict[str, Status] = {"machine": "passed", "in_place": "failed", "placement": "passed"}
    monkeypatch.setattr(trial, "run_apart", lambda part, settings, seconds: Outcome(part.name, statuses[part.name]))
    found = trial.try_parts(list(statuses), PRETENDED, tmp_path / "gpu.json")
    assert [outcome.status for outcome in found] == list(statuses.values())
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["name"] for part in written["parts"]] == list(statuses)
    assert (written["device"], written["tiny"]) == ("cuda:0", True)


def test_nothing_is_tried_on_a_device_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    unusable = Outcome("machine", "failed", reason="no driver", figures={"usable": False})
    monkeypatch.setattr(trial, "run_apart", lambda part, settings, seconds: unusable)
    found = trial.try_parts(["machine", "speed"], PRETENDED, None)
    assert [(outcome.status, outcome.reason) for outcome in found] == [
        ("failed", "no driver"),
        ("failed", "ONNX Runtime cannot use the device"),
    ]


@pytest.mark.parametrize("settings", [REHEARSAL, PRETENDED], ids=["cpu", "pretended CUDA"])
@pytest.mark.release
def test_segments_in_place(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    if settings.on_cuda:
        pretend(monkeypatch)
        monkeypatch.setattr(checks, "megabytes", lambda settings: (100.0, 50.0))
    monkeypatch.setattr(checks, "TINY_SEGMENTS", 30)
    found = run_here(PARTS["in_place"], settings)
    assert (found.status, found.reason) == ("passed", "")
    assert found.figures["segments"] == 30


def test_rings_that_are_copied_and_memory_that_grows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TINY_SEGMENTS", 30)
    used = iter(range(0, 10_000, 4))
    with monkeypatch.context() as patch:
        patch.setattr(checks, "megabytes", lambda settings: (100.0, next(used)))
        found = run_here(PARTS["in_place"], REHEARSAL)
    assert found.reason == "memory grew by 36.0 MB after the first tenth of 30 segments"

    def copied(session: GraphSession, feeds: dict[str, Any], memory: Memory) -> dict[str, Any]:
        rings = {entry.input: memory.array(entry).copy() for entry in memory.entries}
        return session.run({**feeds, **{name: value.numpy() for name, value in memory.constants.items()}, **rings})

    monkeypatch.setattr(GraphSession, "step", copied)
    assert run_here(PARTS["in_place"], REHEARSAL).reason.startswith("AssertionError: Not equal to tolerance")


def test_skipped_test_has_not_passed() -> None:
    passed, skipped = '<testcase name="a"/>', '<testcase name="b"><skipped message="no CUDA here"/></testcase>'
    kept: dict[str, Any] = {}
    judge(f"<testsuites><testsuite>{passed}</testsuite></testsuites>", kept.update)
    assert kept == {"tests": 1, "not_passed": []}
    with pytest.raises(PartError, match=r"1 of 2 tests did not pass: b \(skipped\)"):
        judge(f"<testsuites><testsuite>{passed}{skipped}</testsuite></testsuites>", kept.update)
    with pytest.raises(PartError, match="no test"):
        judge("<testsuites/>", kept.update)


def test_every_test_that_skips_without_cuda_has_the_marker() -> None:
    skips = re.compile(r"skip\(f?\"no CUDA here|skipif\(not torch\.cuda\.is_available\(\)")
    here = Path(__file__).resolve()
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file != here and skips.search(file.read_text())]
    assert len(files) >= 2
    assert [file.name for file in files if "pytest.mark.cuda" not in file.read_text()] == []


def test_sides_that_fail_or_compute_something_else_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(settings: Settings, shape: Shape, side: str, batch_size: int, scratch: str) -> Any:
        if side == COMPILED:
            raise SideError("no compiler")
        return side

    def measure(makers: dict[str, Any], *given: Any) -> dict[str, Any]:
        differences = {EAGER: 0.5, CAPTURED: float("nan")}
        sides = {name: {"max_abs_log_prob_diff": differences.get(make(), 1e-6)} for name, make in makers.items()}
        return {"sides": sides}

    monkeypatch.setattr(speed, "_start", start)
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "make_low_precisions", lambda settings: None)
    found = run_here(PARTS["speed"], REHEARSAL)
    assert found.status == "failed"
    assert found.figures["problems"] == [
        "reformer-band, bundle, CUDA graphs, batch 1: its scores are not the bundle's",
        *(
            f"tiny-clusters-{precision}, {side}, batch {batch}: its scores are not the bundle's"
            for precision in ("TF32", "float16")
            for batch in (1, 2)
            for side in (CAPTURED, EAGER)
        ),
        "tiny, torch.compile, batch 1: no compiler",
        "tiny, bundle, CUDA graphs, batch 1: its scores are not the bundle's",
        "tiny, PyTorch eager, batch 1: its scores are not the bundle's",
        "tiny-clusters, bundle, CUDA graphs, batch 1: its scores are not the bundle's",
        "tiny-clusters, PyTorch eager, batch 1: its scores are not the bundle's",
    ]
    assert list(found.figures["shapes"]["tiny"]["sides"]) == [side_name(side, 1) for side in (BUNDLE, CAPTURED, EAGER)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the tiny bundles."""
    path = str(tmp_path_factory.mktemp("gpu"))
    make_bundles(Settings("cpu", True, path), lambda figures: None)
    return path


@pytest.mark.release
@pytest.mark.parametrize("name", ["placement", "capture", "float16"])
def test_parts_on_a_pretended_device(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    found = run_here(PARTS[name], Settings("cuda:0", True, folder))
    assert (found.status, found.reason) == ("passed", "")
    if name == "capture":
        assert found.figures["captures"] == {"score": 4, "generate": 4}
    assert bundle_of(Settings("cuda:0", True, folder), TEXT_MODEL).is_dir()


@pytest.mark.release
def test_capture_that_replays_old_results_is_found(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    first: dict[CapturedSession, Any] = {}
    step = CapturedSession.step
    monkeypatch.setattr(CapturedSession, "step", lambda self, *given: first.setdefault(self, step(self, *given)))
    found = run_here(PARTS["capture"], Settings("cuda:0", True, folder))
    assert found.status == "failed"
    assert re.search(r"score: captured steps differ by \S+ from plain ones", found.reason)


@pytest.mark.long
def test_the_whole_rehearsal(folder: str, tmp_path: Path) -> None:
    file, tables = tmp_path / "gpu.json", tmp_path / "gpu.md"
    options = ["--device", "cpu", "--tiny", "--folder", folder, "--json", str(file), "--markdown", str(tables)]
    command = [sys.executable, "-m", "tests.gpu", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    parts = {part["name"]: part for part in json.loads(file.read_text())["parts"]}
    skipped = {"tests", "placement", "capture"}
    assert {name: part["status"] for name, part in parts.items()} == {
        name: "skipped" if name in skipped else "passed" for name in PARTS
    }
    assert {parts[name]["reason"] for name in skipped} == {NEEDS_CUDA}
    assert parts["tests"]["figures"]["collected"] > 20
    assert len(parts["speed"]["figures"]["shapes"]["tiny"]["sides"]) == 4
    assert len(parts["speed"]["figures"]["shapes"]["tiny-clusters"]["sides"]) == 3
    for precision in ("TF32", "float16"):  # a bundle, its fixed shapes and PyTorch, each with two batches
        assert len(parts["speed"]["figures"]["shapes"][f"tiny-clusters-{precision}"]["sides"]) == 6
    assert [len(parts["speed"]["figures"]["shapes"][shape.name]["sides"]) for shape in REFORMERS] == [2, 1, 1]
    assert len(parts["reformers"]["figures"]["reformers"]) == 6
    assert tables.read_text() == done.stdout
