"""Mutated manifests and saved streams with digests that fit are refused, or read, by each runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import Popen

import pytest

from tests.reliability.mutate import mutate, past_shape
from tests.web_site.javascript import build, needs_node

RUNTIMES = [pytest.param("python", marks=pytest.mark.full), pytest.param("c", marks=pytest.mark.native),
            pytest.param("js", marks=[pytest.mark.native, needs_node])]  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_mutants_are_opened_or_refused(runtime: str, tmp_path: Path) -> None:
    if runtime == "js":
        build()
    results, findings = mutate(runtime, 200, 0, tmp_path)
    assert findings == []
    assert 3 * past_shape(results) >= results.total() == 200, results


@pytest.mark.full
@pytest.mark.parametrize("line", ["print('ok nan')", "print('internal it')", "print('option \\x1b')", "sys.exit(3)"])
def test_harm_is_a_finding(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-uc", f"import sys\nfor line in sys.stdin: {line}"]
    monkeypatch.setattr("tests.reliability.mutate.subprocess.Popen", lambda _, **given: Popen(command, **given))
    assert len(mutate("python", 1, 0, tmp_path)[1]) == 1
