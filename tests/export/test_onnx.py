"""The exported files of one tiny bundle: their content and results."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch

from tests.helpers.paths import ROOT
from tests.helpers.tiny import BAND, PAPER, RingDriver, tiny_model, tiny_reformer
from xlexport.errors import ExportError
from xlexport.export import onnx as export
from xlexport.export.onnx import OPSET, export_onnx
from xlexport.families import architecture
from xlexport.families.transformer_xl.step import TransformerXLStep
from xlexport.ops import DOMAIN
from xlruntime.bundle import Requirements
from xlruntime.bundle_files import read_bundle

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

    Arrays = dict[str, npt.NDArray[Any]]

STEPS = ("score", "generate", "detail")
GRAPHS = (*STEPS, "positions")
LAYERS = range(2)
RINGS = [f"memory_{kind}_{index}" for index in LAYERS for kind in ("key", "value")]


def open_graph(folder: Path, purpose: str) -> onnx.ModelProto:
    return onnx.load(folder / f"{purpose}.onnx", load_external_data=False)


def session(path: Path) -> ort.InferenceSession:
    """Open a session of plain ONNX Runtime, without registered operators and without our settings."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(opened: ort.InferenceSession, feeds: Arrays) -> Arrays:
    names = [value.name for value in opened.get_outputs()]
    taken = {value.name: feeds[value.name] for value in opened.get_inputs()}
    return dict(zip(names, opened.run(names, taken), strict=True))


@pytest.fixture(scope="module")
def sessions(bytes_bundle: Converted) -> dict[str, ort.InferenceSession]:
    return {purpose: session(bytes_bundle.folder / f"{purpose}.onnx") for purpose in GRAPHS}


@pytest.fixture(scope="module")
def step(bytes_bundle: Converted) -> TransformerXLStep:
    return TransformerXLStep(bytes_bundle.model)


def test_files_and_what_they_require(bytes_bundle: Converted) -> None:
    names = {path.name for path in bytes_bundle.folder.iterdir()}
    graphs = {f"{purpose}.onnx" for purpose in GRAPHS}
    others = {"weights.data", "bundle.json", "bundle.json.sha256", "known_answers.json", "parity.json", "README.md"}
    assert names == graphs | others
    assert read_bundle(bytes_bundle.folder).requires == Requirements("1.24.1", OPSET, {"ai.xlexport": 1})


@pytest.mark.parametrize("purpose", GRAPHS)
def test_versions(purpose: str, bytes_bundle: Converted) -> None:
    """Expect opset 20 and IR 10, which onnxruntime and onnxruntime-web both load, and bodies of all custom nodes."""
    model = open_graph(bytes_bundle.folder, purpose)
    assert model.ir_version == 10
    custom = [] if purpose == "positions" else ["RelativeAttention" for _ in LAYERS]
    assert [node.op_type for node in model.graph.node if node.domain] == custom
    imports = [("", 20), (DOMAIN, 1)] if custom else [("", 20)]
    assert [(entry.domain, entry.version) for entry in model.opset_import] == imports
    bodies = {*custom, "RelativeMasks"} if custom else set()  # a function of that body
    assert {function.name for function in model.functions} == bodies
    onnx.checker.check_model(bytes_bundle.folder / f"{purpose}.onnx", full_check=True)


@pytest.mark.parametrize("purpose", GRAPHS)
def test_manifest_describes_the_file(purpose: str, bytes_bundle: Converted) -> None:
    bundle = read_bundle(bytes_bundle.folder)
    described, model = bundle.graphs[purpose], open_graph(bytes_bundle.folder, purpose)
    assert {entry.key for entry in model.metadata_props} == {"format", "specification", "operators"}
    for value in (*model.graph.input, *model.graph.output):
        assert value.doc_string == bundle.meaning[value.name] != ""
    custom = [node for node in model.graph.node if node.domain]
    assert all(node.doc_string and node.name == f"{node.op_type}_{i}" for i, node in enumerate(custom))
    assert list(described.inputs) == [value.name for value in model.graph.input]
    carried = [entry.output for entry in bundle.memory if entry.input in described.inputs]
    assert carried == ([] if purpose == "positions" else [f"new_{name}" for name in RINGS])
    assert {*described.outputs, *carried} == {value.name for value in model.graph.output}
    assert (described.file, described.fixed) == (f"{purpose}.onnx", {})


