"""Every node of a Reformer's graphs has a kernel on CUDA, and a graph without loops gives the same scores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper

from tests.helpers.bundles import ConvertedReformer
from tests.helpers.cuda_kernels import KERNELS, OPSET, UNTIL_THEN, missing_kernels, without_loops
from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import GOLDEN
from tests.helpers.pretended_cuda import CUDA, pretend
from xlruntime import Model, ProviderError, load
from xlruntime.bundle_files import digest_file


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


def batched(folder: Path, copy: Path) -> Model:
    """Return a copy of a Reformer whose `score` graph is computed without the loops of LSH attention."""
    shutil.copytree(folder, copy)
    file = copy / "score.onnx"
    onnx.save(without_loops(onnx.load(file, load_external_data=False)), file)

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][file.name] = {"sha256": digest_file(file).sha256, "size": file.stat().st_size}

    edit_manifest(copy, change)
    return load(copy, threads=1)


def test_loops_and_no_loops_agree_over_300_carried_segments(band: ConvertedReformer, tmp_path: Path) -> None:
    models, S = (band.open(), batched(band.folder, tmp_path / "batched")), 3
    memories = [model.new_memory(model.evaluation(), 2) for model in models]
    ids = random_ids(2, 300 * S + 1, vocab_size=30)
    for start in range(0, 300 * S, S):
        tokens, targets = ids[:, start : start + S], ids[:, start + 1 : start + S + 1]
        made = [model.step("score", memory, tokens, targets) for model, memory in zip(models, memories, strict=True)]
        np.testing.assert_allclose(made[1]["log_prob"], made[0]["log_prob"], rtol=0, atol=1e-5)
        assert np.array_equal(made[1]["overflow"], made[0]["overflow"])


@pytest.mark.parametrize("rule", ["paper", "chunk"])
def test_loops_and_no_loops_agree_on_whole_documents(rule: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bundle: ConvertedReformer = request.getfixturevalue(rule)
    documents = [random_ids(length, vocab_size=30) for length in (2, 4, 5, 50, 100)]
    plain, other = bundle.open().score_tokens(documents), batched(bundle.folder, tmp_path / "batched")
    for expected, found in zip(plain, other.score_tokens(documents), strict=True):
        np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=0, atol=1e-5)
