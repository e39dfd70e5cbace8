"""`convert` and `verify` of an encoder-decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from experiments.translate import main as translate_lines
from tests.helpers import export_cache
from tests.helpers.invoking import Invoke
from tests.helpers.tiny import tiny_encoder_decoder
from xlexport.bundles import open_any_bundle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError, ParityError, QuantizationError
from xlexport.formats import load
from xlexport.quantization.gate import log_probs
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
    options = ConversionOptions(threads=1, text=pairs)
    report = convert(load(checkpoint), tmp_path / "bundle", options).report
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


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert a model with weight matrices that are large enough to quantize; `pairs.tsv` has pairs to measure on."""
    folder = tmp_path_factory.mktemp("wide")
    model = tiny_encoder_decoder(d_model=48, d_inner=48, residual="ordinary")
    save_checkpoint(folder / "checkpoint.pt", model.config, model.state_dict())
    (folder / "pairs.tsv").write_text("".join(f"{'ab' * (n % 7)}\t{'xyz' * (n % 3) or 'w'}\n" for n in range(250)))
    with export_cache.cached_exports():
        convert(load(folder / "checkpoint.pt"), folder / "onnx", ConversionOptions(threads=1))
    return folder


@pytest.mark.release
def test_exported_programs_translate_as_onnx_does(wide: Path, tmp_path: Path, cached_exports: None) -> None:
    (tmp_path / "lines").write_text("abab\n\nx\n")
    options = ConversionOptions(threads=1, text=wide / "pairs.tsv", to="exported-program")
    report = convert(load(wide / "checkpoint.pt"), tmp_path / "bundle", options).report
    assert report.passed and report.max_abs_log_prob_diff < 2e-5
    assert "torch_runtime import load_translator\n" in (tmp_path / "bundle" / "README.md").read_text("utf-8")
    arguments = [str(tmp_path / "lines"), "--beams", "3", "--threads", "1", "--json"]

    def translate(bundle: Path, *more: str) -> Result:
        return CliRunner().invoke(translate_lines, [str(bundle), *arguments, *more])

    by_torch, by_onnx = (
        [json.loads(line) for line in done.stdout.splitlines()]
        for done in (translate(tmp_path / "bundle", "--trust"), translate(wide / "onnx"))
    )
    assert len(by_torch) == 3 and [one["ids"] for one in by_torch] == [one["ids"] for one in by_onnx]
    assert [one["log_prob"] for one in by_torch] == pytest.approx([one["log_prob"] for one in by_onnx], abs=1e-4)
    assert "PyTorch" in translate(tmp_path / "bundle").stderr  # code in the bundle runs only with --trust


def test_quantization_is_measured_on_targets(wide: Path, tmp_path: Path, invoke: Invoke) -> None:
    pairs = wide / "pairs.tsv"
    targets = sum(len(line.split("\t")[1]) + 1 for line in pairs.read_text().splitlines())
    quantize = ("quantize", wide / "onnx", "-o", tmp_path / "small", "--threads", 1, "--json", "--force")
    for dtype in ("weight-int8", "int8"):
        shown = invoke(*quantize, "--dtype", dtype, "--text", pairs).succeeded().object
        assert shown["tokens"] == targets and 0 < abs(shown["delta_bits_per_token"]) <= 0.01 and shown["speed"] is None
        bundle = open_any_bundle(tmp_path / "small", threads=1)
        assert isinstance(bundle, Translator) and bundle.bundle.precision == dtype
        with pytest.raises(QuantizationError, match="the first pair has more than 5 tokens"):
            log_probs(bundle, bundle.tokenizer.encode("a pai"))
    assert "an encoder-decoder is measured on pairs" in invoke(*quantize).err


def test_formats_that_it_does_not_have_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--to torchscript is not possible for an encoder-decoder"):
        convert(load(checkpoint), tmp_path / "bundle", ConversionOptions(to="torchscript"))
