"""`convert` and `verify` of an encoder-decoder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from experiments.translate import main as translate_lines
from tests.helpers import export_cache
from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest
from tests.helpers.tiny import tiny_encoder_decoder
from xlexport.bundles import open_any_bundle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError, ParityError, QuantizationError
from xlexport.formats import load
from xlexport.quantization.gate import log_probs
from xlexport.verification import verify
from xlruntime import BundleFormatError, BundleGraphError, Translator, load_translator
from xlruntime.bundle_files import digest_file
from xlruntime.known_answers import ANSWERS_FILE, KnownTargets
from xltraining.checkpoint import save_checkpoint

pytestmark = pytest.mark.full
WIDE: dict[str, Any] = {"d_model": 48, "d_inner": 48, "residual": "ordinary"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder_decoder") / "checkpoint.pt"
    model = tiny_encoder_decoder()
    save_checkpoint(path, model.config, model.state_dict())
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert a model with weight matrices that are large enough to quantize; `pairs.tsv` has pairs to measure on."""
    folder = tmp_path_factory.mktemp("wide")
    model = tiny_encoder_decoder(**WIDE)
    save_checkpoint(folder / "checkpoint.pt", model.config, model.state_dict())
    (folder / "pairs.tsv").write_text("".join(f"{'ab' * (n % 7)}\t{'xyz' * (n % 3) or 'w'}\n" for n in range(250)))
    with export_cache.cached_exports():
        options = ConversionOptions(threads=1, text=folder / "pairs.tsv")
        convert(load(folder / "checkpoint.pt"), folder / "onnx", options)
    return folder


def test_bundle_equals_the_trained_model_over_carried_steps(wide: Path) -> None:
    report = json.loads((wide / "onnx" / "parity.json").read_text("utf-8"))
    assert report["passed"] and report["segments"] > 40  # steps of several lengths
    assert report["max_abs_log_prob_diff"] < 2e-5 and report["max_abs_memory_diff"] < 2e-5
    assert 0 < report["rounding"]["model_rms"] < 2e-6
    bundle = open_any_bundle(wide / "onnx", threads=1)
    assert isinstance(bundle, Translator) and bundle.encoder.source_len == 12
    answers = KnownTargets.read(bundle)
    assert answers is not None and bundle.check().passed
    assert bundle.tokenizer.decode(list(answers.source)) not in (wide / "pairs.tsv").read_text()  # the default text

    changed = tiny_encoder_decoder(**WIDE)
    with torch.no_grad():
        changed.decoder[4].value.weight[0, 0] += 0.01
    ids = bundle.tokenizer.encode("any text, cut into parts that are source and target of one pair")
    assert verify(bundle, lambda: tiny_encoder_decoder(**WIDE), ids, segments=9).passed
    with pytest.raises(ParityError, match="the graphs differ from the trained model"):
        verify(bundle, lambda: changed, ids, segments=9).require_passed()


def test_known_answers_are_scores_of_the_trained_model(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(wide / "onnx", tmp_path / "bundle"))
    model = load_translator(folder, threads=1, check="once")
    answers, result = KnownTargets.read(model), model.check()
    assert answers is not None and result.passed and result.certain
    assert answers.settings["segment_len"] < result.tokens == len(answers.log_probs) <= model.longest_target
    scores = model.token_log_probs(list(answers.source), list(answers.tokens[1:-1]))
    np.testing.assert_allclose(scores, answers.log_probs, rtol=0, atol=min(answers.bounds))

    def change(**fields: Any) -> None:
        (folder / ANSWERS_FILE).write_text(json.dumps(dataclasses.asdict(answers) | fields), "utf-8")
        digest = dataclasses.asdict(digest_file(folder / ANSWERS_FILE))
        edit_manifest(folder, lambda manifest: manifest["files"].update({ANSWERS_FILE: digest}))

    first, second, *rest = answers.log_probs
    change(log_probs=(first, second + 2 * answers.bounds[1], *rest))
    with pytest.raises(BundleGraphError, match="token 2 of the known answers has the log-probability -"):
        load_translator(folder, threads=1, ops="none", check="once")
    change(source=answers.source[::-1])
    assert load_translator(folder, threads=1).check().passed is False
    for source, message in (((70_000,), "the token 70000, expected 0 to"), ((3,) * 13, "has 13 tokens, the model")):
        change(source=source)
        with pytest.raises(BundleFormatError, match=f"source has {message.removeprefix('has ')}"):
            load_translator(folder, threads=1).check()


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
        assert bundle.check().passed and bundle.check().certain == (dtype == "int8")
        with pytest.raises(QuantizationError, match="the first pair has more than 5 tokens"):
            log_probs(bundle, bundle.tokenizer.encode("a pai"))
    assert "an encoder-decoder is measured on pairs" in invoke(*quantize).err


def test_formats_that_it_does_not_have_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--to torchscript is not possible for an encoder-decoder"):
        convert(load(checkpoint), tmp_path / "bundle", ConversionOptions(to="torchscript"))
