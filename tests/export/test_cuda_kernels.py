"""Every node of a Reformer's graphs has a kernel on CUDA, and a graph without loops gives the same scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper

from tests.helpers.bundles import ConvertedReformer
from tests.helpers.cuda_kernels import KERNELS, OPSET, UNTIL_THEN, missing_kernels
from tests.helpers.ids import random_ids
from tests.helpers.paths import GOLDEN
from tests.helpers.pretended_cuda import CUDA, pretend
from xlruntime import Model, ProviderError, load
from xlruntime.documents import Ids
from xlruntime.memory import Memory


@pytest.mark.parametrize("rule", ["band", "paper", "chunk"])
def test_graphs_of_free_shapes_have_cuda_kernels_only(rule: str, request: pytest.FixtureRequest) -> None:
    bundle: ConvertedReformer = request.getfixturevalue(rule)
    files = sorted(bundle.folder.glob("*.onnx"))
    assert {"detail", "generate", "score"} <= {file.stem for file in files}
    assert {file.stem: missing_kernels(onnx.load(file, load_external_data=False)) for file in files} == {
        file.stem: [] for file in files
    }


def pad_of(kind: int) -> onnx.ModelProto:
    """Return a graph that pads a tensor of this type in both branches of an `If`."""
    inner = [
        helper.make_graph([helper.make_node("Pad", ["x", "pads"], [name])], name, [], [onnx.ValueInfoProto(name=name)])
        for name in ("then", "else")
    ]
    node = helper.make_node("If", ["some"], ["y"], then_branch=inner[0], else_branch=inner[1])
    sizes = {"x": (kind, [3]), "pads": (TensorProto.INT64, [2]), "some": (TensorProto.BOOL, [])}
    inputs = [helper.make_tensor_value_info(name, *each) for name, each in sizes.items()]
    graph = helper.make_graph([node], "pad", inputs, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def test_pads_of_integers_are_found() -> None:
    assert missing_kernels(pad_of(TensorProto.INT64)) == ["Pad of int64", "Pad of int64"]
    assert missing_kernels(pad_of(TensorProto.FLOAT)) == []
    before = missing_kernels(onnx.load(GOLDEN / "reformer_chunk" / "bundle" / "score.onnx", load_external_data=False))
    assert set(before) == {"Pad of int64", "ReduceProd of int64"}  # as this bundle was written


def test_the_table_names_operators_and_parameters_of_onnx() -> None:
    assert set(UNTIL_THEN) <= set(KERNELS)
    for name, types in KERNELS.items():
        schema = defs.get_schema(name, OPSET)
        assert set(types) == {constraint.type_param_str for constraint in schema.type_constraints}, name
        newer = schema.since_version > UNTIL_THEN.get(name, OPSET)
        assert newer == (name in UNTIL_THEN), name


def on_cpu(folder: Path) -> set[str]:
    """Return the operators of a bundle's graphs that the table leaves to the CPU."""
    models = [onnx.load(file, load_external_data=False) for file in folder.glob("*.onnx")]
    return {name.partition(" ")[0] for model in models for name in missing_kernels(model)}


def open_strictly(folder: Path) -> None:
    """Open all graphs with `strict_device`, and check that each has nodes on the device."""
    model = load(folder, device="cuda", strict_device=True)
    for purpose in model.bundle.graphs:
        assert model.placement(purpose)[CUDA]


@pytest.mark.parametrize("rule", ["band", "paper", "chunk"])
@pytest.mark.full
def test_strict_device_as_the_table_places_nodes(
    rule: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, older = request.getfixturevalue(rule).folder, GOLDEN / f"reformer_{rule}" / "bundle"
    pretend(monkeypatch, on_cpu=on_cpu(fresh))
    open_strictly(fresh)
    pretend(monkeypatch, on_cpu=on_cpu(older))
    with pytest.raises(ProviderError, match=rf"not on {CUDA}: \d+ Pad \("):
        load(older, device="cuda", strict_device=True)


@pytest.mark.cuda
@pytest.mark.parametrize("rule", ["band", "paper", "chunk"])
def test_strict_device_on_cuda(rule: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(rule).folder
    try:
        load(folder, device="cuda")
    except ProviderError as error:
        pytest.skip(f"no CUDA here: {error}")
    open_strictly(folder)


@pytest.mark.full
def test_loops_and_no_loops_agree_over_300_carried_segments(band: ConvertedReformer) -> None:
    model, S, purposes = band.open(), 3, ("score_batched", "score")
    memories = [model.new_memory(model.evaluation(), 2) for _ in purposes]
    ids = random_ids(2, 300 * S + 1, vocab_size=30)
    for start in range(0, 300 * S, S):
        tokens, targets = ids[:, start : start + S], ids[:, start + 1 : start + S + 1]
        parts = [run(model, each, memory, tokens, targets) for each, memory in zip(purposes, memories, strict=True)]
        np.testing.assert_allclose(parts[0]["log_prob"], parts[1]["log_prob"], rtol=0, atol=1e-5)
        assert np.array_equal(parts[0]["overflow"], parts[1]["overflow"])


@pytest.mark.parametrize("rule", ["paper", "chunk"])
@pytest.mark.release
def test_loops_and_no_loops_agree_on_whole_documents(rule: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(rule).open()
    for length in (1, 3, 4, 50, 100):
        ids = random_ids(1, length + 1, vocab_size=30)
        parts = [
            run(model, purpose, model.new_memory(model.evaluation()), ids[:, :-1], ids[:, 1:])
            for purpose in ("score_batched", "score")
        ]
        np.testing.assert_allclose(parts[0]["log_prob"], parts[1]["log_prob"], rtol=0, atol=1e-5)


def run(model: Model, graph: str, memory: Memory, tokens: Ids, targets: Ids) -> dict[str, Any]:
    """Run a segment in this graph, not in the one that the model prefers."""
    session = model.session(graph)
    outputs: dict[str, Any] = session.step(memory.feeds(session.graph, {"tokens": tokens, "targets": targets}), memory)
    memory.advance(tokens.shape[1])
    return outputs
