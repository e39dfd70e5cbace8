"""Blocks of code in README.md and docs/, and how the tests run the commands that are in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.helpers.paths import ROOT

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Command:
    """A command of a page, and the output that the page shows."""

    line: str
    shown: str


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its place, its language (or an empty string) and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """The page and the first line of the block."""
        return self.page, self.text.partition("\n")[0]

    def commands(self) -> list[Command]:
        """Return the commands: lines after `$ ` with their output, or, if no line begins so, every line."""
        lines = re.sub(r"\\\n +", "", self.text).splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        if not starts:
            return [Command(line, "") for line in lines]
        assert starts[0] == 0, f"{self.page}:{self.line}: output before the first command"
        parts = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
        return [Command(first.removeprefix("$ "), "\n".join(shown)) for first, *shown in parts]


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page of the repository."""
    found, opened = [], None
    lines = (ROOT / page).read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            if opened is None:
                opened = number
                continue
            language = lines[opened - 1].removeprefix("```")
            found.append(Block(page, opened, language, "\n".join(lines[opened : number - 1])))
            opened = None
    assert opened is None, f"{page}:{opened}: block without an end"
    return found


def python_of(page: str) -> str:
    """Return all Python of a page, each line at its place, so that an error names the page's line."""
    lines = [""] * len((ROOT / page).read_text("utf-8").splitlines())
    for block in blocks_of(page):
        if block.language == "python":
            inside = block.text.splitlines()
            lines[block.line : block.line + len(inside)] = inside
    return "\n".join(lines)


def put_program(folder: Path) -> Path:
    """Write a program `xlexport` into a folder, which runs this checkout with this interpreter."""
    program = folder / "xlexport"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m xlexport "$@"\n', "utf-8")
    program.chmod(0o755)
    return folder


def run_in_shell(line: str, folder: Path, programs: Path) -> str:
    """Run one line in bash as a reader would, and return what both streams show; a failure is an error."""
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",  # so that the lines of both streams keep their order
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}"
    return done.stdout
