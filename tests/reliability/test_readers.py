"""Readers of foreign bytes refuse damaged input in one line, or read it; the search finds planted bugs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.paths import ROOT
from tests.reliability import target as promises
from tests.reliability.damage import STEADY, damaged, damaged_json
from tests.reliability.target import BrokenPromiseError, Target, judge
from tests.reliability.targets import TARGETS as READERS
from tests.reliability.targets import corpus

NEEDS_ATHERIS = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")


@pytest.mark.parametrize("name", READERS)
def test_seeds_and_kept_inputs_are_refused_or_read(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests check the output of commands
        target = READERS[name](tmp_path)
        first, *others = target.seeds()
        target.read(first)
        for raw in (*others, *corpus(name).values()):
            judge(target, raw)


@pytest.mark.full
@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    target = READERS[name](tmp_path)
    first, *others = target.seeds()
    target.read(first)
    whole = [first, *(raw for raw in others if len(raw) < 1 << 16)]
    documents = [json.loads(raw) for raw in whole if raw.startswith(b'{"')]

    @STEADY
    @given(st.sampled_from(whole).flatmap(damaged) | st.sampled_from(documents or [{}]).flatmap(damaged_json))
    def check(raw: bytes) -> None:
        judge(target, raw)

    check()


class Planted(Target):
    """A reader with planted bugs."""

    errors = (ValueError,)

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        return [b"XL\1.", b"other"]

    def read(self, raw: bytes) -> object:
        if raw[:2] != b"XL":
            raise ValueError("not a header")
        if raw[3:5] == b"!?":
            return {}[raw[2]]  # the planted error
        if raw[3:4] == b"\x1b":
            raise ValueError("control characters: \x1b[2J")
        if raw[3:] == b"memory":
            return len(bytearray(300 << 20))
        return sum(range(10**6)) if raw[3:] == b"time" else raw


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b"XL\5!?", KeyError, "5"),
        (b"XL\5\x1b", BrokenPromiseError, "bad message"),
        (b"XL\5memory", BrokenPromiseError, "memory: 3"),
        (b"XL\5time", BrokenPromiseError, "slow: "),
    ],
)
def test_harm_is_noticed(raw: bytes, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "MOST_SECONDS", 0.001 if b"time" in raw else 60)
    peaks = iter((100.0, 450.0 if b"memory" in raw else 100.0))
    monkeypatch.setattr(promises, "_megabytes", lambda: next(peaks))
    with pytest.raises(error, match=message):
        judge(Planted(Path()), raw)


TARGETS = {"planted": Planted, "words": READERS["words"]}  # for the search of the following tests


def search(folder: Path, *arguments: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run the search with the targets of this module, and return what it printed."""
    code = f"{before}; from tests.reliability import search; search.MODULE = 'tests.reliability.test_readers'; "
    code += "search.PACKAGES += [search.MODULE]; "
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code + "search.main()", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_without_atheris_the_command_says_so(tmp_path: Path) -> None:
    result = search(tmp_path, before="import sys; sys.modules['atheris'] = None")
    assert result.returncode == 1
    assert result.stderr.startswith("atheris is not installed: pip install atheris")


@pytest.mark.release
def test_one_input_is_read_by_all_targets(tmp_path: Path) -> None:
    (tmp_path / "an input").write_bytes(b"XL\1.")
    result = search(tmp_path, "--read", "an input", "--", "-seed=1")
    assert (result.returncode, result.stdout) == (0, "planted: read\nwords: read\n"), result.stderr


@NEEDS_ATHERIS
@pytest.mark.release
@pytest.mark.parametrize(("name", "findings"), [("planted", True), ("words", False)])
def test_search_finds_what_is_planted_and_nothing_else(name: str, findings: bool, tmp_path: Path) -> None:
    result = search(tmp_path, name, "--seconds", "90" if findings else "6")  # a search ends with its first finding
    assert result.returncode == findings, result.stdout + result.stderr
    kept = list((tmp_path / "findings").iterdir())
    assert len(kept) == findings
    for file in kept:
        assert f"--read {file.relative_to(tmp_path)}" in result.stdout
        with pytest.raises((KeyError, BrokenPromiseError)):
            judge(Planted(tmp_path), file.read_bytes())
