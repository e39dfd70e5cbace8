"""The command that measures what each runtime needs: its rows, and what it says of a runtime that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import EMPTY, ROOT, golden_bundle


@pytest.mark.full
def test_each_runtime_has_figures_or_a_reason(tmp_path: Path) -> None:
    options = [str(golden_bundle(EMPTY)), "--rounds", "1", "--xlscore", "absent"]
    command, paths = [sys.executable, "-m", "benchmarks.footprint", *options], {"PATH": str(tmp_path)}  # without Node
    printed = subprocess.check_output(command, cwd=ROOT, env={**os.environ, **paths}, text=True)
    python, c, *others = printed.splitlines()[3:]
    ours, together, seconds, memory = map(float, python.removeprefix("| Python |").strip("| ").split("|"))
    assert 0.2 < ours < together and together > 50 and 0 < seconds < 60 and memory > 40
    assert c.startswith("| C | not measured: ") and "absent" in c
    for line, name in zip(others, ("Node", "browser"), strict=True):
        assert line.startswith(f"| {name} | not measured: ")
