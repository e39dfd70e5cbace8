"""Bundles of TorchScript, exported programs and ExecuTorch: equal results, and files that are checked before loading.

Results are compared within the tolerances of `verify`, because the orders of float32 sums differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import xlruntime
from tests.helpers.export_cache import cached_exports
from tests.helpers.paths import ROOT
from tests.helpers.tiers import thinned
from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from tests.training.test_lsh import random_buckets
from xlexport import ops
from xlexport import torch_runtime as torch_session
from xlexport.bundles import open_bundle
from xlexport.commands import execute
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import MissingDependencyError
from xlexport.fixed_shapes import FixedShapes
from xlexport.formats import load as load_checkpoint
from xlexport.manifest import write_manifest
from xlexport.verification.parity import ParityReport
from xlexport.verification.tolerances import TOLERANCES
from xlruntime.bundle import GraphFormat
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.errors import BundleError, OptionError
from xlruntime.model import Model
from xltraining.checkpoint import save_checkpoint

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted, ConvertedReformer

TORCHSCRIPT: GraphFormat = "torchscript"
PROGRAM: GraphFormat = "exported-program"
EXECUTORCH: GraphFormat = "executorch"
FORMATS: Sequence[GraphFormat] = (TORCHSCRIPT, PROGRAM)
DEPRECATED = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
TOLERANCE = TOLERANCES["float32"]
LENGTHS = (1, 8, 3, 8, 8, 7, 2, 8, 8, 8)  # of segments, which write a ring of 28 slots twice


@dataclasses.dataclass(frozen=True)
class Made:
    """A bundle for PyTorch and the bundle of the same checkpoint for ONNX Runtime."""

    format: GraphFormat
    folder: Path
    report: ParityReport
    onnx: Converted

    def open(self) -> Model:
        return torch_session.load(self.folder)


@pytest.fixture(scope="module", params=thinned(FORMATS, [TORCHSCRIPT], pytest.mark.release))
def made(request: pytest.FixtureRequest, ids_bundle: Converted, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    with cached_exports():
        report = convert(ids_bundle.source, folder, ConversionOptions(tokenizer="none", to=request.param)).report
    return Made(request.param, folder, report, ids_bundle)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    """Return a copy of the bundle, which the test may damage."""
    return Path(shutil.copytree(made.folder, tmp_path / "bundle"))


def code_file(made: Made) -> str:
    return "graphs.pt" if made.format == TORCHSCRIPT else "score.pt2"


def restate(folder: Path, name: str) -> None:
    """Change the manifest so that it matches the changed file."""
    bundle = read_bundle(folder, check_files=False)
    write_manifest(folder, dataclasses.replace(bundle, files={**bundle.files, name: digest_file(folder / name)}))


def walk(model: Model, purpose: str, ids: npt.NDArray[np.int64], capacity: int) -> list[dict[str, npt.NDArray[Any]]]:
    """Return the outputs of each segment of `LENGTHS` for rows of ids (B, N), and the memory after the last."""
    memory = model.new_memory(model.evaluation(), len(ids), capacity)
    found, start = [], 0
    for length in LENGTHS:
        part = ids[:, start : start + length + 1]
        found.append(model.step(purpose, memory, part[:, :-1], part[:, 1:]))
        start += length
        if start == 28 and len(ids) > 1:
            memory.restart(1)
    return [*found, {entry.input: memory.array(entry) for entry in memory.entries}]


@pytest.mark.parametrize(("batch_size", "capacity"), [(1, 28), (3, 40)])
@pytest.mark.parametrize("purpose", ["score", "generate", "detail"])
@pytest.mark.full
def test_same_numbers_as_the_onnx_bundle(made: Made, purpose: str, batch_size: int, capacity: int) -> None:
    ids = np.random.default_rng(batch_size).integers(0, 20, (batch_size, sum(LENGTHS) + 1))
    found, expected = (
        walk(model, purpose, ids, capacity) for model in (made.open(), xlruntime.load(made.onnx.folder, threads=1))
    )
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert (array.shape, array.dtype) == (other[name].shape, other[name].dtype)
            if name in ("rank", "top_ids"):  # almost equally probable tokens may come in either order
                assert (array == other[name]).mean() > 0.99
            else:
                within = TOLERANCE.memory if name.startswith("memory") else TOLERANCE.log_prob
                np.testing.assert_allclose(array, other[name], rtol=TOLERANCE.log_prob, atol=within)


def test_same_contract(made: Made) -> None:
    assert made.report.passed and made.report.segments >= 20 and made.report.detail_segments >= 20
    bundle, onnx = read_bundle(made.folder), read_bundle(made.onnx.folder)
    assert bundle.memory == onnx.memory and bundle.evaluation == onnx.evaluation
    assert bundle.graphs.keys() == onnx.graphs.keys()
    for purpose, graph in bundle.graphs.items():
        assert (graph.inputs, graph.outputs) == (onnx.graphs[purpose].inputs, onnx.graphs[purpose].outputs)
        assert (graph.format, onnx.graphs[purpose].format) == (made.format, "onnx")
    assert bundle.fingerprint != onnx.fingerprint


def test_weights_are_stored_once(made: Made) -> None:
    weights = sum(parameter.numel() * 4 for parameter in made.onnx.model.parameters())
    assert sum(len(tensors) for tensors in map(constants_of, made.folder.iterdir())) < 1.5 * weights


def constants_of(file: Path) -> bytes:
    """Return about how many tensors a file has: archives have one entry for each."""
    if file.suffix == ".safetensors" and file.name.startswith("weights"):
        return file.read_bytes()
    if file.suffix not in (".pt", ".pt2"):
        return b""
    with zipfile.ZipFile(file) as archive:
        wanted = re.compile(r"/(data|constants|data/weights/weight)[^/]*/?\d+$|weight_\d+$")
        return b"".join(archive.read(name) for name in archive.namelist() if wanted.search(name))


def test_runtime_refuses_them_and_says_what_runs_them(made: Made) -> None:
    for opened in (xlruntime.load, open_bundle):
        with pytest.raises(BundleError, match=rf"{made.format}, which needs PyTorch.* --trust.* --to onnx\.$"):
            opened(made.folder)
    assert open_bundle(made.folder, trust=True).session("score").providers == ["PyTorch"]
    assert open_bundle(made.onnx.folder, trust=True).session("score").providers == ["CPUExecutionProvider"]
    with pytest.raises(BundleError, match=r"not of PyTorch\. Use xlruntime\.load"):
        torch_session.load(made.onnx.folder)
    with pytest.raises(OptionError, match="on the CPU"):
        torch_session.load(made.folder, device="cuda")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the content that PyTorch has been given to load."""
    given: list[bytes] = []

    def watch(load: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: io.BytesIO, *args: Any, **options: Any) -> Any:
            given.append(file.getvalue())
            return load(file, *args, **options)

        return watched

    monkeypatch.setattr(torch.jit, "load", watch(torch.jit.load))
    monkeypatch.setattr(torch.export, "load", watch(torch.export.load))
    return given


