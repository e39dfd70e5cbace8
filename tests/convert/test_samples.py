"""The numbered samples that need PyTorch run unchanged; tests/runtime/test_samples.py runs the others."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.paths import ROOT
from xlruntime.bundle_files import is_bundle

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

pytestmark = pytest.mark.full

FOLDER = ROOT / "samples"


def test_conversion_is_repeatable_and_verified(
    bytes_bundle: Converted,
    reuse_export: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Use a small checkpoint, because the sample's conversion takes half a minute; the demo's test runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xlexport.sample.sample_checkpoint", lambda: bytes_bundle.checkpoint)
    for _ in range(2):
        runpy.run_path(str(FOLDER / "01_convert.py"))
        assert "equal over 20 segments" in capsys.readouterr().out
        assert is_bundle(tmp_path / "bundle")


@pytest.mark.full
def test_reformer_scores_the_same_in_any_segments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    runpy.run_path(str(FOLDER / "11_reformer.py"))
    shown = capsys.readouterr().out
    assert "equal over 6 segments" in shown
    figures = [line.partition(": ")[2] for line in shown.splitlines()[1:]]
    assert len(figures) == 4 and len(set(figures)) == 1
