"""`--quiet`: neither progress nor notes, but errors, warnings and data."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.progress_bar import progress_bar
from xlexport.terminal import quiet_option, tell, tell_problem

NO_WINDOW = GOLDEN / "post_lnorm_same_length_empty" / "bundle"


def test_notes_of_score(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    line = ["score", NO_WINDOW, prose, prose, "--threads", "1", "--per", "word", "--format", "csv"]
    loud, quiet = invoke(*line).succeeded(), invoke(*line, "--quiet").succeeded()
    assert loud.out == quiet.out
    assert "2 documents" in loud.err and quiet.err == ""
    assert invoke(*line, "-q", "-o", tmp_path / "words.csv").succeeded().err == ""
    loud, quiet = invoke(*line[:-2], "--json"), invoke(*line[:-2], "--json", "-q")
    assert '"bits_per_byte"' in loud.err and quiet.err == ""


def test_errors_are_shown(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("score", NO_WINDOW, prose, tmp_path / "absent.txt", "-q")
    assert shown.code == 1 and len(shown.out.splitlines()) == 1
    (line,) = shown.err.splitlines()
    assert line.startswith("Error: ") and "absent.txt" in line
    assert invoke("score", tmp_path, prose, "-q").error


def test_notes_and_progress_of_other_commands(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "wrote" in invoke("report", NO_WINDOW, prose, "-o", page).succeeded().err
    assert invoke("report", NO_WINDOW, prose, "-o", page, "--force", "--quiet").succeeded().err == ""
    assert "without RECL" in invoke("context", NO_WINDOW, prose).succeeded().err
    assert invoke("context", NO_WINDOW, prose, "-q").succeeded().err == ""


def test_what_quiet_leaves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check in one command that notes and lines of progress are left out, and problems are not."""
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")

    @click.command()
    @quiet_option
    def work() -> None:
        with progress_bar("working") as progress:
            progress(1, 2)
        tell("a note")
        tell_problem("a problem")

    for options, expected in ([], 3), (["-q"], 1):
        work.main(options, standalone_mode=False)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == expected and lines[-1] == "a problem"


def test_convert_says_which_step_it_is_in(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")  # a line after every segment
    line = ["convert", checkpoint, "--threads", "1", "--segments", "3"]
    loud = invoke(*line, "-o", tmp_path / "loud").succeeded().err.splitlines()
    stage = "verifying up to 3 segments of 8 tokens against the eager model"
    assert {"exporting the step graphs", stage} <= set(loud)
    for done in ("33% 1/3", "67% 2/3", "100% 3/3"):
        assert any(shown.startswith(f"{stage}: {done} [00:") for shown in loud), loud
    assert invoke(*line, "-o", tmp_path / "quiet", "--quiet").succeeded().err == ""


def test_training_prints_lines_where_there_is_no_terminal(
    prose: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")  # a line after every update
    sizes = ("--n-layer", "1", "--d-model", "8", "--n-head", "1", "--d-head", "8", "--d-inner", "8", "--tgt-len", "8")
    line = ["train", prose, "--steps", "2", "--batch-size", "2", *sizes, "--threads", "1"]
    loud = invoke(*line, "-o", tmp_path / "loud").succeeded().err
    assert "training: 50% 1/2 [00:" in loud and "training: 100% 2/2 [00:" in loud and "finished" in loud
    assert invoke(*line, "-o", tmp_path / "quiet", "-q").succeeded().err == ""
