"""Published weights: the tiny RWKV-7 and RWKV-4 of rwkv.cpp, whose authors computed the logits after `"in`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import xlruntime
from tests.helpers.ggml import authors_tensors
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load

TOLERANCE = 1e-5  # of a logit; rwkv.cpp computes in float32, too
PROMPT = b'"in'
FILES = {"rwkv7": "7v0-834K", "rwkv": "4v0-660K"}


@pytest.fixture
def golden(shared_data: Path) -> Path:
    """Return the folder with the files of rwkv.cpp."""
    if not (folder := shared_data / "published" / "rwkv_cpp").is_dir():
        pytest.skip("the published weights of ../shared/data are not here")
    return folder


@pytest.mark.release
@pytest.mark.parametrize("model", FILES)
def test_logits_of_rwkv_cpp(model: str, golden: Path, tmp_path: Path) -> None:
    torch.save(authors_tensors(golden / f"tiny-rwkv-{FILES[model]}-FP32.bin"), tmp_path / "tiny.pth")
    expected = torch.from_numpy(np.fromfile(golden / f"expected-logits-{FILES[model]}.bin", np.float32))
    source = load(tmp_path / "tiny.pth")
    assert (source.format, source.config["model"]) == ("rwkv", model)
    with torch.inference_mode():
        logits, _ = source.build_model()(torch.tensor([[*PROMPT]]), source.build_model().first_memory(1))
    assert (logits[0, -1] - expected).abs().max() < TOLERANCE

    assert convert(source, tmp_path / "bundle", ConversionOptions(tokenizer="bytes")).report.passed
    bundle = xlruntime.load(tmp_path / "bundle", threads=1)
    log_probs = [bundle.stream().feed([*PROMPT, token]).log_probs[-1] for token in range(256)]
    np.testing.assert_allclose(log_probs, expected.log_softmax(dim=0).numpy(), atol=TOLERANCE, rtol=0)
