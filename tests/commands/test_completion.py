"""`xlexport completion`: its scripts, run in the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.pages import put_program
from xlexport.commands import COMMANDS

# The work of a shell when Tab is pressed after the words; then it prints its offers.
OFFERED = {
    "bash": """
source script
COMP_WORDS=({words}) COMP_CWORD={last}
_xlexport_completion xlexport
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": "source script; complete --do-complete='{line}'",
}


@pytest.fixture
def shell_folder(tmp_path: Path) -> Path:
    """Return a folder in which `xlexport` can be called by its name."""
    return put_program(tmp_path)


def offered(shell: str, words: list[str], folder: Path, script: str) -> list[str]:
    """Return what the shell offers to put in place of the last word."""
    (folder / "script").write_text(script)
    quoted = " ".join(word or "''" for word in words)
    source = OFFERED[shell].format(words=quoted, last=len(words) - 1, line=" ".join(words))
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    plain = {"bash": ["--norc"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", source], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return sorted(line.partition("\t")[0] for line in done.stdout.splitlines())  # the shells sort differently


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.full)])
def test_shell_offers_commands_and_options(shell: str, invoke: Invoke, shell_folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = invoke("completion", shell).out
    assert offered(shell, ["xlexport", "co"], shell_folder, script) == [
        "compare",
        "completion",
        "configure",
        "context",
        "convert",
    ]
    assert offered(shell, ["xlexport", ""], shell_folder, script) == sorted(COMMANDS)
    assert offered(shell, ["xlexport", "score", "--fo"], shell_folder, script) == ["--force", "--format"]
    assert offered(shell, ["xlexport", "score", "--per", ""], shell_folder, script) == [
        *("document", "line", "region", "token", "word")
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shell_accepts_the_script(shell: str, invoke: Invoke, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(invoke("completion", shell).out)
    subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True)
