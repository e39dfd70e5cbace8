"""Bundles whose memories are integers with a scale a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from tests.helpers.bundles import Converted, convert_tiny
from tests.helpers.ids import random_ids
from tests.helpers.paths import BAND, golden_bundle
from xlexport.conversion_options import ConversionOptions
from xlexport.quantization.gate import log_probs
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlexport.verification import answers, verify
from xlexport.verification.answers import answers_of_graphs
from xlruntime import Model, load
from xlruntime.known_answers import KnownAnswers, walk
from xlruntime.memory import Memory

pytestmark = pytest.mark.full
OPTIONS = QuantizeOptions("int8", max_delta_bits=1.0, memory_dtype="int8", tokens=512, threads=1)
RING, SCALE = "memory_key_0", "memory_key_0_scale"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Return a bundle whose weight matrices are large enough to be quantized, with an empty first memory."""
    sizes = {"d_model": 24, "d_head": 12, "d_inner": 32, "clamp_len": 15}
    return convert_tiny(tmp_path_factory, "rings", ConversionOptions(), n_token=256, **sizes)


@pytest.fixture(scope="module")
def rounded(source: Converted, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("rings") / "int8"
    report = quantize(source.folder, folder, OPTIONS)
    assert (report.memory_dtype, report.memory_kept, report.kept) == ("int8", None, {})
    return load(folder, threads=1)


def test_memories_are_integers_with_a_scale_a_row(rounded: Model, source: Converted) -> None:
    exact = load(source.folder, threads=1)
    kinds = {entry.input: (entry.dtype, len(entry.shape)) for entry in rounded.bundle.memory}
    assert (kinds[RING], kinds[SCALE]) == (("int8", 4), ("float32", 3))
    assert len(kinds) == 2 * len(exact.bundle.memory)
    memory, wide = (model.new_memory(model.bundle.settings) for model in (rounded, exact))
    d_head = rounded.bundle.config["d_head"]
    assert memory.nbytes * 4 * d_head == wide.nbytes * (d_head + 4)
    for purpose in ("score", "generate", "detail"):
        nodes = [node.op_type for node in ir.load(rounded.folder / f"{purpose}.onnx").graph if node.domain]
        assert nodes.count("RelativeAttentionInt8") == rounded.bundle.config["n_layer"]
        assert set(nodes) == {"RelativeAttentionInt8", "QuantizeRows"}


def test_scores_are_near_and_the_bundle_verifies(rounded: Model, source: Converted) -> None:
    exact = load(source.folder, threads=1)
    ids = random_ids(90, seed=3, vocab_size=256)
    difference = np.abs(log_probs(rounded, ids) - log_probs(exact, ids))
    assert 0 < difference.max() <= 0.3  # as in test_quantize
    report = verify(rounded, source.source.build_model, ids, segments=4)
    assert report.passed
    assert report.max_abs_memory_diff > 0


@pytest.mark.parametrize("dtype", ["weight-int8", "weight-int4"])
@pytest.mark.release
def test_memories_are_integers_beside_blocks_of_weights(dtype: str, source: Converted, tmp_path: Path) -> None:
    ids, scores = random_ids(90, seed=3, vocab_size=256), list[npt.NDArray[np.float32]]()
    for memory_dtype in ("int8", "float32"):
        quantize(source.folder, tmp_path / memory_dtype, replace(OPTIONS, dtype=dtype, memory_dtype=memory_dtype))
        scores.append(log_probs(load(tmp_path / memory_dtype, threads=1), ids))
    assert 0 < np.abs(scores[0] - scores[1]).max() <= 0.3
    assert {entry.dtype for entry in load(tmp_path / "int8").bundle.memory} == {"int8", "float32"}


def test_known_answers_are_its_own(rounded: Model, source: Converted) -> None:
    before, after = KnownAnswers.read(load(source.folder)), KnownAnswers.read(rounded)
    assert before is not None and after is not None
    assert rounded.check().passed and 0.25 <= min(after.bounds) == max(after.bounds) < 1 and max(before.bounds) < 1e-3
    assert (after.tokens, after.settings) == (before.tokens, before.settings)
    assert after.log_probs != before.log_probs and len(after.memory) == 2 * len(before.memory)


def test_bound_of_known_answers_covers_what_rounding_moves(rounded: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the least bound away, and compare with noise of another seed."""
    bodies, before = load(rounded.folder, threads=1, ops="none"), KnownAnswers.read(rounded)
    assert before is not None
    monkeypatch.setattr(answers, "QUANTIZED_MEMORY", 1e-9)
    after, random = answers_of_graphs(bodies, before), np.random.default_rng(7)

    def noise(memory: Memory) -> None:
        for entry in memory.entries:
            if entry.dtype == "float32":
                memory.array(entry)[:] *= 1 + 1e-5 * random.standard_normal(memory.array(entry).shape, np.float32)

    scores, _ = walk(bodies, before.arrays(bodies.bundle)[0], before.settings, after_step=noise)
    change = np.abs(scores["log_prob"] - np.array(after.log_probs)).max()
    assert after.log_probs == before.log_probs and 1e-3 < change < after.bounds[0] < 1


def test_rows_restart_and_streams_are_restored(rounded: Model, tmp_path: Path) -> None:
    ids = random_ids(120, seed=5, vocab_size=256)
    stream = rounded.stream()
    stream.feed(ids[:70])
    stream.save(tmp_path / "stream.safetensors")
    again = rounded.restore(tmp_path / "stream.safetensors")
    np.testing.assert_array_equal(again.feed(ids[70:]).log_probs, stream.feed(ids[70:]).log_probs)
    alone = [piece.bits for (piece,) in (list(rounded.score([one])) for one in (ids[:50], ids[50:]))]
    together = [piece.bits for piece in rounded.score([ids[:50], ids[50:]], batch_size=2)]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("relative_attention", "their first rows are not zero (pre-LayerNorm with first_memory zeros)"),
        ("post_lnorm_zeros", "score.onnx has no operator RelativeAttention"),
        (BAND, "score.onnx has no operator RelativeAttention"),
    ],
)
def test_memories_that_stay_float32_are_named(name: str, why: str, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(map(str, random_ids(2100, seed=3, vocab_size=40))))
    texts = [ids] if load(golden_bundle(name)).bundle.tokenizer.kind == "none" else []
    report = quantize(golden_bundle(name), tmp_path / "out", OPTIONS, texts=texts, as_ids=bool(texts))
    assert (report.memory_dtype, report.memory_kept) == ("float32", why)
    assert "memories" not in report.kept
    assert {entry.dtype for entry in load(tmp_path / "out").bundle.memory} <= {"float32", "int32"}


def test_memories_can_be_kept(source: Converted, tmp_path: Path) -> None:
    report = quantize(source.folder, tmp_path / "out", replace(OPTIONS, keep_float=("memories",)))
    assert (report.memory_dtype, report.memory_kept, report.kept) == ("float32", "asked for", {})
    assert {entry.dtype for entry in load(tmp_path / "out").bundle.memory} == {"float32"}
