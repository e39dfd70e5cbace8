"""The numbered samples that compute a bundle's scores in plain NumPy, from its weights alone."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.bundles import convert_tiny
from tests.helpers.export_cache import cached_exports
from tests.helpers.ids import random_ids
from tests.helpers.paths import EMPTY, GOLDEN, ROOT, ZEROS
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load as load_source
from xlruntime import load

SAMPLES = ROOT / "samples"
TRANSFORMER_XL, REFORMER = SAMPLES / "13_transformer_xl_in_numpy.py", SAMPLES / "14_reformer_in_numpy.py"
# As in the published models of words: narrower embeddings of rare clusters, all projections but the first shared.
CLUSTERS: dict[str, Any] = {"cutoffs": (10, 25), "div_val": 2, "tie_projs": (False, True, True), "clamp_len": 6}


def run(sample: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a sample, which fails if a score differs by 1e-4 nats."""
    monkeypatch.setattr(sys, "argv", [str(sample), str(bundle)])
    runpy.run_path(str(sample), run_name="__main__")
    assert capsys.readouterr().out.startswith("300 tokens: scores differ by at most ")


@pytest.mark.parametrize("name", [EMPTY, ZEROS, "relative_attention"])
def test_transformer_xl(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(TRANSFORMER_XL, GOLDEN / name / "bundle", monkeypatch, capsys)


@pytest.mark.release
def test_adaptive_softmax(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = convert_tiny(tmp_path_factory, "clusters", ConversionOptions(threads=1), n_token=256, **CLUSTERS)
    run(TRANSFORMER_XL, bundle.folder, monkeypatch, capsys)


@pytest.mark.parametrize("name", ["reformer_band", "reformer_paper"])
def test_reformer(name: str) -> None:
    """Small graphs have the rotations as constants (H, d, columns), in the order of layers, rounds and factors."""
    bundle, ids = GOLDEN / name / "bundle", random_ids(160, vocab_size=40)
    reformer = runpy.run_path(str(REFORMER))["Reformer"](bundle)
    H, d, layers = (reformer.config[key] for key in ("n_head", "d_head", "attn_layers"))
    lsh = [f"attention.{layer}.rotations" for layer, kind in enumerate(layers) if kind == "lsh"]
    columns = np.concatenate([w for w in reformer.weights.values() if w.ndim == 3 and w.shape[:2] == (H, d)], axis=2)
    rotations = columns.reshape(H, d, len(lsh), reformer.n_hashes, -1).transpose(2, 0, 3, 1, 4)
    reformer.weights.update(zip(lsh, rotations, strict=True))
    expected = np.concatenate([part.log_probs for part in load(bundle, threads=1).score_tokens([ids])])
    assert np.abs(reformer.score(ids) - expected).max() < 1e-5


@pytest.mark.release
@pytest.mark.parametrize("sample", [TRANSFORMER_XL, REFORMER], ids=["transformer_xl", "reformer"])
def test_trained_model(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = SAMPLES / f"{sample.stem[3:].removesuffix('_in_numpy')}_bytes/checkpoint.pt"
    with cached_exports():
        convert(load_source(checkpoint), tmp_path / "bundle", ConversionOptions(threads=1, segments=2))
    run(sample, tmp_path / "bundle", monkeypatch, capsys)
