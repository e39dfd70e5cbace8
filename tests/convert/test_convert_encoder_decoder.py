"""`convert` and `verify` of an encoder-decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.tiny import tiny_encoder_decoder
from xlexport.bundles import open_any_bundle
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError, ParityError
from xlexport.verification import verify
from xlruntime import Translator
from xltraining.checkpoint import save_checkpoint

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder_decoder") / "checkpoint.pt"
    model = tiny_encoder_decoder()
    save_checkpoint(path, model.config, model.state_dict())
    return path


def test_bundle_equals_the_trained_model_over_carried_steps(
    checkpoint: Path, tmp_path: Path, cached_exports: None
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{'ab' * (n % 7)}\t{'xyz' * (n % 4) or 'w'}\n" for n in range(40)))
    options = ConversionOptions(threads=1, verify_text=pairs)
    report = convert(load(checkpoint), tmp_path / "bundle", options)
    assert report.passed and report.segments > 40  # steps of several lengths
    assert report.max_abs_log_prob_diff < 2e-5 and report.max_abs_memory_diff < 2e-5
    assert report.rounding is not None and 0 < report.rounding.model_rms < 2e-6
    bundle = open_any_bundle(tmp_path / "bundle", threads=1)
    assert isinstance(bundle, Translator) and bundle.encoder.source_len == 12

    changed = tiny_encoder_decoder()
    with torch.no_grad():
        changed.decoder[4].value.weight[0, 0] += 0.01
    ids = bundle.tokenizer.encode("any text, cut into parts that are source and target of one pair")
    assert verify(bundle, tiny_encoder_decoder, ids, segments=9).passed
    with pytest.raises(ParityError, match="the graphs differ from the trained model"):
        verify(bundle, lambda: changed, ids, segments=9).require_passed()


@pytest.mark.parametrize(
    "options", [{"to": "exported-program"}, {"to": "torchscript"}, {"dtype": "weight-int8"}], ids=str
)
def test_formats_that_it_does_not_have_are_refused(checkpoint: Path, options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="not possible for an encoder-decoder"):
        convert(load(checkpoint), tmp_path / "bundle", ConversionOptions.of(**options))
