"""Bundles of TorchScript and of exported programs: results equal those of ONNX, and files are checked before loading.

Results are compared within the tolerances of `verify`, because the orders of float32 sums differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import xlruntime
from tests.helpers.export_cache import cached_exports
from tests.helpers.paths import ROOT
from tests.helpers.tiers import thinned
from xlexport import torch_runtime as torch_session
from xlexport.bundles import open_bundle, write_manifest
from xlexport.commands import run
from xlexport.convert import ConversionOptions, convert
from xlexport.verification.parity import ParityReport
from xlexport.verification.tolerances import TOLERANCES
from xlruntime.bundle import Format
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.errors import BundleError, OptionError
from xlruntime.model import Model

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

TORCHSCRIPT: Format = "torchscript"
PROGRAM: Format = "exported-program"
FORMATS: Sequence[Format] = (TORCHSCRIPT, PROGRAM)
DEPRECATED = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
TOLERANCE = TOLERANCES["float32"]
LENGTHS = (1, 8, 3, 8, 8, 7, 2, 8, 8, 8)  # of segments, which write a ring of 28 slots twice


@dataclasses.dataclass(frozen=True)
class Made:
    """A bundle for PyTorch and the bundle of the same checkpoint for ONNX Runtime."""

    format: Format
    folder: Path
    report: ParityReport
    onnx: Converted

    def open(self) -> Model:
        return torch_session.load(self.folder)


@pytest.fixture(scope="module", params=thinned(FORMATS, [TORCHSCRIPT]))
def made(request: pytest.FixtureRequest, ids_bundle: Converted, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    with cached_exports():
        report = convert(ids_bundle.source, folder, ConversionOptions(tokenizer="none", to=request.param))
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


def test_convert_verifies_every_graph(made: Made) -> None:
    assert made.report.passed and made.report.segments >= 20 and made.report.detail_segments >= 20
    report = json.loads((made.folder / "parity.json").read_text("utf-8"))
    assert report["passed"] and report["max_abs_log_prob_diff"] <= TOLERANCE.log_prob


def test_same_contract(made: Made) -> None:
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
    import zipfile

    with zipfile.ZipFile(file) as archive:
        wanted = re.compile(r"/(data|constants|data/weights/weight)[^/]*/?\d+$|weight_\d+$")
        return b"".join(archive.read(name) for name in archive.namelist() if wanted.search(name))


def test_streams_are_scored_and_continued_alike(made: Made) -> None:
    ids = np.random.default_rng(3).integers(0, 20, 90)
    found, expected = made.open(), xlruntime.load(made.onnx.folder, threads=1)
    totals = [[total.nats for total in model.score([ids, ids[:40]], batch_size=2)] for model in (found, expected)]
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-5)
    greedy = xlruntime.Sampling(temperature=0)
    assert list(found.generate(ids, max_tokens=12, sampling=greedy)) == list(
        expected.generate(ids, max_tokens=12, sampling=greedy)
    )


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
    options = ConversionOptions.of(tokenizer="none", to=TORCHSCRIPT, dtype="int8", cuda_graphs=True)
    with pytest.raises(OptionError, match=r"does not support --set cuda_graphs=true and --dtype"):
        convert(ids_bundle.source, tmp_path / "bundle", options)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
def test_commands(bytes_bundle: Converted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = tmp_path / "bundle", tmp_path / "text.txt"
    text.write_text("Long documents are walked segment by segment.\n" * 3, "utf-8")
    assert (
        run(["convert", str(bytes_bundle.checkpoint), "-o", str(folder), "--to", TORCHSCRIPT, "--segments", "4"]) == 0
    )
    assert run(["verify", str(folder), str(bytes_bundle.checkpoint), "--segments", "3", "--trust"]) == 0
    capsys.readouterr()
    assert run(["score", str(folder), str(text)]) == 1
    assert "--trust" in capsys.readouterr().err
    assert run(["bench", str(folder)]) == 1
    assert "use a command with --trust" in (refusal := capsys.readouterr().err)
    assert refusal.endswith("All other commands need a bundle of convert --to onnx.\n")
    nats = []
    for arguments in ([str(folder), "--trust"], [str(bytes_bundle.folder)]):
        assert run(["score", *arguments, str(text), "--json"]) == 0
        nats.append(json.loads(capsys.readouterr().out)["nats"])
    np.testing.assert_allclose(nats[0], nats[1], rtol=1e-5)
    assert run(["inspect", str(folder)]) == 0
    assert TORCHSCRIPT in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@DEPRECATED
@pytest.mark.parametrize("to", FORMATS)
def test_documented_programs(
    to: Format,
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
    convert(bytes_bundle.source, tmp_path / "model.bundle", ConversionOptions(to=to, verify_segments=2))
    monkeypatch.chdir(tmp_path)
    Path("document.txt").write_text("A document that is a little longer than memory and segment are. " * 8, "utf-8")
    exec(compile("".join(lines), "docs/torch_formats.md", "exec"), {})
    model = xlruntime.load(bytes_bundle.folder, threads=1)
    (expected,) = model.score([Path("document.txt")], segment_len=128)
    np.testing.assert_allclose(float(capsys.readouterr().out), expected.nats, rtol=1e-5)
