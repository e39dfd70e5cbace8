"""The command that draws how cost grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import growth, sides
from tests.helpers.paths import EMPTY, golden_bundle

BUNDLE = golden_bundle(EMPTY)


@pytest.mark.full
def test_panels_are_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "PROBES", 1)
    monkeypatch.setattr(growth, "prepare", lambda folder, shape: (folder, BUNDLE))
    options = "--tiny --rounds 1 --threads 1 --longest 10000 --panel length --panel layers --panel processes --json"
    files = [str(tmp_path / name) for name in ("growth.json", "growth.png")]
    result = CliRunner().invoke(growth.main, [*options.split(), files[0], "--out", files[1]], catch_exceptions=False)
    assert result.exit_code == 0 and Path(files[1]).read_bytes().startswith(b"\x89PNG")
    figures = json.loads(Path(files[0]).read_text())
    first, last = figures["length"]["marks"]
    assert (first["tokens"], last["tokens"]) == (1_000, 10_000)
    assert last["MB at most"] < 1.05 * first["MB at most"]
    assert list(figures["layers"]["sides"]) == ["1", "3"]
