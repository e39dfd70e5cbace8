"""The bundles that `convert` publishes: only verified ones."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.helpers.paths import CHUNK, EMPTY, GOLDEN, ROOT, golden_bundle
from tests.helpers.tiers import thinned
from tests.helpers.tiny import tiny_model
from tests.web_site.javascript import needs_node, prepared
from xlexport import __version__
from xlexport.bundle_readme import CARD, bundle_readme, how_to_run
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError, ParityError
from xlexport.families import Architecture, Step, architecture
from xlexport.families.transformer_xl.step import TransformerXLStep
from xlexport.formats import load
from xlexport.verification.text import verify_ids
from xlexport.verification.tolerances import LONG_TEXT
from xlruntime import OptionError, load_translator
from xlruntime import load as load_bundle
from xlruntime.bundle_files import digest_file, is_bundle, read_bundle
from xlruntime.evaluation import Ring
from xlruntime.known_answers import ANSWERS_FILE
from xltraining.checkpoint import save_checkpoint

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted, ConvertedReformer
    from xltraining.transformer_xl import TransformerXL

BOTH = ["bytes_bundle", "ids_bundle"]


# What convert publishes.


@pytest.mark.parametrize("name", [*BOTH, "band"])
@pytest.mark.full(cases=1)
def test_published_bundle_has_passed(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted | ConvertedReformer = request.getfixturevalue(name)
    report = converted.report
    assert report.passed
    assert report.first_segment_over_tolerance is None
    assert report.max_abs_log_prob_diff <= 2e-5
    assert report.max_abs_memory_diff <= 1e-5
    assert report.max_distribution_diff <= 1e-5
    assert (report.top1_agreement, report.overflow_mismatches or 0) == (1, 0)
    evaluation = read_bundle(converted.folder).settings
    assert report.segments == -(-LONG_TEXT // evaluation.segment_len) and report.tokens >= LONG_TEXT
    assert report.tokens == report.segments * evaluation.segment_len > 2 * evaluation.capacity()
    assert json.loads((converted.folder / "parity.json").read_text()) == report.to_dict()


@pytest.mark.parametrize("name", BOTH)
def test_manifest_says_what_was_converted(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted = request.getfixturevalue(name)
    bundle, config = read_bundle(converted.folder), converted.model.config
    assert (bundle.architecture, bundle.config, bundle.precision) == ("transformer_xl", config.to_dict(), "float32")
    assert bundle.vocab_size == config.n_token
    assert bundle.tokenizer.kind == name.removesuffix("_bundle").replace("ids", "none")
    values = {"mem_len": config.mem_len, "clamp_len": config.clamp_len, "same_length": config.same_length}
    assert bundle.settings.to_dict() == {"segment_len": config.tgt_len, "restart": False, **values}
    assert bundle.evaluation.fresh_memory == config.first_memory
    assert bundle.evaluation.rings == {"capacity": Ring((1, 0, 0), (1, 1, 0), (1, 0, 0), window_if="same_length")}
    sha256 = hashlib.sha256(converted.checkpoint.read_bytes()).hexdigest()
    assert bundle.provenance["format"] == "xltraining"
    assert bundle.provenance["sources"] == {"checkpoint.pt": sha256}
    assert {"xlexport", "torch", "onnx", "onnxscript", "onnx-ir", "python"} == bundle.provenance["versions"].keys()
    others = {"bundle.json", "bundle.json.sha256", "README.md", "parity.json"}
    inside = {path.name: digest_file(path) for path in converted.folder.iterdir()}
    assert others < inside.keys()
    assert bundle.files == {name: digest for name, digest in inside.items() if name not in others}
    readme = (converted.folder / "README.md").read_text()
    assert sha256 in readme
    assert f"{converted.report.max_abs_log_prob_diff:.2e} nats" in readme
    assert f"xlexport {__version__} converted it from `checkpoint.pt`" in readme


@pytest.mark.parametrize("name", [*BOTH, pytest.param("chunk", marks=pytest.mark.full)])
def test_program_in_the_readme_runs(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Path = request.getfixturevalue(name).folder
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    exec(program, {})
    assert float(capsys.readouterr().out) > 0


def test_readme_shows_fixed_sizes(bytes_bundle: Converted) -> None:
    bundle = read_bundle(bytes_bundle.folder)
    assert "fixed" not in bundle_readme(bundle, bytes_bundle.report)
    score = dataclasses.replace(bundle.graphs["score"], fixed={"batch": 1, "segment": 8})
    fixed = dataclasses.replace(bundle, graphs={**bundle.graphs, "score": score})
    assert "float32. Shapes are fixed: batch 1, segment 8; what" in bundle_readme(fixed, bytes_bundle.report)


def test_program_in_the_readme_translates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(GOLDEN / "encoder_decoder/translator")
    (program,) = re.findall(r"```(?:python|js)\n(.*?)```", how_to_run(read_bundle(Path())), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == next(iter(load_translator(Path()).translate(["A line."]))).text + "\n"


@pytest.mark.parametrize("name", [EMPTY, CHUNK])
@needs_node
@pytest.mark.native
def test_javascript_in_the_readme_gives_the_figure_of_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(golden_bundle(name))
    python, javascript = re.findall(r"```(?:python|js)\n(.*?)```", how_to_run(read_bundle(Path())), re.DOTALL)
    exec(python, {})
    (prepared(tmp_path) / "score.mjs").write_text(javascript, "utf-8")
    printed = subprocess.run(["node", tmp_path / "score.mjs"], capture_output=True, check=True, timeout=60).stdout
    assert float(printed) == pytest.approx(float(capsys.readouterr().out), rel=1e-5)


def test_first_rows_are_written_where_they_are_not_zero(bytes_bundle: Converted, ids_bundle: Converted) -> None:
    assert not (bytes_bundle.folder / "first_memory.safetensors").exists()
    written = load_file(ids_bundle.folder / "first_memory.safetensors")
    wanted = TransformerXLStep(ids_bundle.model).first_rows()
    assert written.keys() == wanted.keys()
    assert all(np.array_equal(written[name], row.numpy()) for name, row in wanted.items())


# Options.


@pytest.mark.full
def test_options_become_the_defaults_of_the_bundle(reuse_export: None, bytes_bundle: Converted, tmp_path: Path) -> None:
    options = ConversionOptions.of(segment_len=5, mem_len=9, clamp_len=4, same_length=True, segments=7)
    options = dataclasses.replace(options, licence=" CC-BY-4.0\n", data="all of\nenwik8")
    about = {"licence": "none", "held_out_bits_per_token": 1.5}  # of the checkpoint, which the options precede
    report = convert(dataclasses.replace(bytes_bundle.source, about=about), tmp_path / "bundle", options).report
    assert (report.segments, report.tokens, report.segment_len, report.mem_len) == (7, 35, 5, 9)
    chosen = {"segment_len": 5, "restart": False, "mem_len": 9, "clamp_len": 4, "same_length": True}
    assert read_bundle(tmp_path / "bundle").settings.to_dict() == chosen
    assert read_bundle(tmp_path / "bundle").fingerprint == read_bundle(bytes_bundle.folder).fingerprint
    provenance, readme = read_bundle(tmp_path / "bundle").provenance, (tmp_path / "bundle/README.md").read_text()
    assert [provenance[name] for name in CARD] == ["CC-BY-4.0", "all of enwik8", None]
    assert provenance["held_out_bits_per_token"] == 1.5
    assert read_bundle(bytes_bundle.folder).provenance["held_out_bits_per_token"] is None
    assert "Licence: CC-BY-4.0\n\nTraining data: all of enwik8\n\nThe author has not stated: intended use." in readme
    assert "has not stated: licence, training data, intended use." in (bytes_bundle.folder / "README.md").read_text()


def idle(source: SourceCheckpoint) -> SourceCheckpoint:
    """Return the same checkpoint with a model that must not be built."""
    return dataclasses.replace(source, build_model=lambda: pytest.fail("no work may begin"))


@pytest.mark.full
def test_tokenizer_file_becomes_part_of_the_bundle(reuse_export: None, bytes_bundle: Converted, tmp_path: Path) -> None:
    tokenizers, path = pytest.importorskip("tokenizers"), tmp_path / "words.json"
    words = ["[UNK]", "the", "of", "is", *(f"word{number}" for number in range(246))]
    model = tokenizers.models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    convert(bytes_bundle.source, tmp_path / "bundle", ConversionOptions(tokenizer=str(path), segments=3))
    path.unlink()
    assert (tmp_path / "bundle" / "tokenizer.json").is_file()
    stream = load_bundle(tmp_path / "bundle", threads=1).stream()
    assert [*stream.feed("the word7 is").tokens.tolist(), *stream.flush().tokens.tolist()] == [11, 3]


@pytest.mark.full
def test_text_to_verify_on(reuse_export: None, bytes_bundle: Converted, tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "bundle"
    text.touch()
    with pytest.raises(ExportError, match=r"text: the file is empty\. Use another text\.$"):
        convert(idle(bytes_bundle.source), output, ConversionOptions(text=text))  # before anything is exported
    text.write_bytes(b"a")
    with pytest.raises(ParityError, match=r"at least 2 are needed to compare\. Give a longer text"):
        convert(bytes_bundle.source, output, ConversionOptions(text=text))
    assert not output.exists()
    text.write_bytes(bytes(range(256)))
    report = convert(bytes_bundle.source, output, ConversionOptions(text=text)).report
    assert report.tokens == 255  # the whole text, as fewer than 1,000 are not enough to judge rounding
    assert read_bundle(output).provenance["verified_on"] == str(text)
    tokens = [json.loads((folder / ANSWERS_FILE).read_text())["tokens"] for folder in (output, bytes_bundle.folder)]
    assert tokens[0] == tokens[1]  # of the default text: a bundle has no tokens of its user's


def test_ids_to_verify_on(ids_bundle: Converted, tmp_path: Path) -> None:
    model = load_bundle(ids_bundle.folder, threads=1)
    ids = verify_ids(model.bundle, model.tokenizer, None)
    assert set(ids.tolist()) == set(range(20))
    assert np.array_equal(ids, verify_ids(model.bundle, model.tokenizer, None))
    with pytest.raises(ExportError, match=r"Add --ids .*, or leave out --text"):
        verify_ids(model.bundle, model.tokenizer, tmp_path)


# Bundles that `convert` does not publish.


@pytest.mark.release
def test_step_that_differs_is_not_published(
    bytes_bundle: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change one layer's positional projection by about 1 %, in graphs that are really exported."""

    def build_wrong_step(self: Architecture, model: TransformerXL) -> Step:
        step = TransformerXLStep(model)
        position = copy.deepcopy(model.get_submodule("layers.1.attention.position"))
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            weight = position.get_parameter("weight")
            weight.add_(1e-2 * torch.randn(weight.shape))
        step.layers[1].position = position
        return step

    monkeypatch.setattr(type(architecture("transformer_xl")), "build_step", build_wrong_step)
    with pytest.raises(ParityError, match="the graphs differ from the trained model: log-probabilities by up to"):
        convert(bytes_bundle.source, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


WEIGHTS = [
    *("word_emb.clusters.0.table", "head.clusters.0.bias"),
    *("layers.0.attention.qkv.weight", "layers.0.attention.position.weight"),
    *("layers.1.attention.output.weight", "layers.0.attention.content_bias", "layers.1.attention.position_bias"),
    *("layers.1.attention.norm.weight", "layers.0.feed_forward.inner.bias", "layers.1.feed_forward.outer.weight"),
    "layers.1.feed_forward.norm.bias",
]


@pytest.mark.full
def test_chosen_settings_stay_with_the_bundle(reuse_export: None, bytes_bundle: Converted, tmp_path: Path) -> None:
    source = dataclasses.replace(bytes_bundle.source, notes=("Segments are 8 tokens.", "The optimizer is left out."))
    told: list[str] = []
    convert(source, tmp_path / "bundle", ConversionOptions(segments=2), tell=told.append)
    assert set(source.notes) <= set(told)
    assert read_bundle(tmp_path / "bundle").provenance["notes"] == list(source.notes)
    readme = (tmp_path / "bundle" / "README.md").read_text()
    assert "Choices and omitted parts:\n\n- Segments are 8 tokens.\n- The optimizer is left out.\n" in readme
    assert "Choices" not in (bytes_bundle.folder / "README.md").read_text()


@pytest.mark.parametrize("weight", thinned(WEIGHTS, WEIGHTS[1:6:2]))
@pytest.mark.full
def test_other_weights_are_not_published(
    weight: str, reuse_export: None, bytes_bundle: Converted, tmp_path: Path
) -> None:
    """Change each tensor in turn: the graphs of one model must never pass as those of another."""

    def build_other_model() -> TransformerXL:
        model: TransformerXL = copy.deepcopy(bytes_bundle.source.build_model())  # it shares the source's tensors
        with torch.no_grad():
            model.get_parameter(weight).view(-1)[::7] += 1e-2
        return model

    other = dataclasses.replace(bytes_bundle.source, build_model=build_other_model)
    with pytest.raises(ParityError, match="Make sure that bundle and checkpoint belong together"):
        convert(other, tmp_path / "bundle", ConversionOptions(segments=5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.full(cases=1)
def test_failure_while_verifying_leaves_the_old_bundle(
    error: type[BaseException], reuse_export: None, bytes_bundle: Converted, tmp_path: Path
) -> None:
    convert(bytes_bundle.source, tmp_path / "bundle", ConversionOptions(segments=2))
    before = digest_file(tmp_path / "bundle" / "bundle.json")

    def fail(done: int, total: int) -> None:
        if done == 3:
            raise error

    with pytest.raises(error):
        convert(bytes_bundle.source, tmp_path / "bundle", force=True, progress=fail)
    assert digest_file(tmp_path / "bundle" / "bundle.json") == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    load_bundle(tmp_path / "bundle")


@pytest.fixture(params=[8, 40, 90, 100])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Simulate a disk of this many kB, which becomes full at different moments of the conversion."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "none", str(folder)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_nothing(reuse_export: None, bytes_bundle: Converted, small_disk: Path) -> None:
    assert sum(path.stat().st_size for path in bytes_bundle.folder.iterdir()) > 100 * 1024
    with pytest.raises(OSError, match="No space left on device"):
        convert(bytes_bundle.source, small_disk / "bundle", ConversionOptions(segments=2))
    assert not list(small_disk.iterdir())


# A model without memory.


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.release
def test_model_without_memory_scores_each_segment_alone(tmp_path: Path) -> None:
    model = tiny_model(mem_len=0)
    save_checkpoint(tmp_path / "checkpoint.pt", model.config, model.state_dict())
    source = load(tmp_path / "checkpoint.pt")
    report = convert(source, tmp_path / "bundle", ConversionOptions(tokenizer="none")).report
    assert report.passed

    S, bundle = model.config.tgt_len, load_bundle(tmp_path / "bundle", threads=1)
    ids = np.random.default_rng(3).integers(0, model.config.n_token, 5 * S + 1)
    found = bundle.stream().feed(ids).log_probs
    expected = []
    for start in range(0, 5 * S, S):
        tokens = torch.from_numpy(ids[None, start : start + S + 1])
        with torch.no_grad():
            hidden, _ = model(tokens[:, :-1])
            expected.append(model.log_probs(hidden, tokens[:, 1:])[0])
    assert np.abs(found - torch.cat(expected).numpy()).max() < 1e-5
    with pytest.raises(OptionError, match="a window of 0 keys in ring 'capacity', so a token would see no key"):
        bundle.stream(same_length=True)
    bundle.stream(same_length=True, mem_len=4).feed(ids)


# The numbered samples that need PyTorch.


FOLDER = ROOT / "samples"


@pytest.mark.full
def test_conversion_is_repeatable_and_verified(
    bytes_bundle: Converted,
    reuse_export: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Use a small checkpoint, because the sample's conversion takes half a minute; the demo's test runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xlexport.sample.sample_checkpoint", lambda: bytes_bundle.checkpoint)
    for _ in range(2):
        runpy.run_path(str(FOLDER / "01_convert.py"))
        assert "equal over 125 segments" in capsys.readouterr().out
        assert is_bundle(tmp_path / "bundle")


@pytest.mark.release
def test_reformer_scores_the_same_in_any_segments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    runpy.run_path(str(FOLDER / "11_reformer.py"))
    shown = capsys.readouterr().out
    assert "equal over 6 segments" in shown
    figures = [float(line.split(": ")[1].split()[0]) for line in shown.splitlines()[1:]]
    assert len(figures) == 4
    assert figures == pytest.approx([figures[0]] * 4, abs=1.5e-5)  # one step of the last printed digit
