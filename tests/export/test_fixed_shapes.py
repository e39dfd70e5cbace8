"""Bundles of fixed shapes: every axis is a number, and any document scores as with free shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.bundles import Converted, convert_tiny
from tests.helpers.ids import random_ids
from xlexport.checkpoints import load as load_checkpoint
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError
from xlexport.fixed_shapes import FixedShapes
from xlruntime import Model, OptionError, Sampling, load

GREEDY = Sampling(temperature=0)
FIXED = FixedShapes.parse("segment=8")


@pytest.fixture(scope="module", params=[True, False], ids=["same_length", "unlimited"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    options = ConversionOptions(tokenizer="none", threads=1, fixed=FIXED)
    return convert_tiny(tmp_path_factory, f"fixed-{request.param}", options, same_length=request.param)


@pytest.fixture
def model(converted: Converted) -> Model:
    return load(converted.folder, threads=1, ops="none")


def test_graphs_have_no_free_axis_and_no_size_that_depends_on_data(converted: Converted, model: Model) -> None:
    assert list(model.bundle.graphs) == [
        *("score", "generate", "detail", "positions"),
        *("score_1", "generate_1", "detail_1"),
    ]
    assert converted.report.passed and converted.report.top1_agreement == 1
    for name, described in model.bundle.graphs.items():
        graph = onnx.load(converted.folder / described.file, load_external_data=False).graph
        for value in (*graph.input, *graph.output):
            assert all(axis.dim_value > 0 for axis in value.type.tensor_type.shape.dim), (name, value.name)
        operators = {node.op_type for node in graph.node}
        assert not operators & {"Shape", "Range", "NonZero", "ScatterND", "Loop", "Scan", "If", "Pad"}
        assert not any(node.domain for node in graph.node)


def test_any_document_scores_as_with_free_shapes(
    converted: Converted, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ConversionOptions(tokenizer="none", threads=1, settings={"segment_len": 8})
    name = f"free-{model.bundle.settings['mem_len']}-{model.bundle.settings.segmentation_matters}"
    same_length = not model.bundle.settings.segmentation_matters
    free = load(convert_tiny(tmp_path_factory, name, options, same_length=same_length).folder, threads=1)
    documents = [random_ids(length, vocab_size=20) for length in (2, 9, 60, 101)]
    for ids in documents:
        np.testing.assert_allclose(model.stream().feed(ids).log_probs, free.stream().feed(ids).log_probs, atol=2e-5)
        (score,) = model.score([ids], batch_size="auto")
        assert score.nats == pytest.approx(next(free.score([ids])).nats, abs=1e-4)
    drawn, expected = (list(one.generate(documents[3], max_tokens=5, sampling=GREEDY)) for one in (model, free))
    assert drawn == expected


def test_other_sizes_are_refused(model: Model) -> None:
    ids = random_ids(30, vocab_size=20)
    with pytest.raises(OptionError, match=r"batch size is 2, expected 1: .* fixed shapes\. Choose 1"):
        list(model.score([ids, ids], batch_size=2))
    with pytest.raises(OptionError, match=r"mem_len is 7, expected \d+ "):
        model.stream(mem_len=7)
    if model.bundle.settings.segmentation_matters:
        with pytest.raises(OptionError, match=r"segment_len is 16, at most 8 is possible"):
            model.stream(segment_len=16)
    else:
        assert len(model.stream(segment_len=16).feed(ids)) == 29


@pytest.mark.parametrize("text", ["", "batch=1", "segment=0", "segment=8,segment=8", "segment", "segment=8;batch=1"])
def test_malformed_shapes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"expected NAME=SIZE for each axis, with a segment"):
        FixedShapes.parse(text)


def test_contradictions_and_unknown_settings_are_refused(ids_bundle: Converted, tmp_path: Path) -> None:
    options = ConversionOptions(tokenizer="none", fixed=FIXED, settings={"segment_len": 9})
    with pytest.raises(OptionError, match=r"--segment-len is 9, but --fixed says 8"):
        convert(ids_bundle.source, tmp_path / "bundle", options)
    options = ConversionOptions(tokenizer="none", fixed=FixedShapes.parse("segment=8,n_hashes=2"))
    with pytest.raises(ExportError, match=r"n_hashes applies to Reformers with LSH attention only"):
        convert(load_checkpoint(ids_bundle.folder.parent / "checkpoint.pt"), tmp_path / "bundle", options)
