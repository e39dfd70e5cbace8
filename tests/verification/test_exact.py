"""`verify` compares rounding errors, of graphs and of the float32 model, with the trained model in float64."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests.helpers.breaking import Arrays, after_step
from xlexport.errors import ParityError
from xlexport.families.base import Architecture
from xlexport.verification import verify
from xlexport.verification.differences import RoundingErrors, ratios
from xlexport.verification.parity import ParityReport
from xlruntime import Model
from xlruntime import load as load_bundle
from xlruntime.memory import Memory

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted, ConvertedReformer

Weight = npt.NDArray[np.float32]
IDS = np.random.default_rng(5).integers(0, 30, 1281)
FEW_IDS = np.random.default_rng(5).integers(0, 20, 400)


def check(model: Model, converted: Converted, tokens: int = 1280) -> ParityReport:
    evaluation = model.evaluation(segment_len=64)
    return verify(model, lambda: converted.model, IDS[: tokens + 1], segments=20, evaluation=evaluation)


@pytest.fixture
def bundle(bytes_bundle: Converted) -> Model:
    """Open the byte bundle again, so that a test may break it."""
    return load_bundle(bytes_bundle.folder, threads=1)


@pytest.mark.parametrize("name", ["bytes_bundle", "ids_bundle", "band", pytest.param("paper", marks=pytest.mark.full)])
@pytest.mark.full
def test_graphs_round_like_the_trained_model(name: str, request: pytest.FixtureRequest) -> None:
    converted = request.getfixturevalue(name)
    model = load_bundle(converted.folder, threads=1)
    evaluation = None if model.bundle.settings.full_document else model.evaluation(segment_len=64)
    ids = IDS % model.bundle.vocab_size
    report = verify(model, lambda: converted.model, ids, segments=1280, evaluation=evaluation)
    report.require_passed()
    assert report.tokens == 1280
    assert report.tolerance["rms_ratio"] == 2 and report.tolerance["largest_ratio"] == 4
    assert report.rms_ratio is not None and 0.3 < report.rms_ratio <= 2
    assert report.rounding is not None and 1e-8 < report.rounding.model_rms <= report.rounding.model_largest < 1e-5
    assert report.rounding.graph_largest == max(
        one.rounding.graph_largest for one in report.per_segment if one.rounding
    )
    assert {parameter.dtype for parameter in converted.model.parameters()} == {torch.float32}  # it was copied


def large_start(graph: onnx.ModelProto) -> None:
    """Add content scores to positional scores near 1000: softmax cancels the 1000, but not the rounding of the sum."""
    nodes = next(body for body in graph.functions if body.name == "RelativeAttention").node
    (place,) = (i for i, node in enumerate(nodes) if list(node.output) == ["position"])
    nodes[place].output[0] = "exact"
    nodes.insert(place + 1, helper.make_node("Add", ["exact", "start"], ["position"]))
    nodes.insert(place, helper.make_node("Constant", [], ["start"], value_float=1000.0))


def scaled(weight: Weight) -> Weight:
    return weight * np.float32(1 + 1e-5)


def in_float16(weight: Weight) -> Weight:
    return weight.astype(np.float16).astype(np.float32)


def weight(name: str, change: Callable[[Weight], Weight]) -> Callable[[onnx.ModelProto], None]:
    def spoil(graph: onnx.ModelProto) -> None:
        (tensor,) = (one for one in graph.graph.initializer if one.name == name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        large_start,
        weight("layers.0.output.weight.T", scaled),
        weight("layers.1.inner.weight.T", scaled),
        weight("layers.0.position_bias", in_float16),
    ],
)
@pytest.mark.full
def test_graph_that_is_slightly_wrong_fails_by_its_rounding_alone(
    spoil: Callable[[onnx.ModelProto], None], bytes_bundle: Converted, tmp_path: Path
) -> None:
    shutil.copytree(bytes_bundle.folder, tmp_path / "bundle")
    graph = onnx.load(tmp_path / "bundle/score.onnx", load_external_data=False)
    spoil(graph)
    onnx.save(graph, tmp_path / "bundle/score.onnx")
    spoiled = load_bundle(tmp_path / "bundle", threads=1, check_files=False, ops="none")
    fails_by_rounding_alone(check(spoiled, bytes_bundle))


def fails_by_rounding_alone(report: ParityReport) -> None:
    assert not report.passed
    assert report.first_segment_over_tolerance is None
    assert abs(report.delta_bits_per_token) <= report.tolerance["delta_bits_per_token"]
    with pytest.raises(ParityError, match=r"times the trained model's .* If kernels ran, use --set ops=none"):
        report.require_passed()


@pytest.mark.full
def test_one_token_is_found_by_the_largest_error(bundle: Model, bytes_bundle: Converted) -> None:
    def miss(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"][0, 7] += np.float32(1e-5)

    after_step(bundle, 3, miss)
    report = check(bundle, bytes_bundle)
    assert report.rms_ratio is not None and report.rms_ratio <= 2
    fails_by_rounding_alone(report)


def test_many_tokens_are_found_by_the_mean_square(bundle: Model, bytes_bundle: Converted) -> None:
    signs = np.resize(np.array([1, -1], np.float32), 64)

    def blur(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"] += np.float32(1.5e-6) * signs

    after_step(bundle, 0, blur, every=True)
    report = check(bundle, bytes_bundle)
    assert report.largest_ratio is not None and report.largest_ratio <= 4
    fails_by_rounding_alone(report)


@pytest.mark.full
def test_score_that_is_not_finite_is_found_and_has_no_ratio_that_passes(bundle: Model, bytes_bundle: Converted) -> None:
    def lose(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"][0, 3] = np.nan

    after_step(bundle, 4, lose)
    report = check(bundle, bytes_bundle)
    assert not report.passed and report.rms_ratio is not None and np.isnan(report.rms_ratio)
    assert np.isnan(report.max_abs_log_prob_diff) and report.first_segment_over_tolerance == 4


@pytest.mark.full
def test_ratios_of_a_short_text_are_not_judged(bundle: Model, bytes_bundle: Converted) -> None:
    report = check(bundle, bytes_bundle, tokens=999)
    assert report.rms_ratio is not None
    assert not {"rms_ratio", "largest_ratio"} & report.tolerance.keys()
    assert {"rms_ratio", "largest_ratio"} <= check(bundle, bytes_bundle, tokens=1000).tolerance.keys()


def test_error_below_the_last_place_counts_as_one_unit() -> None:
    errors = RoundingErrors(graph_rms=3e-7, graph_largest=9e-7, model_rms=1e-9, model_largest=1e-9)
    assert ratios(errors, nats=5.0) == (3e-7 / 2**-21, 9e-7 / 2**-21)
    assert ratios(errors, nats=1e-3) == (3e-7 / 2**-23, 9e-7 / 2**-23)  # at least the last place of 1
    larger = RoundingErrors(graph_rms=3e-6, graph_largest=2e-5, model_rms=2e-6, model_largest=1e-5)
    assert ratios(larger, nats=5.0) == (1.5, 2.0)


def test_rule_chunk_is_defined_in_float32(chunk: ConvertedReformer) -> None:
    report = chunk.report
    assert report.passed and (report.rounding, report.rms_ratio, report.largest_ratio) == (None, None, None)


def test_model_that_leaves_float64_is_named(
    bundle: Model, bytes_bundle: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrow(architecture: Architecture, model: Any) -> Any:
        return model

    monkeypatch.setattr(Architecture, "in_float64", narrow)
    with pytest.raises(ParityError, match=r"float64 returns float32"):
        check(bundle, bytes_bundle)


# The mean difference of a text, and a text that the model does not know.


@pytest.mark.full
def test_many_small_differences_of_one_sign_are_found(bundle: Model, bytes_bundle: Converted) -> None:
    """Check differences that are within tolerance but add up to two millionths of a bit per token."""

    def lean(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"] += np.float32(5e-6)

    after_step(bundle, 0, lean, every=True)
    report = verify(bundle, lambda: bytes_bundle.model, FEW_IDS, segments=8)
    assert report.first_segment_over_tolerance is None
    assert report.delta_bits_per_token == pytest.approx(-5e-6 / np.log(2), rel=0.2)
    assert not report.passed


@pytest.mark.full
def test_rounding_of_one_token_in_a_short_text_passes(bundle: Model, bytes_bundle: Converted) -> None:
    """Check a difference within the tolerance of a token, whose part in the mean of 45 tokens exceeds 1e-6 bits."""

    def round_once(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"][0, 3] += np.float32(5e-5)

    after_step(bundle, 2, round_once)
    report = verify(bundle, lambda: bytes_bundle.model, FEW_IDS[:46], segments=8)
    assert report.tokens == 45
    assert abs(report.delta_bits_per_token) > 1e-6
    assert report.passed


@pytest.mark.full
def test_model_that_float32_cannot_compute_is_named(bundle: Model, bytes_bundle: Converted) -> None:
    report = verify(bundle, lambda: bytes_bundle.model, FEW_IDS[:46], segments=8)
    assert report.rounding is not None
    for rms, hint in ((1e-6, "Make sure that bundle and checkpoint belong"), (0.2, r"by itself it errs by 0\.2 nats")):
        rounding = dataclasses.replace(report.rounding, model_rms=rms)
        with pytest.raises(ParityError, match=hint):
            dataclasses.replace(report, passed=False, rounding=rounding).require_passed()
