"""The kept inputs of guided fuzzing harm no reader, and the search finds planted bugs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.reliability.guided.findings import Findings
from tests.reliability.guided.target import judge
from tests.reliability.guided.targets import CORPUS, TARGETS, make_target, read_corpus
from tests.reliability.guided.turns import MOST_MEGABYTES, Shared, Watched
from tests.reliability.planted import Planted

MOST_BYTES = 1_000_000
PLANTED = ("tests.reliability.planted", "Planted")
KEY_ERROR, CONTROLS = b"XL\x05!?", b"XL\x05\x1b"
NEEDS_ATHERIS = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
SEARCH = (
    f"from tests.reliability.guided import __main__, targets; targets.TARGETS['planted'] = {PLANTED}; "
    f"targets.PACKAGES += {PLANTED[:1]}; __main__.main()"
)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_give_results_or_errors_of_ours(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests check the output of commands
        target = make_target(name, tmp_path)
        inputs = [*target.seeds(), *read_corpus(name).values()]
        outcomes = [judge(target, raw) for raw in inputs]
    assert [(raw, outcome) for raw, outcome in zip(inputs, outcomes, strict=True) if outcome.is_bug] == []
    assert {"right", "refused"} & {outcome.kind for outcome in outcomes}
    assert outcomes[0].kind == "right"


def test_corpus_is_small_and_of_the_targets() -> None:
    files = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert {file.parent.name for file in files} <= set(TARGETS)
    assert len(files) > len(TARGETS)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Watched, Findings, dict[str, float]]:
    """Return a watched target with planted bugs, its findings, and the cost of inputs."""
    taken = {"seconds": 0.0, "megabytes": 100.0}
    monkeypatch.setattr("tests.reliability.guided.turns._most_megabytes", lambda: taken["megabytes"])
    monkeypatch.setattr("tests.reliability.guided.turns._megabytes", lambda: 100.0)
    monkeypatch.setattr(time, "process_time", lambda: taken["seconds"])
    findings = Findings(tmp_path / "findings", "this search")
    return Watched("planted", Planted(tmp_path), findings, Shared(), time.monotonic() + 600), findings, taken


def test_findings_keep_their_smallest_input(watched: tuple[Watched, Findings, dict[str, float]]) -> None:
    watch, findings, _ = watched
    watch.warm_up(b"XL\1")
    for raw in (b"XL\x05.", b"XL\x80", KEY_ERROR + b"more", KEY_ERROR, KEY_ERROR + b"other", CONTROLS):
        watch(raw)
    bad, wrong = findings.found()
    assert (wrong.kind, wrong.times, wrong.file.read_bytes()) == ("wrong error", 3, KEY_ERROR)
    assert wrong.said.startswith("KeyError: 5 at ") and "planted.py" in wrong.said
    assert (bad.kind, bad.times, bad.file.read_bytes()) == ("bad message", 1, CONTROLS)


def test_time_and_memory_of_one_input_are_bounded(
    watched: tuple[Watched, Findings, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, findings, taken = watched
    grows: Iterator[dict[str, float]] = iter(
        [
            {"megabytes": 100 + MOST_MEGABYTES},
            {"megabytes": 101 + MOST_MEGABYTES},  # little more than before, but much more than it leaves
            {"megabytes": 101 + MOST_MEGABYTES},
            {"seconds": 1.9},
            {"seconds": 4},
        ]
    )
    monkeypatch.setattr(watch.target, "read", lambda raw: taken.update(next(grows)), raising=False)
    watch._peak = 100.0
    for number in range(5):
        watch(b"%d" % number)
    assert {(found.kind, found.file.read_bytes()) for found in findings.found()} == {("memory", b"1"), ("slow", b"4")}


def test_findings_of_an_earlier_search_do_not_count(
    watched: tuple[Watched, Findings, dict[str, float]], tmp_path: Path
) -> None:
    watch, findings, _ = watched
    watch(KEY_ERROR)
    assert len(findings.found()) == 1
    assert Findings(tmp_path / "findings", "a later search").found() == []


def _search(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_without_atheris_the_command_says_so() -> None:
    result = _search(f"import sys; sys.modules['atheris'] = None; {SEARCH}")
    assert result.returncode == 2
    assert result.stderr.startswith("atheris is not installed: pip install atheris")


def test_one_input_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(KEY_ERROR)
    result = _search(SEARCH, "--repeat", "planted", str(tmp_path / "input"))
    assert result.returncode == 1
    assert result.stdout.startswith("wrong error: KeyError: 5 at ")


@NEEDS_ATHERIS
@pytest.mark.full
def test_search_finds_what_is_planted(tmp_path: Path) -> None:
    result = _search(SEARCH, "--targets", "planted", "--seconds", "5", "--findings", str(tmp_path))
    assert result.returncode == 1, result.stderr
    kept = [file.read_bytes() for file in tmp_path.glob("planted-wrong-error-*") if not file.suffix]
    assert len(kept) == 1 and b"!?" in kept[0]
    assert "python -m tests.reliability.guided --repeat planted " in result.stdout


@NEEDS_ATHERIS
@pytest.mark.full
@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        ("abort", "ended"),
        ("segfault", "ended"),
        ("hang", "hung"),
        ("sleep", "hung"),
        ("memory", "memory"),
        ("exit", "wrong-error"),
    ],
)
def test_search_outlives_what_ends_its_process(harm: str, kind: str, tmp_path: Path) -> None:
    kept, found = tmp_path / "corpus" / "planted", tmp_path / "findings"
    kept.mkdir(parents=True)
    (kept / "harm").write_bytes(b"XL\1" + harm.encode())
    corpus = f"turns.CORPUS = {str(tmp_path / 'corpus')!r}"
    result = _search(
        f"from tests.reliability.guided import turns; turns.HANG_SECONDS = 1; {corpus}; {SEARCH}",
        "--targets",
        "planted",
        "--seconds",
        "3",
        "--findings",
        str(found),
    )
    assert result.returncode == 1, result.stderr
    assert harm.encode() in [file.read_bytes()[3:] for file in found.glob(f"planted-{kind}-*") if not file.suffix]


@NEEDS_ATHERIS
@pytest.mark.full
def test_search_of_a_sound_reader_finds_nothing(tmp_path: Path) -> None:
    result = _search(SEARCH, "--targets", "ids", "--seconds", "4", "--findings", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 findings" in result.stdout
