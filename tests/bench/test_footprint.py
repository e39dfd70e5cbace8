"""The command that measures what each runtime needs: its rows, and what it says of a runtime that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks.footprint import whole_process
from tests.helpers.paths import EMPTY, ROOT, golden_bundle


@pytest.mark.full
def test_each_runtime_has_figures_or_a_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.footprint", str(golden_bundle(EMPTY)), "--rounds", "1"]
    environment = {**os.environ, "PATH": str(tmp_path)}  # without Node
    printed = subprocess.run(
        [*command, "--xlscore", "absent"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    python, c, *others = printed.splitlines()[3:]
    ours, together, seconds, memory = map(float, python.removeprefix("| Python |").strip("| ").split("|"))
    assert 0.2 < ours < together and together > 50 and 0 < seconds < 60 and memory > 40
    assert c.startswith("| C | not measured: absent is missing.")
    assert others == [
        f"| {name} | not measured: Node is missing. Install Node 20 or newer. |" for name in ("Node", "browser")
    ]


def test_program_that_fails_has_no_figures() -> None:
    with pytest.raises(click.ClickException, match="failed; its output is above"):
        whole_process([sys.executable, "-c", "raise SystemExit(3)"], 1)
