"""docs/ship.md: its commands work, and print the output on the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.paths import EMPTY, ROOT, golden_bundle

PAGE = ROOT / "docs/ship.md"


def examples() -> list[tuple[str, str]]:
    """Return each command of the page with its output."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    parts = [part for block in blocks for part in block.removeprefix("$ ").split("\n$ ")]
    return [(command, output.strip()) for command, _, output in (part.partition("\n") for part in parts)]


def as_pattern(output: str) -> str:
    """Return a regular expression for a line of the page, in which `…` replaces any text."""
    return ".*".join(re.escape(piece) for piece in output.split("…"))


@pytest.mark.full
@pytest.mark.skipif(find_spec("model_signing") is None, reason="model-signing is not installed: the extra `release`")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_commands_of_the_page_print_its_output(tmp_path: Path) -> None:
    shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    shutil.copy(ROOT / "README.md", tmp_path)
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    commands = examples()
    assert len(commands) == 10
    for command, shown in commands:
        ran = subprocess.run(
            command, check=False, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        printed = ran.stdout.strip() or ran.stderr.strip()
        if shown:
            assert re.fullmatch(as_pattern(shown), printed, re.DOTALL), (command, ran.stdout, ran.stderr)
            assert ran.returncode == (1 if shown.startswith(("Verification failed", "Error")) else 0)
        else:
            assert ran.returncode == 0, (command, ran.stderr)
