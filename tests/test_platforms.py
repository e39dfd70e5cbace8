"""`scripts/platforms`: a row for what was tried, a line for what was not, and an exit code for what fell short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conformance.platforms import __main__ as command
from tests.conformance.platforms.rows import crossings
from tests.conformance.platforms.runners import Broken, Missing, Outcome, Program, Runner, play
from tests.conformance.platforms.workshop import Workshop
from tests.helpers.paths import ROOT

AVX2 = "kernels: avx2"
LAST = "cases passed; largest difference 1.0e-05, with low precision 3.1e-03"


def runner(*lines: str, status: int = 0) -> Callable[[], Program]:
    """Return what prepares a program that prints lines and ends with a status."""
    code = f"import sys; print({chr(10).join(lines)!r}); sys.exit({status})"
    return lambda: Program((sys.executable, "-c", code))


def raising(error: Exception) -> Callable[[], Program]:
    """Return what fails to prepare a program."""

    def prepare() -> Program:
        raise error

    return prepare


@pytest.mark.parametrize(
    ("prepare", "row", "status"),
    [
        (
            runner("runtime: C 1", AVX2, f"9 of 9 {LAST}"),
            "| one | C 1 | avx2 | 9 of 9 | 1.0e-05 | 3.1e-03 |",
            0,
        ),
        (runner("not tried: a (why)", AVX2, f"8 of 8 {LAST}"), "| 8 of 8, 1 not tried |", 0),
        (
            runner("failed  a  1.0", "    it differs", AVX2, f"8 of 9 {LAST}", status=1),
            "        it differs",
            1,
        ),
        (runner(AVX2, f"8 of 9 {LAST}"), "    ended with status 0", 1),
        (runner(AVX2, f"8 of 8 {LAST}"), "    9 cases were expected", 1),
        (runner("kernels: base", f"9 of 9 {LAST}"), "    kernels avx2 were expected, and base ran", 1),
        (runner(f"9 of 9 {LAST}"), "    kernels avx2 were expected, and None ran", 1),
        (runner("crashed"), "| one | C | avx2 | ended with status 0 |", 1),
        (raising(Broken("it does not compile")), "    it does not compile", 1),
        (raising(OSError("disk full")), "    OSError: disk full", 1),
        (raising(Missing("no tool (install it)")), "not tried: one, C: no tool (install it)", 0),
    ],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_rows_and_exit_code(
    prepare: Callable[[], Program],
    row: str,
    status: int,
    jobs: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "kit.json").write_text(json.dumps({"cases": [str(number) for number in range(9)]}))
    monkeypatch.setattr(Workshop, "kit", lambda self: tmp_path)
    rows = [Runner("one", "C", "avx2", prepare), Runner("two", "C", "", runner(f"9 of 9 {LAST}"))]
    monkeypatch.setattr(command, "PLATFORMS", {"one": ("", lambda _: rows)})
    with pytest.raises(SystemExit) as ended:
        command.main(["--offline", "--downloads", str(tmp_path), "--jobs", jobs])
    assert ended.value.code == status
    printed = capsys.readouterr().out
    assert row in printed
    assert "| two | C | – | 9 of 9 | 1.0e-05 | 3.1e-03 |" in printed.partition(row)[2]
    tried = "not tried: one" not in printed
    assert printed.endswith(f"{1 + (tried and not status)} passed, {status} fell short, {int(not tried)} not tried\n")


@pytest.mark.skipif(os.name == "nt", reason="the emulator of this test is a shell script")
@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_emulator_that_crashes_has_a_second_try(crashes: int, tmp_path: Path) -> None:
    (tmp_path / "kit.json").write_text(json.dumps({"cases": ["a"]}))
    emulator, starts = tmp_path / "qemu-x86_64", tmp_path / "starts"
    emulator.write_text(
        f'#!/bin/sh\necho >> {starts}\n[ "$(wc -l < {starts})" -le {crashes} ] && kill -SEGV $$\necho "1 of 1 {LAST}"\n'
    )
    emulator.chmod(0o755)
    outcome = play(Runner("one", "C", "", lambda: Program((emulator,))), lambda: tmp_path)
    cases = ["1 of 1", "1 of 1, second try", "ended with status -11"][crashes]
    assert (outcome.passed, outcome.cases) == (crashes < 2, cases)
    assert len(starts.read_text()) == min(crashes + 1, 2)


def test_states_that_were_not_saved_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "state_a.json").write_text(json.dumps({"actions": [{"keep": "a_fresh"}, {"keep": "a_half"}]}))
    (tmp_path / "kit.json").write_text(json.dumps({"cases": ["state_a"]}))
    monkeypatch.setattr(Workshop, "kit", lambda self: tmp_path)
    monkeypatch.setattr("tests.conformance.platforms.rows.python_program", lambda *_: runner(f"1 of 1 {LAST}")())
    workshop = Workshop(tmp_path, offline=True)
    workshop.built = tmp_path / "built"
    row = next(row for row in crossings(workshop) if row.platform.startswith("state of Python on this"))
    assert row.run() == Outcome(False, "not all states were saved")


def test_offline_downloads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, offline=True)
    monkeypatch.setattr(subprocess, "run", None)
    for ask in (
        lambda: workshop.newest("numpy"),
        lambda: workshop.debian("bookworm", "arm64", "python3.11"),
        lambda: workshop.wheels(["win_amd64"], "3.11", ["onnxruntime"]),
        lambda: workshop.environment(["numpy"]),
        lambda: workshop.tool("no-such-program", "no-such-package"),
    ):
        with pytest.raises(Missing):
            ask()
    assert not list(tmp_path.iterdir())


def test_quick_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, offline=True)
    rows = {quick: command.attempts("haswell", workshop, quick) for quick in (False, True)}
    assert [(row.runtime, row.kernels) for row in rows[True]] == [("Python", "avx2")]
    assert {(row.runtime, row.kernels) for row in rows[False]} == {
        (runtime, kernels) for runtime in ("Python", "C") for kernels in ("none", "avx2")
    }
    monkeypatch.setitem(sys.modules, "xlexport_ops", SimpleNamespace(LIBRARY="installed.so"))
    monkeypatch.setattr(subprocess, "run", None)
    quick = Workshop(tmp_path, offline=True, quick=True)
    assert quick.kernels("linux-x86_64") == Path("installed.so")
    monkeypatch.setitem(sys.modules, "xlexport_ops", None)
    with pytest.raises(Missing, match="xlexport-ops is not installed"):
        quick.kernels("linux-x86_64")


@pytest.mark.parametrize("name", command.PLATFORMS)
def test_rows_are_made_before_anything_is_prepared(name: str, tmp_path: Path) -> None:
    rows = {quick: command.attempts(name, Workshop(tmp_path, offline=True), quick) for quick in (False, True)}
    assert bool(rows[True]) is (name != "macos")  # which is only compiled
    assert not any(row.runtime.split()[0] == "C" for row in rows[True])
    assert not list(tmp_path.iterdir())


def test_list_imports_no_torch() -> None:
    code = "from tests.conformance.platforms.__main__ import main\nmain(['--list'])\n"
    code += "import sys\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(command.PLATFORMS)
