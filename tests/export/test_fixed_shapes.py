"""Bundles of fixed shapes: any document scores as with free shapes, and a CUDA graph or an accelerator can run all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import inliner, shape_inference

from tests.conformance.models import FAMILIES, SAMPLES
from tests.helpers.bundles import Converted, convert_tiny
from tests.helpers.cuda_kernels import lacking, type_names
from tests.helpers.export_cache import cached_exports
from tests.helpers.ids import random_ids
from tests.helpers.paths import GOLDEN
from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError
from xlexport.export import onnx as exporter
from xlexport.families import architecture
from xlexport.families.recurrent.source import module_source
from xlexport.fixed_shapes import FixedShapes
from xlexport.formats import load as load_checkpoint
from xlexport.model_names import load_source
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlruntime import OptionError, Sampling, load
from xlruntime.bundle_files import read_bundle

GREEDY = Sampling(temperature=0)
FIXED = FixedShapes.parse("segment=8")
# Inputs that kernels read on the host before they start: from a constant, or else after a copy, which waits.
ON_THE_HOST = {"Clip": [1, 2], "CumSum": [1], "Expand": [1], "Pad": [1, 2], "Reshape": [1], "Slice": [1, 2, 3, 4]}
ON_THE_HOST |= {"Split": [1], "Squeeze": [1], "TopK": [1], "Trilu": [1], "Unsqueeze": [1]}
WAITING = {"If", "Loop", "NonZero", "Range", "Scan"}  # their sizes or passes are known on the host only
IN_PLACE = {"ScatterElements", "ScatterND"}  # of rings; windows need none


def read(file: Path) -> onnx.GraphProto:
    """Return a graph without functions, with the types and shapes of all values."""
    inlined = inliner.inline_local_functions(onnx.load(file, load_external_data=False))
    return shape_inference.infer_shapes(inlined, strict_mode=True, data_prop=True).graph


def problems(graph: onnx.GraphProto) -> list[str]:
    """Return what a CUDA graph cannot capture: free shapes, nodes without a kernel, and sizes computed on the way."""
    values = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types = type_names(graph)
    found = [name for name, value in values.items() if not all(axis.dim_value for axis in value.shape.dim)]
    constant = {"", *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        if constant.issuperset(node.input):
            constant.update(node.output)
            continue
        if node.op_type in WAITING | IN_PLACE:
            found.append(node.op_type)
        if name := lacking(node, types):
            found.append(name)
        on_host = [node.input[place] for place in ON_THE_HOST.get(node.op_type, []) if place < len(node.input)]
        found += [f"{node.op_type} by {name}" for name in on_host if name not in constant]
    return found


def test_a_cuda_graph_or_an_accelerator_can_run_all_graphs(fixed_bundle: Converted) -> None:
    graphs = read_bundle(fixed_bundle.folder).graphs
    assert list(graphs) == ["score", "generate", "detail", "positions", "score_1", "generate_1", "detail_1"]
    assert fixed_bundle.report.passed and fixed_bundle.report.top1_agreement == 1
    for name, described in graphs.items():
        path = fixed_bundle.folder / described.file
        assert problems(read(path)) == [], name
        assert not onnx.load(path, load_external_data=False).functions


def source_of(name: str) -> tuple[str, Any, dict[str, Any]]:
    """Return the architecture, the model and its configuration."""
    if name == "reformer":
        return "reformer", tiny_reformer(BAND), BAND.to_dict()
    if name in ("gru", "rwkv4"):
        source = load_source(f"{SAMPLES / 'gru.py'}:model", trust=True)
        if name in FAMILIES:  # which reads tokens one by one
            make, sizes = FAMILIES[name]
            source = module_source(make(sizes))
        return source.architecture, source.build_model(), dict(source.config)
    model = tiny_model(cutoffs=(5, 9), clamp_len=6) if name == "relative" else tiny_model(encoding=name)
    return "transformer_xl", model, model.config.to_dict()


@pytest.mark.release
@pytest.mark.parametrize("name", ["relative", "shaw", "reformer", "gru", "rwkv4"])
def test_nothing_waits_for_the_host(name: str, tmp_path: Path) -> None:
    """Check the graphs of each kind of model for segments of 8 tokens and for one token."""
    kind, model, config = source_of(name)
    adapter = architecture(kind)
    sizes = FIXED.sizes(FIXED.rules(adapter.evaluation(config)))
    first, *shorter = (adapter.build_fixed_step(model, each) for each in sizes)
    with cached_exports():
        described = exporter.export_onnx(first, tmp_path, shorter).graphs
    for purpose, graph in described.items():
        nodes = read(tmp_path / graph.file)
        assert problems(nodes) == [], purpose
        operators = {node.op_type for node in nodes.node}
        assert ("TopK" in operators) == purpose.startswith("detail")  # its most probable tokens


def test_the_same_check_finds_what_free_graphs_of_a_reformer_have() -> None:
    found = problems(read(GOLDEN / "reformer_band" / "bundle" / "score.onnx"))
    assert {"Loop", "Range", "ScatterND", "Pad of int64", "tokens"} <= set(found)
    assert any(problem.startswith("Reshape by ") for problem in found)


def test_any_document_scores_as_with_free_shapes(fixed_bundle: Converted, ids_bundle: Converted) -> None:
    model, free = (load(bundle.folder, threads=1, ops="none") for bundle in (fixed_bundle, ids_bundle))
    documents = [random_ids(length, vocab_size=20) for length in (2, 9, 60, 101)]
    for ids in documents:
        np.testing.assert_allclose(model.stream().feed(ids).log_probs, free.stream().feed(ids).log_probs, atol=2e-5)
        (score,) = model.score([ids], batch_size="auto")
        assert score.nats == pytest.approx(next(free.score([ids])).nats, abs=1e-4)
    drawn, expected = (list(one.generate(documents[3], max_tokens=5, sampling=GREEDY)) for one in (model, free))
    assert drawn == expected


def test_only_lengths_of_segments_that_change_no_score_may_differ(fixed_bundle: Converted) -> None:
    model = load(fixed_bundle.folder, threads=1)
    with pytest.raises(OptionError, match=r"mem_len is 7, expected \d+ "):
        model.stream(mem_len=7)
    assert len(model.stream(segment_len=16).feed(random_ids(30, vocab_size=20))) == 29


@pytest.mark.parametrize("text", ["", "batch=1", "segment=0", "segment=8,segment=8", "segment", "segment=8;batch=1"])
def test_malformed_shapes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not NAME=SIZE|is there twice|segment is missing"):
        FixedShapes.parse(text)


def test_contradictions_and_unknown_settings_are_refused(ids_bundle: Converted, tmp_path: Path) -> None:
    options = ConversionOptions(tokenizer="none", fixed=FIXED, settings={"segment_len": 9})
    with pytest.raises(OptionError, match=r"--segment-len is 9, but --fixed says 8"):
        convert(ids_bundle.source, tmp_path / "bundle", options)
    options = ConversionOptions(tokenizer="none", fixed=FixedShapes.parse("segment=8,n_hashes=2"))
    with pytest.raises(ExportError, match=r"n_hashes applies to Reformers with LSH attention only"):
        convert(load_checkpoint(ids_bundle.folder.parent / "checkpoint.pt"), tmp_path / "bundle", options)


@pytest.mark.release
def test_quantized_bundles_keep_their_shapes(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Graphs of both lengths share their weights, and constants that differ have names of their own."""
    options = ConversionOptions(tokenizer="none", threads=1, fixed=FixedShapes.parse("segment=16"))
    wide = convert_tiny(tmp_path_factory, "fixed wide", options, d_model=64, d_head=32, d_inner=128, same_length=True)
    (text := tmp_path / "ids.txt").write_text(" ".join(map(str, random_ids(2_100, vocab_size=20))))
    quantize(wide.folder, tmp_path / "int8", QuantizeOptions("int8", max_delta_bits=10.0), texts=[text], as_ids=True)
    model, small = (load(folder, threads=1, ops="none") for folder in (wide.folder, tmp_path / "int8"))
    assert small.bundle.fixed == model.bundle.fixed
    ids = random_ids(61, vocab_size=20)
    log_probs, exact = (one.stream().feed(ids).log_probs for one in (small, model))
    assert 0 < np.abs(log_probs - exact).mean() < 0.3  # of a random model; a wrong weight changes whole nats
