"""Quantized bundles of models that read a document in one step, and of bundles whose descriptions were edited."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import GOLDEN
from xlexport.errors import QuantizationError
from xlexport.quantize.run import QuantizeOptions, quantize
from xlruntime.bundle import read_bundle

OPTIONS = QuantizeOptions("float16", max_delta_bits=1.0, threads=1)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a small bundle of 40 tokens, for which 90 tokens are text enough."""
    monkeypatch.setattr("xlexport.quantize.gate_text.FEWEST_TOKENS", 90)
    return Path(shutil.copytree(GOLDEN / "reformer_chunk" / "bundle", tmp_path / "source"))


def ids_file(folder: Path, tokens: int) -> Path:
    text = folder / "ids.txt"
    text.write_text(" ".join(map(str, random_ids(tokens, seed=3, vocab_size=40))))
    return text


@pytest.mark.parametrize("tokens", [2048, 96])
def test_graphs_that_read_the_last_token_are_checked(
    tokens: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with a text of many documents, and of exactly one: no score has the prediction after its last token."""
    edit_manifest(source, lambda manifest: manifest["evaluation"].update(reads_last=True))
    text = ids_file(tmp_path, tokens)
    report = quantize(source, tmp_path / "out", OPTIONS, texts=[text], as_ids=True)
    assert report.tokens == tokens - 1
    monkeypatch.setattr("xlexport.quantize.run.GRAPHS_AGREE", 1e-9)
    with pytest.raises(QuantizationError, match=r"^(detail|generate): differs from the graph that was measured"):
        quantize(source, tmp_path / "other", OPTIONS, texts=[text], as_ids=True)


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_parity_report_that_was_changed_is_left_out(change: str, source: Path, tmp_path: Path) -> None:
    """Check that the digests of a new bundle never vouch for figures that somebody edited."""
    text, report = ids_file(tmp_path, 96), source / "parity.json"
    quantize(source, tmp_path / "before", OPTIONS, texts=[text], as_ids=True)
    assert "parity.json" in read_bundle(tmp_path / "before").files
    if change == "edited":
        report.write_text(report.read_text("utf-8").replace("true", "false"), "utf-8")
    else:
        report.unlink()
    (source / "README.md").unlink()
    quantize(source, tmp_path / "after", OPTIONS, texts=[text], as_ids=True)
    assert "parity.json" not in read_bundle(tmp_path / "after").files
    assert (tmp_path / "after" / "README.md").is_file()
