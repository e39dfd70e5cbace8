"""Convert checkpoints of other code bases to bundles: the reports of `convert`, and the options that it requires."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xlruntime
from tests.checkpoints.authors_models import VARIANTS, make_oracle
from tests.checkpoints.test_nvidia_format import save
from xlexport import checkpoints
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError


def test_missing_evaluation_settings_are_refused_all_at_once(tmp_path: Path) -> None:
    source = checkpoints.load(save(make_oracle(), tmp_path / "checkpoint.pt"))
    needing = replace(source, needs=("segment_len", "mem_len", "clamp_len", "same_length"))
    with pytest.raises(ExportError) as caught:
        convert(needing, tmp_path / "bundle", ConversionOptions.of(mem_len=9, tokenizer="none"))
    assert str(caught.value).endswith("Give --segment-len, --set clamp_len, --set same_length.")
    assert str(caught.value).startswith(str(tmp_path / "checkpoint.pt"))
    assert not (tmp_path / "bundle").exists()


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.full
def test_bundle_scores_as_the_oracle_does(tmp_path: Path) -> None:
    """Use NVIDIA's file, as its differences are hidden: reversed clusters, a wider window, different names."""
    oracle = make_oracle(**VARIANTS["div_val"], window_extra=1)
    source = checkpoints.load(save(oracle, tmp_path / "checkpoint.pt"))
    messages: list[str] = []
    convert(source, tmp_path / "bundle", ConversionOptions(tokenizer="none"), tell=messages.append)
    assert set(source.notes) <= set(messages)

    ids = torch.randint(0, oracle.config.n_token, (1, 37), generator=torch.Generator().manual_seed(1))
    segments = [(ids[:, start : start + 6], ids[:, start + 1 : start + 7]) for start in range(0, 36, 6)]
    expected = torch.cat([segment.target_log_probs for segment in oracle.walk(segments)], dim=1)[0]
    found = xlruntime.load(tmp_path / "bundle", threads=1).stream().feed(ids[0].numpy()).log_probs
    # float32 on both sides, with the sums in another order: the differences are about a hundredth of this.
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, True),
        ({"segment_len": 3, "mem_len": 5, "clamp_len": 4}, True),
        ({"segment_len": 3, "mem_len": 5, "clamp_len": 4, "same_length": False}, False),
    ],
)
def test_settings_that_were_given_are_not_asked_for(given: dict[str, Any], asked: bool, tmp_path: Path) -> None:
    source = checkpoints.load(save(make_oracle(), tmp_path / "checkpoint.pt"))
    source = replace(source, notes=(*source.notes, "Another note."))
    messages: list[str] = []
    bundle = tmp_path / "bundle"
    convert(source, bundle, ConversionOptions.of(**given, tokenizer="none", verify_segments=2), tell=messages.append)
    assert any("give --segment-len" in line for line in messages) == asked
    notes = xlruntime.load(bundle, threads=1).bundle.provenance["notes"]
    assert notes == list(source.notes if asked else ["Another note."])


def test_missing_text_is_refused_before_the_export(tmp_path: Path) -> None:
    source = checkpoints.load(save(make_oracle(n_token=256), tmp_path / "checkpoint.pt"))
    messages: list[str] = []
    for text, error, tokenizer in (
        (tmp_path / "absent.txt", FileNotFoundError, "bytes"),
        (tmp_path, ExportError, "bytes"),
        (tmp_path / "checkpoint.pt", ExportError, "none"),
    ):
        options = ConversionOptions(tokenizer=tokenizer, verify_text=text)
        with pytest.raises(error):
            convert(source, tmp_path / "bundle", options, tell=messages.append)
    assert messages == []
