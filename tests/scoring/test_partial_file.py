"""FILE.partial: it is never written through a link, and outputs of other runs are never lost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scoring.conftest import Score
from xlexport.errors import OutputExistsError
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
    line = score(*texts, "-o", tmp_path / "out.csv", *([option] if option else [])).error
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
