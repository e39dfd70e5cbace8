"""FILE.partial: only one run writes it, never through a link, and outputs of other runs are never lost."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from xlexport.errors import OutputExistsError, ResumeError
from xlexport.scoring.partial_file import PartialFile


def a_link(partial: Path) -> None:
    partial.symlink_to(partial.with_name("victim"))


def a_second_name(partial: Path) -> None:
    partial.hardlink_to(partial.with_name("victim"))


def a_pipe(partial: Path) -> None:
    os.mkfifo(partial)


@pytest.mark.parametrize("option", ["--resume", "--force", None])
@pytest.mark.parametrize("make", [a_link, a_second_name, a_pipe])
def test_only_a_file_of_a_run_is_written_to(
    make: Callable[[Path], None], option: str | None, score: Score, texts: list[Path], tmp_path: Path
) -> None:
    """Refuse other files, because anybody who may write into the folder may have put them there."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    make(tmp_path / "out.csv.partial")
    line = score(*texts, "-o", tmp_path / "out.csv", *([option] if option else [])).refusal
    assert re.search(r"out.csv.partial: (a link|not a file), so no run has left it\. Remove it, or give another", line)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_link_that_appears_before_the_run_opens_its_file(exists: bool, tmp_path: Path) -> None:
    output, victim = PartialFile(tmp_path / "out.csv"), tmp_path / "victim"
    if exists:
        victim.write_text("mine")
    output.check(force=True, resume=False)
    output.partial.symlink_to(victim)
    with pytest.raises(OutputExistsError, match="a link, so no run has left it"):
        output.open()
    assert not exists or victim.read_text() == "mine"
    assert victim.exists() == exists


@pytest.mark.parametrize("force", [True, False])
def test_output_that_another_run_has_completed_meanwhile(force: bool, tmp_path: Path) -> None:
    output = PartialFile(tmp_path / "out.csv")
    output.check(force, resume=False)
    output.open()
    output.write(b"mine")
    output.path.write_text("theirs")
    if force:
        output.publish()
        assert output.path.read_text() == "mine"
        return
    with pytest.raises(OutputExistsError, match="a file is there already"):
        output.publish()
    output.close()
    assert (output.path.read_text(), output.partial.read_text()) == ("theirs", "mine")


def test_two_runs_on_one_file(score: Score, texts: list[Path], tmp_path: Path) -> None:
    output = PartialFile(tmp_path / "out.csv")
    output.open()
    line = score(*texts, "-o", tmp_path / "out.csv", "--force").refusal
    assert "another run is writing it. Wait for its end, or give another name." in line
    output.discard()


def test_run_that_ends_as_another_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Do not shorten a file that became another run's output between opening and locking."""
    output = PartialFile(tmp_path / "out.csv")
    output.partial.write_text("all of it")
    lock = fcntl.flock

    def publishing(*arguments: Any) -> None:
        output.partial.rename(output.path)
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", publishing)
    with pytest.raises(ResumeError, match=r"out.csv.partial: another run has just completed it\."):
        output.open()
    output.close()
    assert output.path.read_text() == "all of it"


def test_file_system_without_locks(
    score: Score, texts: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", lock)
    score(*texts, "-o", tmp_path / "out.csv").succeeded()
    assert (tmp_path / "out.csv").exists()
