"""The sample checkpoint and the sample text."""

from __future__ import annotations

from pathlib import Path

import pytest

import xlexport.sample
from xlexport.errors import CheckpointNotFoundError
from xlexport.sample import SAMPLES, sample_checkpoint, sample_text


@pytest.mark.parametrize("tokens", SAMPLES)
@pytest.mark.parametrize("place", ["site/xlexport/_samples", "site/samples"])
def test_sample_checkpoint_is_found_in_installation_and_checkout(
    place: str, tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlexport.sample, "__file__", str(tmp_path / "site/xlexport/sample.py"))
    with pytest.raises(CheckpointNotFoundError, match=r"^the sample checkpoint is in neither .*pip install") as caught:
        sample_checkpoint(tokens)
    assert "\n" not in str(caught.value)
    checkpoint = tmp_path / place / f"transformer_xl_{tokens}/checkpoint.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert sample_checkpoint(tokens) == checkpoint.resolve()


def test_sample_text_is_long_prose() -> None:
    text = sample_text()
    assert 300_000 < len(text.encode()) < 1_000_000
    assert text == sample_text()
    assert "The Python" in text
