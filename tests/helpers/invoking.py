"""Code that the tests of the command line share.

It makes a tiny checkpoint and its bundle, and runs commands in this process and in another.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.export_cache import cached_exports
from tests.helpers.shared import shared_folder
from tests.helpers.weights import random_model
from xlexport.commands import execute
from xltraining.checkpoint import save_checkpoint
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

TINY = TransformerXLConfig(n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, tgt_len=8, mem_len=20, dropout=0.0)
PROSE = b"It was the best of times, it was the worst of times,\nit was the age of wisdom.\n"


@dataclass(frozen=True)
class Finished:
    """The result of a command line."""

    code: int
    out: str
    err: str
    failed: int = 1  # the exit status of a command that failed

    @property
    def objects(self) -> list[Any]:
        """Standard output, every line of which must be JSON."""
        return [json.loads(line) for line in self.out.split("\n")[:-1]]  # not splitlines, which cuts at U+2028 too

    @property
    def object(self) -> Any:
        """The single line of JSON on standard output."""
        (value,) = self.objects
        return value

    @property
    def error(self) -> str:
        """The single line on standard error of a command that failed without printing data."""
        assert (self.code, self.out) == (self.failed, ""), (self.code, self.out, self.err)
        (line,) = self.err.splitlines()
        if line.startswith("{"):  # as --json asks for
            failure = json.loads(line)
            assert failure.keys() == {"error", "hint", "type"}, line
            line = " ".join(filter(None, ("Error:", failure["error"], failure["hint"])))
        assert line.startswith("Error: "), line
        assert line.isprintable(), line
        return line

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The rows of the table that a command printed which succeeded."""
        assert self.code == 0, self.err
        width = max(line.index("  ") for line in self.out.splitlines())
        rows = [(line[:width].rstrip(), line[width:].strip()) for line in self.out.splitlines()]
        assert all(value for _, value in rows)
        return rows

    @property
    def table(self) -> dict[str, str]:
        """The rows of the table on standard output: names, and what stands beside them."""
        return dict(re.split(r"  +", line, maxsplit=1) for line in self.out.splitlines())

    def succeeded(self) -> Finished:
        assert self.code == 0, self.err
        return self


Invoke = Callable[..., Finished]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run one command line in this process: `invoke("score", bundle, "-", stdin=b"text")`."""

    def invoked(*arguments: str | Path, stdin: bytes = b"") -> Finished:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = execute([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Finished(code, out, err, failed=2 if arguments[:1] == ("verify",) else 1)

    return invoked


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """Return the same command line for another process."""
    return lambda *arguments: [sys.executable, "-m", "xlexport", *map(str, arguments)]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return the environment of other processes: a warning is an error."""
    return {**os.environ, "PYTHONWARNINGS": "error"}


@pytest.fixture(scope="session")
def call(command: Callable[..., list[str]], environment: dict[str, str]) -> Invoke:
    """Run one command line in a separate process, like a user."""

    def called(*arguments: str | Path, stdin: bytes = b"") -> Finished:
        line = command(*arguments)
        done = subprocess.run(line, input=stdin, capture_output=True, env=environment, timeout=300, check=False)
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    return called


def write_checkpoint(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a checkpoint with random weights that are large enough to affect the scores."""
    model = random_model(lambda: TransformerXL(replace(TINY, **changes)), seed)
    save_checkpoint(path, model.config, model.state_dict())
    return path


@pytest.fixture(scope="session")
def make_checkpoint() -> Callable[..., Path]:
    return write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that tests must not change."""
    folder, _ = shared_folder(tmp_path_factory, "checkpoint", lambda folder: write_checkpoint(folder / "tiny.pt"))
    return folder / "tiny.pt"


@pytest.fixture(scope="session")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle made by the command itself; tests must not change it."""

    def make(folder: Path) -> None:
        with cached_exports():
            arguments = ["convert", str(checkpoint), "--output", str(folder / "tiny.bundle"), "--threads", "1"]
            assert execute(arguments) == 0

    folder, _ = shared_folder(tmp_path_factory, "commands", make)
    return folder / "tiny.bundle"


@pytest.fixture
def own_bundle(bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of the bundle, which the test may damage."""
    return Path(shutil.copytree(bundle, tmp_path / "own.bundle"))


@pytest.fixture
def reuse_export(bundle: Path, reuse_graphs: Callable[[Path], None]) -> None:
    """Make `convert` reuse the graphs of `bundle`."""
    reuse_graphs(bundle)


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE)
    return path


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Return all files in a folder with the time of the last change."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def refuse(invoke: Invoke, tmp_path: Path) -> Callable[..., str]:
    """Run a command line that must fail in one line and not change the test's folder; return the line."""

    def refused(*arguments: str | Path, stdin: bytes = b"") -> str:
        before = everything(tmp_path)
        error = invoke(*arguments, stdin=stdin).error
        assert everything(tmp_path) == before
        return error

    return refused
