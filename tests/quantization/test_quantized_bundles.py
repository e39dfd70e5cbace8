"""Quantized bundles of models that read a document in one step, and of bundles whose descriptions were edited."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest, with_vocabulary
from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle
from xlexport.errors import QuantizationError
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlexport.verification.text import verify_text
from xlruntime.model import load
from xlruntime.tokenizers.vocabulary import Vocabulary

OPTIONS = QuantizeOptions("float16", max_delta_bits=1.0, threads=1)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a small bundle of 40 tokens, for which 90 tokens are text enough."""
    monkeypatch.setattr("xlexport.quantization.gate.FEWEST_TOKENS", 90)
    return Path(shutil.copytree(GOLDEN / "reformer_chunk" / "bundle", tmp_path / "source"))


def ids_file(folder: Path, tokens: int) -> Path:
    text = folder / "ids.txt"
    text.write_text(" ".join(map(str, random_ids(tokens, seed=3, vocab_size=40))))
    return text


@pytest.mark.parametrize("tokens", [2048, 96])
@pytest.mark.full(cases=1)
def test_graphs_that_read_the_last_token_are_checked(
    tokens: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with a text of many documents, and of exactly one: no score has the prediction after its last token."""
    edit_manifest(source, lambda manifest: manifest["document"].update(bidirectional=True))
    text = ids_file(tmp_path, tokens)
    report = quantize(source, tmp_path / "out", OPTIONS, texts=[text], as_ids=True)
    assert report.tokens == tokens - 1
    monkeypatch.setattr("xlexport.quantization.run.GRAPHS_AGREE", 1e-9)
    with pytest.raises(QuantizationError, match=r"^(detail|generate): differs from the graph that was measured"):
        quantize(source, tmp_path / "other", OPTIONS, texts=[text], as_ids=True)


@pytest.mark.release
def test_parity_report_is_copied_if_it_is_there(source: Path, tmp_path: Path) -> None:
    text = ids_file(tmp_path, 96)
    quantize(source, tmp_path / "before", OPTIONS, texts=[text], as_ids=True)
    assert (tmp_path / "before" / "parity.json").read_bytes() == (source / "parity.json").read_bytes()
    (source / "parity.json").unlink()
    (source / "README.md").unlink()
    quantize(source, tmp_path / "after", OPTIONS, texts=[text], as_ids=True)
    assert not (tmp_path / "after" / "parity.json").exists()
    assert (tmp_path / "after" / "README.md").is_file()


def reading(symbols: tuple[str, ...], kind: Literal["words", "bytes"], folder: Path) -> Path:
    """Return a bundle of 256 tokens that reads text with this vocabulary."""
    return with_vocabulary(golden_bundle(EMPTY), folder, Vocabulary(kind, symbols))


@pytest.mark.release
def test_default_text_is_that_of_the_verification(tmp_path: Path) -> None:
    """Check that a bundle of symbols, for which a text had to be given once, is measured on what verified it."""
    source = reading(tuple(map(str, range(256))), "bytes", tmp_path / "source")
    model = load(source, threads=1)
    text = verify_text(model.bundle.tokenizer, 256, model.tokenizer, None)
    options = replace(OPTIONS, tokens=2048)
    report = quantize(source, tmp_path / "out", options)
    assert [file["name"] for file in report.text] == [text.name]
    (tmp_path / "ids.txt").write_text(" ".join(map(str, text.ids[:2049].tolist())))
    again = quantize(source, tmp_path / "again", options, texts=[tmp_path / "ids.txt"], as_ids=True)
    assert (again.bits_per_token, again.tokens) == (report.bits_per_token, 2048)


def test_vocabulary_that_lacks_the_default_text_needs_another(tmp_path: Path) -> None:
    source = reading(tuple(f"λόγος{number}" for number in range(256)), "words", tmp_path / "source")
    with pytest.raises(QuantizationError, match=r"vocabulary has too few words of the topics of .*Add --text with"):
        quantize(source, tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out").exists()
