"""Inlined graphs: standard operators only, the same numbers in ONNX Runtime, and walks in OpenVINO and tract."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from tests.helpers import ids
from tests.helpers.bundles import convert_tiny, convert_tiny_reformer
from tests.helpers.export_cache import cached_exports
from tests.helpers.paths import GOLDEN, ROOT
from tests.helpers.shared import shared_folder
from tests.helpers.tiers import thinned
from tests.helpers.tiny import BAND
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.model_names import load_source
from xlexport.ops import inline_functions
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlruntime import Model, load
from xlruntime.bundle import Graph
from xlruntime.load_options import LoadOptions
from xlruntime.memory import Memory

Arrays = dict[str, npt.NDArray[Any]]
Call = Callable[[Arrays], Arrays]
OPTIONS = ConversionOptions(tokenizer="none", threads=1, inline=True)
SAMPLES = {
    "transformer_xl": "samples/transformer_xl_bytes/checkpoint.pt",
    "reformer": "samples/reformer_bytes/checkpoint.pt",
    "mamba": "samples/models/mambapy_model.py:model",
}
SEGMENTS = 50
AGREE = 1e-4  # nats, as between the graphs and the trained model


@pytest.fixture(scope="session", params=["transformer_xl", "reformer"])
def inlined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "reformer":
        return convert_tiny_reformer(tmp_path_factory, "inlined-reformer", BAND, inline=True).folder
    return convert_tiny(tmp_path_factory, "inlined", OPTIONS, clamp_len=6, d_model=16).folder


def check_standard(model: onnx.ModelProto) -> None:
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    assert not model.functions
    assert not {node.domain for node in model.graph.node} - {""}


def test_bodies_take_the_places_of_nodes() -> None:
    model = ir.load(GOLDEN / "reformer_band" / "bundle" / "score.onnx")
    inline_functions(model)
    check_standard(ir.to_proto(model))


@pytest.mark.release
def test_standard_operators_only(inlined: Path) -> None:
    bundle = load(inlined, threads=1).bundle  # the conversion has compared it with the trained model
    assert bundle.requires.domains == {}
    for graph in bundle.graphs.values():
        model = onnx.load(inlined / graph.file, load_external_data=False)
        check_standard(model)
        onnx.checker.check_model(inlined / graph.file, full_check=True)
        names = [axis.dim_param for value in model.graph.value_info for axis in value.type.tensor_type.shape.dim]
        assert not any(names), "tract would take no numbers for axes of these names"


@pytest.mark.release
@pytest.mark.parametrize(
    "dtype", thinned(["int8", "weight-int8", "weight-int4", "float16"], ["int8"], pytest.mark.release)
)
def test_inlined_bundles_quantize(dtype: str, inlined: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.ids"
    text.write_text(" ".join(map(str, ids.random_ids(2_100, vocab_size=20))))
    report = quantize(
        inlined, tmp_path / "small", QuantizeOptions(dtype, max_delta_bits=1.0, threads=1), texts=[text], as_ids=True
    )
    assert len(report.kept) < report.products
    assert load(tmp_path / "small", threads=1).bundle.requires.domains == {}


class OtherSession:
    """A session of a runtime other than ONNX Runtime; it compiles a graph for the shapes of its first inputs."""

    providers, nodes = ["another"], ()

    def __init__(self, file: Path, graph: Graph, compile: Callable[..., Call]) -> None:
        self.file, self.graph, self.compile = file, graph, compile
        self.call: Call | None = None

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        arrays = {name: np.ascontiguousarray(feeds[name]) for name in self.graph.inputs}
        self.call = self.call or self.compile(self.file, arrays)
        return self.call(arrays)

    def constant(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> Arrays:
        carried = {entry.input: memory.array(entry) for entry in memory.entries}
        outputs = self.run({**memory.constants, **feeds, **carried})
        for entry in memory.entries:
            memory.put(entry, outputs.pop(entry.output))
        return outputs


def compile_openvino(openvino: Any, file: Path, arrays: Arrays) -> Call:
    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda feeds: {output.any_name: np.array(value) for output, value in compiled(feeds).items()}


def compile_tract(tract: Any, file: Path, arrays: Arrays) -> Call:
    model = tract.onnx().load(file)
    for place, array in enumerate(arrays.values()):
        model.set_input_fact(place, ",".join([*map(str, array.shape), array.dtype.str[1] + f"{8 * array.itemsize}"]))
    names = [value.name for value in onnx.load(file, load_external_data=False).graph.output]
    for place in range(len(names)):
        model.set_output_fact(place, None)
    runnable = model.into_model().into_runnable()
    return lambda feeds: {
        name: value.to_numpy() for name, value in zip(names, runnable.run([*feeds.values()]), strict=True)
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("runtime", "sample"),
    [
        *(("openvino", sample) for sample in SAMPLES),
        *(("tract", sample) for sample in ("transformer_xl", "mamba")),  # it has no Loop, which Reformers need
    ],
)
def test_other_runtime_against_onnxruntime_over_carried_segments(
    runtime: str, sample: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = pytest.importorskip(runtime, reason=f"needs the package {runtime}")
    if sample == "mamba":
        pytest.importorskip("mambapy", reason="the sample needs the package mambapy")

    def make(folder: Path) -> None:
        options = ConversionOptions(tokenizer="bytes", threads=1, inline=True, segments=2)
        with cached_exports():
            convert(load_source(str(ROOT / SAMPLES[sample]), trust=True), folder / "bundle", options)

    folder, _ = shared_folder(tmp_path_factory, f"inlined-sample-{sample}", make)
    expected = load(folder / "bundle", threads=1, ops="none")
    bundle = expected.bundle
    compile = functools.partial({"openvino": compile_openvino, "tract": compile_tract}[runtime], library)
    other = Model(
        folder / "bundle",
        bundle,
        LoadOptions(threads=1, ops="none"),
        open_session=lambda purpose, graph: OtherSession(folder / "bundle" / graph.file, graph, compile),
    )
    S = bundle.settings.segment_len
    text = np.frombuffer(b"".join(page.read_bytes() for page in sorted((ROOT / "docs").glob("*.md"))), np.uint8)
    memories = {model: model.new_memory(bundle.settings) for model in (expected, other)}
    buckets = [entry for entry in bundle.memory if entry.dtype == "int32"]
    flips = 0  # segments in which rounding decided another bucket, whose scores differ
    for start in range(0, SEGMENTS * S, S):
        tokens, targets = (text[None, start + shift : start + shift + S].astype(np.int64) for shift in (0, 1))
        found, wanted = (
            model.step("score", memories[model], tokens, targets)["log_prob"] for model in (other, expected)
        )
        ours, theirs = (memories[model] for model in (expected, other))
        if any((ours.array(entry) != theirs.array(entry)).any() for entry in buckets):
            flips += 1
            theirs.place(0, ours.take([0]))
            continue
        assert np.abs(found - wanted).max() <= AGREE
    assert flips <= SEGMENTS // 10