def test_one_weights_file_serves_all_graphs(bytes_bundle: Converted) -> None:
    places: dict[str, tuple[int, int]] = {}
    holders: Counter[str] = Counter()
    for purpose in GRAPHS:
        for tensor in open_graph(bytes_bundle.folder, purpose).graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entry = {pair.key: pair.value for pair in tensor.external_data}
                assert entry["location"] == "weights.data"
                place = (int(entry["offset"]), int(entry["length"]))
                assert places.setdefault(tensor.name, place) == place
                holders[tensor.name] += 1
            else:
                assert len(tensor.SerializeToString()) < 1500
    begins = sorted(places.values())
    assert all(offset + length <= following for (offset, length), (following, _) in itertools.pairwise(begins))
    size = (bytes_bundle.folder / "weights.data").stat().st_size
    assert size - begins[-1][1] <= begins[-1][0] <= size
    embedding = bytes_bundle.model.word_emb.clusters[0].table.nbytes
    assert sum(length == embedding for _, length in begins) == 1  # rows to look up, and the tied head
    assert max(holders.values()) == len(STEPS)


def test_each_graph_computes_only_what_it_gives(bytes_bundle: Converted) -> None:
    kinds = {
        purpose: Counter(node.op_type for node in open_graph(bytes_bundle.folder, purpose).graph.node)
        for purpose in GRAPHS
    }
    for purpose in ("score", "generate"):
        assert not {"TopK", "Greater", "Exp"} & kinds[purpose].keys(), purpose
    assert kinds["detail"]["TopK"] == 1
    assert not {"LogSoftmax", "GatherElements"} & kinds["generate"].keys()
    for purpose in STEPS:
        assert not {"Sin", "Cos", "If", "Loop"} & kinds[purpose].keys(), purpose
        assert kinds[purpose]["RelativeAttention"] == len(LAYERS)
    assert not {"RelativeAttention", "Softmax", "LayerNormalization", "TopK"} & kinds["positions"].keys()
    assert not [kind for counts in kinds.values() for kind in counts if kind.startswith("Random")]

    for purpose in GRAPHS:  # and every node leads to an output
        graph = open_graph(bytes_bundle.folder, purpose).graph
        needed = {value.name for value in graph.output}
        for node in reversed(graph.node):
            assert needed & set(node.output), (purpose, node.op_type)
            needed |= set(node.input)
        assert {value.name for value in graph.input} <= needed
        assert {tensor.name for tensor in graph.initializer} <= needed


@pytest.mark.parametrize("purpose", STEPS)
def test_rings_are_written_in_place_and_never_copied(purpose: str, bytes_bundle: Converted, tmp_path: Path) -> None:
    """Check the graph that ONNX Runtime runs: a ring enters ScatterND, whose output enters one matrix product."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3  # it warns that the optimized file is for this machine only
    ort.InferenceSession(str(bytes_bundle.folder / f"{purpose}.onnx"), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node
    for name in RINGS:
        readers = {node.op_type for node in nodes if name in node.input}
        assert readers in ({"ScatterND"}, {"ScatterND", "Shape"})
        (writer,) = (node for node in nodes if f"new_{name}" in node.output)
        assert (writer.op_type, writer.input[0]) == ("ScatterND", name)
        users = [node.op_type for node in nodes if f"new_{name}" in node.input]
        assert users in (["MatMul"], ["FusedMatMul"])


def warm(driver: RingDriver) -> RingDriver:
    """Fill the whole ring and restart the first row in between, so that rows have different memory lengths."""
    for number, length in enumerate((40, 13, 30)):
        tokens, targets = random_tokens(driver, length, seed=number)
        driver.run(tokens, targets)
        if number == 1:
            driver.restart(0)
            driver.memory_length[-1] = min(3, int(driver.memory_length[-1]))
    return driver


def random_tokens(driver: RingDriver, length: int, seed: int = 9) -> torch.Tensor:
    """Return random tokens and targets, (2, B, S)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(driver.step.config.n_token, (2, len(driver.memory_length), length), generator=generator)


