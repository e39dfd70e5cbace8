"""Bundles of a Reformer: what `convert` publishes, its options, and the output of `inspect` and `bench`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch

from tests.conversion.test_convert import idle
from tests.helpers.tiny import PAPER, tiny_reformer
from xlexport.bench import bench
from xlexport.commands.convert import length_rows
from xlexport.commands.inspect import bundle_rows, checkpoint_object, checkpoint_rows
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError
from xlexport.families import architecture, workload_of
from xlexport.families.reformer.step import FEW
from xlexport.families.workload import StepSize
from xlexport.formats import load
from xlexport.verification import verify
from xlruntime import OptionError
from xlruntime import load as load_bundle
from xlruntime.bundle import Choice
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import save_checkpoint

if TYPE_CHECKING:
    from tests.helpers.bundles import ConvertedReformer

pytestmark = pytest.mark.full
IDS = np.random.default_rng(5).integers(0, 30, 700)


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.release
def test_graphs_of_whole_documents_have_feed_forward_blocks_in_chunks(tmp_path: Path) -> None:
    model = tiny_reformer(dataclasses.replace(PAPER, ff_chunk=5, attn_layers=("lsh",)))
    save_checkpoint(tmp_path / "checkpoint.pt", model.config, model.state_dict())
    options = ConversionOptions(tokenizer="none", threads=1)
    report = convert(load(tmp_path / "checkpoint.pt"), tmp_path / "bundle", options).report
    assert report.passed  # on documents whose lengths are no multiples of 5, too
    nodes = onnx.load(tmp_path / "bundle/score.onnx", load_external_data=False).graph.node
    (scan,) = (node for node in nodes if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert "Relu" in {node.op_type for node in body.node}
    assert "Relu" not in {node.op_type for node in nodes}


# What convert publishes.


def test_manifest_says_how_a_band_is_evaluated(band: ConvertedReformer) -> None:
    bundle = read_bundle(band.folder)
    assert (bundle.architecture, bundle.config, bundle.vocab_size) == ("reformer", band.model.config.to_dict(), 30)
    assert bundle.settings.to_dict() == {"segment_len": 8, "restart": False, "mem_len": 24, "n_hashes": 2}
    assert (bundle.evaluation.settings["n_hashes"].minimum, bundle.evaluation.settings["n_hashes"].maximum) == (1, 2)
    assert bundle.settings.window("capacity") == 25
    assert (bundle.evaluation.max_positions, bundle.evaluation.full_document) == (1024, False)
    assert not (band.folder / "first_memory.safetensors").exists()
    assert bundle.steps == {
        "score": (
            Choice("score_few", 16),
            Choice("score_fused", kernels=("LSHAttention",)),
            Choice("score_batched", device="accelerator"),
            Choice("score"),
        ),
        "generate": (Choice("generate", FEW.max_segment),),
        "detail": (
            Choice("detail_fused", kernels=("LSHAttention",)),
            Choice("detail_batched", device="accelerator"),
            Choice("detail"),
        ),
    }


def test_manifest_says_how_whole_documents_are_evaluated(chunk: ConvertedReformer) -> None:
    bundle = read_bundle(chunk.folder)
    assert bundle.settings.to_dict() == {"segment_len": 128, "restart": False, "n_hashes": 2}
    assert (bundle.evaluation.max_positions, bundle.evaluation.full_document) == (128, True)
    assert bundle.memory == ()


def test_readme_of_a_band(band: ConvertedReformer) -> None:
    readme = (band.folder / "README.md").read_text()
    assert (
        "4 layers (1 local, 2 lsh, 1 full), d_model 16, 2 heads of 6, LSH attention by rule band, "
        "2 rounds of 4×2 buckets, chunks of 4, vocabulary 30"
    ) in readme
    assert "Defaults: segment_len 8, mem_len 24, n_hashes 2. Documents have at most 1,024 tokens." in readme
    assert f"it would have chosen {band.report.bucket_flips:,} others" in readme
    assert f"in {band.report.overflow_fraction:.1%} of rounds" in readme


def test_readme_of_whole_documents(chunk: ConvertedReformer) -> None:
    readme = (chunk.folder / "README.md").read_text()
    assert "Each document is one step of at most 128 tokens. No memory is carried between documents." in readme
    assert f"over {chunk.report.segments} documents" in readme
    assert readme.count("memory") == 1  # it says that there is none, and nothing else


def test_scores_against_eager(band: ConvertedReformer, chunk: ConvertedReformer) -> None:
    """Compare a published bundle in the runtime with the eager model."""
    for converted, ids in ((band, IDS), (chunk, IDS[:129])):
        found = np.concatenate([one.log_probs for one in load_bundle(converted.folder).score_tokens([ids])])
        tokens = torch.from_numpy(ids[None])
        with torch.no_grad():
            hidden, _ = converted.model(tokens[:, :-1])
            wanted = converted.model.log_probs(hidden, tokens[:, 1:])[0].numpy()
        # A flipped bucket would show, but none of these few hashes is so close.
        assert np.abs(found - wanted).max() <= 2e-5


# Options.


@pytest.fixture
def reuse_band(band: ConvertedReformer, reuse_graphs: Callable[[Path], None]) -> None:
    """Make `convert` reuse the graphs of `band`."""
    reuse_graphs(band.folder)


@pytest.mark.release
def test_options_become_the_defaults_of_the_bundle(reuse_band: None, band: ConvertedReformer, tmp_path: Path) -> None:
    options = ConversionOptions.of(tokenizer="none", segment_len=16, mem_len=9, restart=True, segments=6)
    report = convert(band.source, tmp_path / "bundle", options).report
    assert (report.segments, report.tokens, report.segment_len, report.mem_len) == (6, 96, 16, 9)
    evaluation = read_bundle(tmp_path / "bundle").settings
    assert (evaluation.segment_len, evaluation["mem_len"], evaluation.restart) == (16, 9, True)
    documents = "Documents have at most 1,024 tokens; in longer ones position and memory are then reset."
    assert documents in (tmp_path / "bundle" / "README.md").read_text()
    assert dict(bundle_rows(read_bundle(tmp_path / "bundle"), tmp_path / "bundle"))["documents"] == (
        "of at most 1,024 tokens; longer ones begin again there"
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"clamp_len": 8},
            r"^--set clamp_len applies to Transformer-XL models only; .* is a Reformer\. Remove it\.$",
        ),
        (
            {"same_length": False, "clamp_len": 8},
            "--set same_length and --set clamp_len apply to Transformer-XL models only; ",
        ),
        (
            {"rule": "chunk", "mem_len": 8},
            "--mem-len applies to models that carry .* Reformer of rule chunk",
        ),
    ],
    ids=str,
)
def test_what_a_reformer_does_not_have_is_refused(
    options: dict[str, Any], what: str, band: ConvertedReformer, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=what):
        convert(idle(band.source), tmp_path / "bundle", ConversionOptions.of(tokenizer="none", **options))
    assert not list(tmp_path.iterdir())


def test_rule_and_rounds_are_refused_without_hashing(tmp_path: Path, band: ConvertedReformer) -> None:
    config = dataclasses.replace(band.model.config, attn_layers=("local",))
    source = dataclasses.replace(idle(band.source), config=config.to_dict())
    for options, name in (({"rule": "chunk"}, "--rule"), ({"n_hashes": 2}, "--set n_hashes")):
        with pytest.raises(
            ExportError,
            match=f"{name} applies to Reformers with LSH .* a Reformer.* without",
        ):
            convert(source, tmp_path / "bundle", ConversionOptions.of(tokenizer="none", **options))


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
def test_another_rule_and_more_rounds(chunk: ConvertedReformer, tmp_path: Path) -> None:
    """Check that the bundle notes the choices, the eager model follows them, and `verify` accepts the checkpoint."""
    told: list[str] = []
    options = ConversionOptions.of(tokenizer="none", rule="band", n_hashes=3, mem_len=20, segment_len=16, threads=1)
    report = convert(chunk.source, tmp_path / "bundle", options, tell=told.append).report
    report.require_passed()
    note = (
        "--rule band replaces the model's own rule of LSH attention, chunk, so the scores differ from the original "
        "model's."
    )
    assert {note, "3 rounds of hashing; the model was trained with 2."} <= set(told)
    assert note in (tmp_path / "bundle" / "README.md").read_text()
    model = load_bundle(tmp_path / "bundle", threads=1)
    assert (model.bundle.config["rule"], model.bundle.config["n_hashes"], model.bundle.settings["n_hashes"]) == (
        *("band", 3, 3),
    )
    verify(model, chunk.source.build_model, IDS, segments=5).require_passed()
    fewer = model.evaluation(n_hashes=1)
    verify(model, chunk.source.build_model, IDS, segments=5, evaluation=fewer).require_passed()
    with pytest.raises(OptionError, match="n_hashes is 4, expected 1 to 3"):
        model.evaluation(n_hashes=4)


def test_more_rounds_begin_with_those_of_the_model(band: ConvertedReformer) -> None:
    more = architecture("reformer").configured(band.model, {**band.model.config.to_dict(), "n_hashes": 4})
    own, other = dict(band.model.named_buffers()), dict(more.named_buffers())
    assert own.keys() == other.keys() == {"layers.1.attention.rotations", "layers.3.attention.rotations"}
    for name, rotations in own.items():
        assert other[name].shape[1] == 4
        assert torch.equal(other[name][:, :2], rotations)


# Output of other commands.


def test_rows_of_a_report(band: ConvertedReformer, chunk: ConvertedReformer) -> None:
    rows = dict(band.report.rows())
    assert rows["segments"] == "125 of 8 tokens, memory 24"
    assert rows["buckets the model alone would change"] == "0"
    fractions = band.report.overflow_fraction_per_layer
    assert fractions is not None
    overflow = ", ".join(f"{fraction:.2%}" for fraction in fractions)
    assert rows["overflow, by LSH layer"].startswith(f"{overflow} (not an error: ")
    flipped = dataclasses.replace(
        band.report,
        bucket_flips=1234,
        largest_flip_margin=1.2e-6,
        flip_effect_bits_per_token=-3e-5,
        overflow_mismatches=2,
    )
    rows = dict(flipped.rows())
    assert rows["buckets the model alone would change"] == "1,234, margin 1.2e-06 (≤ 0.0001), -3.0e-05 bits per token"
    assert rows["overflow counted otherwise"] == "in 2 places (= 0)"
    ((_, longest),) = length_rows(read_bundle(band.folder))
    assert longest.startswith("1,025 tokens; --restart begins longer ones again there. Models with rotary positions")
    rows = dict(chunk.report.rows())
    assert rows["documents"] == f"{chunk.report.segments}, of {chunk.report.tokens:,} tokens together"
    assert not {"segments", "largest memory difference", "overflow, by LSH layer"} & rows.keys()


def test_inspect_of_bundles(band: ConvertedReformer, chunk: ConvertedReformer, tmp_path: Path) -> None:
    rows = dict(bundle_rows(read_bundle(band.folder), band.folder))
    assert rows["layers"] == "4 layers (1 local, 2 lsh, 1 full): local, lsh, full, lsh"
    assert rows["LSH"] == "rule band, 2 rounds of 4×2 buckets"
    assert rows["LSH chunks"] == "4 tokens, 1 before"
    assert rows["local chunks"] == "3 tokens, 1 before"
    assert rows["segment, memory"] == "8, 24"
    assert rows["documents"] == "of at most 1,024 tokens"
    fractions = band.report.overflow_fraction_per_layer
    assert fractions is not None
    assert rows["overflow, by LSH layer"] == ", ".join(f"{fraction:.2%}" for fraction in fractions)
    # Three layers with rings of 32 slots of keys and values, a local one with 6 rows; bucket ids of two layers.
    size = 4 * (2 * 2 * 6 * (3 * 32 + 6) + 2 * 2 * 2 * 32)
    assert rows["memory of a stream"] == f"{size / 1e3:,.1f} kB in 10 tensors"
    rows = dict(bundle_rows(read_bundle(chunk.folder), chunk.folder))
    assert rows["documents"] == "whole, of at most 128 tokens"
    assert not {"segment, memory", "overflow, by LSH layer", "memory of a stream"} & rows.keys()
    assert "overflow, by LSH layer" not in dict(bundle_rows(read_bundle(band.folder), tmp_path))  # no parity.json


def test_inspect_of_a_checkpoint(band: ConvertedReformer) -> None:
    rows = dict(checkpoint_rows(band.source))
    assert rows["layers"] == "4 layers (1 local, 2 lsh, 1 full): local, lsh, full, lsh"
    assert (rows["segment_len"], rows["mem_len"]) == ("8", "24")
    assert not {"clamp_len", "same_length", "first memory"} & rows.keys()
    found = json.loads(json.dumps(checkpoint_object(band.source)))
    assert found["evaluation"] == {"segment_len": 8, "mem_len": 24}
    assert found["config"]["attn_layers"] == ["local", "lsh", "full", "lsh"]


@pytest.mark.parametrize(
    ("name", "segment_len"),
    [("band", 8), *(pytest.param(*rest, marks=pytest.mark.full) for rest in (("band", 40), ("chunk", 128)))],
)
@pytest.mark.release
def test_bench_against_the_eager_model(name: str, segment_len: int, request: pytest.FixtureRequest) -> None:
    converted: ConvertedReformer = request.getfixturevalue(name)
    checkpoint = converted.folder.parent / "checkpoint.pt"
    report = bench(converted.folder, against=checkpoint, segment_len=segment_len, threads=1, repeats=2, rounds=1)
    assert (report.segment_len, report.mem_len) == (segment_len, 24 if name == "band" else 0)
    assert report.tokens_per_second > 0 and report.eager_tokens_per_second is not None
    assert report.gflops > 0


@pytest.mark.release
def test_bench_with_fewer_rounds_of_hashing(band: ConvertedReformer) -> None:
    rounds = band.model.config.n_hashes
    checkpoint = band.folder.parent / "checkpoint.pt"
    reports = (bench(band.folder, against=checkpoint, n_hashes=n, threads=1, repeats=1, rounds=1) for n in (1, None))
    one, every = (report.gflops / report.tokens_per_second for report in reports)  # of one token
    assert rounds > 1 and one < every
    with pytest.raises(OptionError, match="n_hashes is 3, expected 1 to 2"):
        bench(band.folder, n_hashes=rounds + 1, threads=1, repeats=1, rounds=1)


def test_arithmetic_of_a_step_against_a_count_by_hand(band: ConvertedReformer) -> None:
    """Count 10 tokens on rings of 30 slots."""
    config = band.model.config.to_dict()
    local = 10 * 4 * 16 * 12 + 12 * 2 * (4 * 3) * (3 * 3)  # four blocks of three queries, with three chunks of keys
    lsh = 10 * 3 * 16 * 12 + 12 * (10 * 2 * 3) + 12 * 2 * 2 * (8 * 4) * 8  # in each round eight chunks of four rows
    full = 10 * 3 * 16 * 12 + 12 * 2 * 10 * 30
    rest = 4 * 10 * 2 * 16 * 20 + 10 * 32 * 30
    assert workload_of("reformer").flops(config, StepSize(3, 10, 30)) == 3 * 2 * (local + 2 * lsh + full + rest)
    local = 10 * 4 * 16 * 12 + 12 * 2 * 10 * (6 + 10)
    lsh = 10 * 3 * 16 * 12 + 12 * (10 * 2 * 3) + 12 * 2 * 10 * 2 * 4  # four keys for each round
    assert workload_of("reformer").flops(config, StepSize(1, 10, 30, few=True)) == 2 * (local + 2 * lsh + full + rest)