def test_only_what_was_compared_is_loaded(made: Made, copied: Path, loaded: list[bytes]) -> None:
    bundle = read_bundle(copied)
    model = torch_session.load(copied, check_files=False)
    for purpose in bundle.graphs:
        model.session(purpose)
    wanted = {bundle.files[graph.file].sha256 for graph in bundle.graphs.values()}
    assert {hashlib.sha256(content).hexdigest() for content in loaded} == wanted

    loaded.clear()
    path = copied / code_file(made)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for check_files in (True, False):
        with pytest.raises(BundleError, match=rf"{path.name}.* was changed"):
            torch_session.load(copied, check_files=check_files)
    path.unlink()
    with pytest.raises(BundleError, match=rf"{path.name}.* missing"):
        torch_session.load(copied, check_files=False)
    assert loaded == []


@DEPRECATED
@pytest.mark.parametrize("damage", ["half", "empty", "text", "another"])
def test_damaged_program_is_one_line(damage: str, made: Made, copied: Path) -> None:
    path = copied / code_file(made)
    content = path.read_bytes()
    if damage == "another" and made.format == PROGRAM:
        path.write_bytes((copied / "positions.pt2").read_bytes())
    elif damage == "another":
        torch.jit.save(torch.jit.script(torch.nn.Identity()), str(path))
    else:
        path.write_bytes({"half": content[: len(content) // 2], "empty": b"", "text": b"no archive" * 99}[damage])
    restate(copied, path.name)
    with pytest.raises(BundleError, match=rf"^[^\n]*{path.name}[^\n]*$"):
        torch_session.load(copied)


def test_forgotten_weights_give_no_numbers(made: Made) -> None:
    if made.format != PROGRAM:
        pytest.skip("TorchScript holds its weights")
    program = torch.export.load(made.folder / "generate.pt2")
    feeds = program.example_inputs[1]
    assert torch.isnan(program.module(check_guards=False)(**feeds)["logits"]).all()


def test_options_that_need_onnx_are_refused(ids_bundle: Converted, tmp_path: Path) -> None:
    fixed = FixedShapes.parse("segment=8")
    options = ConversionOptions.of(tokenizer="none", to=TORCHSCRIPT, dtype="int8", fixed=fixed, inline=True)
    with pytest.raises(OptionError, match=r"does not support --fixed and --set inline and --dtype"):
        convert(ids_bundle.source, tmp_path / "bundle", options)


def test_executorch_is_refused_without_fixed_shapes_trust_and_its_package(
    ids_bundle: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"needs fixed shapes\. Add --fixed, for example"):
        convert(ids_bundle.source, tmp_path / "bundle", ConversionOptions(tokenizer="none", to=EXECUTORCH))
    assert not [*tmp_path.iterdir()]

    folder = Path(shutil.copytree(ids_bundle.folder, tmp_path / "bundle"))
    bundle = read_bundle(folder)
    graphs = {name: dataclasses.replace(graph, format=EXECUTORCH) for name, graph in bundle.graphs.items()}
    write_manifest(folder, dataclasses.replace(bundle, graphs=graphs))
    with pytest.raises(BundleError, match=r"executorch, which needs PyTorch.* --trust.* --to onnx\.$"):
        open_bundle(folder)
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name != EXECUTORCH)
    with pytest.raises(MissingDependencyError, match=r"executorch not installed.*pip install executorch"):
        open_bundle(folder, trust=True)


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
def test_commands(bytes_bundle: Converted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = tmp_path / "bundle", tmp_path / "text.txt"
    text.write_text("Long documents are walked segment by segment.\n" * 3, "utf-8")
    assert (
        execute(["convert", str(bytes_bundle.checkpoint), "-o", str(folder), "--to", TORCHSCRIPT, "--segments", "4"])
        == 0
    )
    assert execute(["verify", str(folder), str(bytes_bundle.checkpoint), "--segments", "3", "--trust"]) == 0
    capsys.readouterr()
    assert execute(["score", str(folder), str(text)]) == 1
    assert "--trust" in capsys.readouterr().err
    assert execute(["bench", str(folder)]) == 1
    assert "use a command with --trust" in (refusal := capsys.readouterr().err)
    assert refusal.endswith("All other commands need a bundle of convert --to onnx.\n")
    nats = []
    for arguments in ([str(folder), "--trust"], [str(bytes_bundle.folder)]):
        assert execute(["score", *arguments, str(text), "--json"]) == 0
        nats.append(json.loads(capsys.readouterr().out)["nats"])
    np.testing.assert_allclose(nats[0], nats[1], rtol=1e-5)
    assert execute(["inspect", str(folder)]) == 0
    assert TORCHSCRIPT in capsys.readouterr().out


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
@DEPRECATED
@pytest.mark.parametrize("to", FORMATS)
def test_documented_programs(
    to: GraphFormat,
    bytes_bundle: Converted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the programs of docs/torch_formats.md unchanged."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/torch_formats.md").read_text("utf-8"), re.DOTALL)
    _, script, opened = blocks
    lines = script.splitlines(keepends=True)
    if to == PROGRAM:  # in place of the lines that open TorchScript
        (first,) = (number for number, line in enumerate(lines) if line.startswith("graphs = "))
        lines[first : first + 2] = [opened]
    convert(bytes_bundle.source, tmp_path / "model.bundle", ConversionOptions(to=to, segments=2))
    monkeypatch.chdir(tmp_path)
    Path("document.txt").write_text("A document that is a little longer than memory and segment are. " * 8, "utf-8")
    exec(compile("".join(lines), "docs/torch_formats.md", "exec"), {})
    model = xlruntime.load(bytes_bundle.folder, threads=1)
    (expected,) = model.score([Path("document.txt")], segment_len=128)
    np.testing.assert_allclose(float(capsys.readouterr().out), expected.nats, rtol=1e-5)


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("rule", ["band", "chunk", "paper"])
def test_reformers_of_every_rule(rule: str, to: GraphFormat, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    converted: ConvertedReformer = request.getfixturevalue(rule)
    report = convert(converted.source, tmp_path / "bundle", ConversionOptions(tokenizer="none", to=to)).report
    assert report.passed and report.overflow_mismatches in (0, None)
    ids = np.random.default_rng(4).integers(0, 30, 70)
    documents = [ids[:count] for count in (2, 3, 5, 6, 31, 70)]  # one token, and lengths around a chunk
    cuts: list[dict[str, Any]] = [{"segment_len": length, "batch_size": 2} for length in (1, 3, 17)]
    for settings in cuts if rule == "band" else [{}]:
        found, expected = (
            [total.nats for total in model.score(documents, **settings)]
            for model in (torch_session.load(tmp_path / "bundle"), converted.open())
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    if (rule, to) == ("band", TORCHSCRIPT):
        runs_alone(tmp_path / "bundle" / "graphs.pt")


def runs_alone(file: Path) -> None:
    """Check that a file opens where the operators of this package are not registered, and that loops are in it."""
    program = (
        "import sys, warnings, torch; warnings.simplefilter('ignore'); module = torch.jit.load(sys.argv[1]); "
        "text = str(module.score.graph); assert 'xlexport::' not in text and 'prim::Loop' in text; "
        "assert not any(name.startswith('xlexport') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True, cwd="/")


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_sort(T: int) -> tuple[Tensor, ...]:
    return ops.lsh_sort(random_buckets(2, 2, 3, T, count=5, seed=T))


def of_gather(T: int) -> Tensor:
    return ops.lsh_gather(draw(2, 2, T, 4, seed=T), random_buckets(2, 2, 2 * T, count=T))


def of_local(T: int) -> Tensor:
    position, sizes = torch.tensor([0, 5]), torch.tensor([T, 6])
    key, value = draw(2, 2, 3, 6 + T, 4, seed=T)
    return ops.local_attention(draw(2, 3, T, 4, seed=1), key, value, position, sizes, 3, 1)


@pytest.mark.parametrize("attend", [of_sort, of_gather, of_local])
@DEPRECATED
def test_scripts_compute_the_operators(attend: Callable[[int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the body that a trace records with the operator itself, for sizes around a block."""
    expected = [attend(T) for T in (1, 3, 4, 11)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.jit, "is_tracing", lambda: True)
        found = [attend(T) for T in (1, 3, 4, 11)]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# Each sample of bytes, encoding of positions and kind of vocabulary, in each format. The sample of BPE pieces has the
# layers of that of bytes, but takes twice as long.


SAMPLES = {path.parent.name: path for path in sorted(ROOT.glob("samples/*/checkpoint.pt"))}
OF_BYTES = [name for name in SAMPLES if name.endswith("_bytes")]
TRANSFORMER_XL: list[dict[str, Any]] = [
    {"encoding": "relative"},
    {"encoding": "shaw"},
    {"encoding": "sinusoidal", "mem_len": 0},
    {"encoding": "learned", "mem_len": 0},
    {"cutoffs": (10, 25), "div_val": 2, "tie_projs": (False, True, True), "d_embed": 12},
]
LSH = {"attn_layers": ("local", "lsh")}  # exports slowly; of all positions, only rotary ones are part of its attention
REFORMER: list[dict[str, Any]] = [
    {"position": "axial", **LSH},
    {"position": "axial_sum", "axial_dims": (BAND.d_model, BAND.d_model)},
    {"position": "absolute"},
    {"position": "sinusoid", "max_positions": 0},
    {"position": "rotary", "max_positions": 0, **LSH},
]
SEGMENTS = 7


def checkpoint(model: str | dict[str, Any], folder: Path) -> Path:
    """Return a sample, or write a tiny model with these settings."""
    if isinstance(model, str):
        return SAMPLES[model]
    made: Any
    if model in REFORMER:
        made = tiny_reformer(dataclasses.replace(BAND, n_token=256, **{"attn_layers": ("local",), **model}))
    else:
        made = tiny_model(n_token=256, **model)
    save_checkpoint(folder / "checkpoint.pt", made.config, made.state_dict())
    return folder / "checkpoint.pt"


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize(
    ("model", "to"),
    [
        pytest.param(*case, marks=[pytest.mark.release] * (case[0] not in (TRANSFORMER_XL[0], REFORMER[0])))
        for case in (
            *itertools.product([*OF_BYTES, *TRANSFORMER_XL, *REFORMER], ["onnx", *FORMATS]),
            ("transformer_xl_bpe", "onnx"),
            *itertools.product([TRANSFORMER_XL[0], REFORMER[0]], [EXECUTORCH]),  # a minute for each model
        )
    ],
    ids=str,
)
def test_equal_over_carried_memory(model: str | dict[str, Any], to: GraphFormat, tmp_path: Path) -> None:
    if to == EXECUTORCH:
        pytest.importorskip("executorch", reason="executorch is not installed, the extra executorch")
    segment_len = None if isinstance(model, str) else 5  # shorter than the parts that absolute places allow
    fixed = FixedShapes.parse("segment=5") if to == EXECUTORCH else None
    options = ConversionOptions.of(to=to, segment_len=segment_len, fixed=fixed, segments=SEGMENTS, threads=1)
    report = convert(load_checkpoint(checkpoint(model, tmp_path)), tmp_path / "bundle", options).report
    assert report.passed and report.segments >= SEGMENTS
    assert report.tokens > report.mem_len + report.segment_len  # every ring is written once round
    assert {graph.format for graph in read_bundle(tmp_path / "bundle").graphs.values()} == {to}
    if to == EXECUTORCH:
        check_executorch(tmp_path / "bundle")


def check_executorch(folder: Path) -> None:
    """Check that graphs of both lengths run in several threads at once, and that damaged files are one line."""
    model = torch_session.load(folder)
    assert model.session("score").providers == ["ExecuTorch"]
    ids = np.random.default_rng(0).integers(0, 256, 64)
    (whole,) = (total.nats for total in model.score([ids]))
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda _: next(iter(model.score([ids]))).nats, range(4))]
    assert found == [whole] * 4
    content = (folder / "graphs.pte").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no program" * 99):
        (folder / "graphs.pte").write_bytes(damaged)
        restate(folder, "graphs.pte")
        with pytest.raises(BundleError, match=r"^[^\n]*graphs\.pte[^\n]*$"):
            torch_session.load(folder)