def numpy_feeds(driver: RingDriver, tokens: torch.Tensor, targets: torch.Tensor) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in driver.feeds(tokens, targets).items()}


@pytest.mark.parametrize("capacity", ["just enough", 70, 131])
@pytest.mark.parametrize("S", [1, 7, 33])
@pytest.mark.parametrize("B", [1, 2, 5])
def test_graphs_against_step_at_any_size(
    B: int,
    S: int,
    capacity: int | str,
    sessions: dict[str, ort.InferenceSession],
    step: TransformerXLStep,
) -> None:
    slots = capacity if isinstance(capacity, int) else step.config.mem_len + S
    driver = RingDriver(step, B, slots)
    if slots >= step.config.mem_len + 40:
        warm(driver)
    tokens, targets = random_tokens(driver, S)
    feeds = numpy_feeds(driver, tokens, targets)
    wanted = driver.run(tokens, targets)
    for purpose in STEPS:
        for name, found in run(sessions[purpose], feeds).items():
            assert found.shape == wanted[name].shape
            if found.dtype == np.int64:
                assert np.array_equal(found, wanted[name].numpy())
            else:
                assert np.abs(found - wanted[name].numpy()).max() <= 1e-5


@pytest.mark.parametrize("clamp_len", [-1, 1, 15, 400])
@pytest.mark.parametrize("near", [2, 21, 500])
def test_positions_against_step(
    near: int, clamp_len: int, sessions: dict[str, ort.InferenceSession], step: TransformerXLStep
) -> None:
    given = {"capacity": near, "mem_len": 1, "clamp_len": clamp_len}  # with such a short memory all slots are near
    feeds = {name: np.array([number]) for name, number in given.items()}
    found = run(sessions["positions"], feeds)
    with torch.no_grad():
        wanted = step.positions(*(torch.tensor([number]) for number in given.values()))
    for index, key in enumerate(wanted):
        assert found[f"position_key_{index}"].shape == (2, 5, near + 1)
        assert np.abs(found[f"position_key_{index}"] - key.numpy()).max() <= 1e-5


def test_large_logits_do_not_overflow(bytes_bundle: Converted, step: TransformerXLStep, tmp_path: Path) -> None:
    """Use logits whose exp is infinite in float32 (exp(120)); the normaliser must subtract the largest logit first."""
    model = onnx.load(bytes_bundle.folder / "score.onnx")
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "head.clusters.0.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 120, bias.name))
    onnx.save(model, tmp_path / "score.onnx")
    driver = RingDriver(step)
    feeds = numpy_feeds(driver, *random_tokens(driver, 8))
    found, wanted = (
        run(session(folder / "score.onnx"), feeds)["log_prob"] for folder in (tmp_path, bytes_bundle.folder)
    )
    assert np.abs(found - wanted).max() <= 1e-4


@pytest.mark.parametrize("suffix", [".onnx", ".json", ".md"])
def test_nothing_of_this_machine_is_in_the_files(suffix: str, bytes_bundle: Converted) -> None:
    files = [path for path in bytes_bundle.folder.iterdir() if path.suffix == suffix]
    assert files
    local = [ROOT, Path.home(), sys.prefix, Path(torch.__file__).parents[1], bytes_bundle.folder.parents[1]]
    words = [*map(str, local), ".py", "site-packages", "Traceback", 'File "', "torch.nn", "stack_trace"]
    for path in files:
        content = path.read_bytes()
        assert not [word for word in words if word.encode() in content], path.name


@pytest.mark.release
def test_decompositions_are_left_out_only_if_they_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_decompose", None)
    step = architecture("transformer_xl").build_step(tiny_model())
    export_onnx(step, tmp_path)
    for config in (dataclasses.replace(BAND, attn_layers=("local", "lsh", "full")), PAPER):
        export_onnx(architecture("reformer").build_step(tiny_reformer(config)), tmp_path)
    monkeypatch.setattr(export, "UNCHANGED", ())
    with pytest.raises(ExportError, match="Failed to decompose"):
        export_onnx(step, tmp_path)
