"""Quantized graphs: their numbers against the original weights, shared weights, and the limit that they must meet."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import GOLDEN
from tests.helpers.tiers import thinned
from xlexport.choices import DTYPES
from xlexport.errors import OutputExistsError, ParityError, QuantizationError
from xlexport.quantization.dynamic_int8 import quantize_columns
from xlexport.quantization.gate import Difference, compare, log_probs, products_to_keep, strangeness
from xlexport.quantization.graphs import PRECISIONS, product_names
from xlexport.quantization.matmuls import find_products
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlexport.verification.tolerances import TOLERANCES, tolerance_of
from xlruntime import load
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.errors import BundleError, BundleNotFoundError

BYTES = GOLDEN / "post_lnorm_same_length_empty" / "bundle"  # nine products: four in each layer, and the head
FIRST_ROWS, OPERATORS = (GOLDEN / name / "bundle" for name in ("pre_lnorm_same_length_zeros", "relative_attention"))
TRANSFORMERS = [BYTES, FIRST_ROWS, OPERATORS]
BAND, CHUNK = GOLDEN / "reformer_band" / "bundle", GOLDEN / "reformer_chunk" / "bundle"
# Nats of any token in random models with large weights, where one rounded number matters more than in a trained model:
# three to five times the observed errors; a wrong weight in a product causes whole nats.
NEAR = {"int8": 0.3, "weight-int8": 0.2, "weight-int4": 3.0, "float16": 0.05}


def options(dtype: str, **changes: Any) -> QuantizeOptions:
    return QuantizeOptions(dtype, **{"max_delta_bits": 1.0, "tokens": 2048, "threads": 1, **changes})


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Path]:
    """Return `quantized(source, dtype)`, which makes each bundle once; tests do not change it."""
    made: dict[tuple[Path, str], Path] = {}
    ids = tmp_path_factory.mktemp("ids") / "ids.txt"

    def make(source: Path, dtype: str) -> Path:
        if (source, dtype) not in made:
            output = tmp_path_factory.mktemp("quantized") / dtype
            texts = []
            if read_bundle(source).tokenizer.kind == "none":
                ids.write_text(" ".join(map(str, random_ids(2100, seed=3, vocab_size=40))))
                texts = [ids]
            quantize(source, output, options(dtype), texts=texts, as_ids=bool(texts))
            made[source, dtype] = output
        return made[source, dtype]

    return make


# Weights.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.full
def test_graphs_share_each_weight_once(dtype: str, quantized: Callable[[Path, str], Path]) -> None:
    folder = quantized(BYTES, dtype)
    bundle = read_bundle(folder)
    places: dict[str, tuple[int | None, int | None]] = {}
    held: dict[str, ir.DataType] = {}
    for graph in bundle.graphs.values():
        for name, value in ir.load(folder / graph.file).graph.initializers.items():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                assert places.setdefault(name, (tensor.offset, tensor.length)) == (tensor.offset, tensor.length)
                assert tensor.offset % tensor.dtype.itemsize == 0
                held[name] = tensor.dtype
    assert sum(length or 0 for _, length in places.values()) == (folder / "weights.data").stat().st_size
    # Quantized weights have no float32 copy, except the head, whose rows embed tokens.
    left = {name for name, kind in held.items() if kind == ir.DataType.FLOAT}
    products = {name for name in product_names(BYTES, read_bundle(BYTES)) if name.startswith("layers.")}
    assert len(products) == 8
    assert not {f"{name}.weight{turned}" for name in products for turned in ("", ".T")} & left


@pytest.mark.full
def test_int8_weights_are_those_of_the_float32_graph(quantized: Callable[[Path, str], Path]) -> None:
    folder = quantized(BYTES, "int8")
    found = ir.load(folder / "score.onnx").graph.initializers
    for product in find_products(ir.load(BYTES / "score.onnx")):
        integers, step = (found[f"{product.name}.{part}"].const_value.numpy() for part in ("int8", "step"))
        wanted, wanted_step = quantize_columns(product.read())
        assert np.array_equal(integers, wanted) and np.array_equal(step, wanted_step)


# What is published.


@pytest.mark.parametrize("dtype", thinned(DTYPES, ["int8"]))
@pytest.mark.parametrize(
    "source", thinned([*TRANSFORMERS, BAND, CHUNK], [OPERATORS]), ids=lambda path: path.parent.name
)
def test_scores_are_near_those_of_float32(source: Path, dtype: str, quantized: Callable[[Path, str], Path]) -> None:
    folder = quantized(source, dtype)
    model, exact = load(folder, threads=1), load(source, threads=1)
    ids = random_ids(90, seed=3, vocab_size=min(exact.bundle.vocab_size, 256))
    difference = np.abs(log_probs(model, ids) - log_probs(exact, ids))
    # A rounded hash may fall into another bucket. Then a few tokens attend elsewhere, which is correct.
    share = 0.9 if exact.bundle.architecture == "reformer" else 1.0
    assert 0 < np.quantile(difference, share) <= NEAR[dtype]
    drawn = list(model.generate(ids[:20], max_tokens=5))
    assert len(drawn) == 5


def test_manifest_says_what_was_done(quantized: Callable[[Path, str], Path]) -> None:
    folder = quantized(BYTES, "int8")
    bundle, exact = read_bundle(folder), read_bundle(BYTES)
    assert (bundle.precision, bundle.config, bundle.evaluation) == ("int8", exact.config, exact.evaluation)
    assert bundle.fingerprint != exact.fingerprint
    said = bundle.provenance["quantization"]
    assert said == json.loads((folder / "quantization.json").read_text())
    assert (said["dtype"], said["products"], said["kept"], said["tokens"]) == ("int8", 9, {}, 2048)
    assert said["float32_fingerprint"] == exact.fingerprint
    assert said["weights_bytes"] == (folder / "weights.data").stat().st_size < said["float32_weights_bytes"]
    (text,) = said["text"]
    assert len(text["sha256"]) == 64 and text["bytes"] > 100_000
    unlisted = {"bundle.json", "bundle.json.sha256", "README.md", "parity.json", "quantization.json"}
    assert {path.name: digest_file(path) for path in folder.iterdir() if path.name not in unlisted} == bundle.files
    assert {entry.dtype for entry in bundle.memory} == {"float32"}


def test_int8_rows_do_not_depend_on_their_neighbours(quantized: Callable[[Path, str], Path]) -> None:
    """Compare exactly: each row has its own scale, and the order of sums is the same for all rows."""
    model = load(quantized(BYTES, "int8"), threads=1)
    ids = [random_ids(60, seed=3, vocab_size=256), np.full(60, 7), random_ids(60, seed=3, vocab_size=100)]
    alone = [piece.bits for (piece,) in (list(model.score([one])) for one in ids)]
    together = [piece.bits for piece in model.score(ids, batch_size=3)]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_int8_scores_do_not_depend_on_segments(quantized: Callable[[Path, str], Path]) -> None:
    model = load(quantized(BYTES, "int8"), threads=1)
    ids = random_ids(60, seed=3, vocab_size=256)
    (whole,), (parts,) = model.score([ids], segment_len=30), model.score([ids], segment_len=4)
    # Sums in another order can round a number to the next step.
    assert parts.bits_per_token == pytest.approx(whole.bits_per_token, abs=2e-3)


def test_states_near_the_end_of_float16_are_refused(tmp_path: Path) -> None:
    source = Path(shutil.copytree(BYTES, tmp_path / "bundle"))
    (source / "parity.json").write_text('{"state_ranges": {"cell": 20000.0, "hidden": 1.0}}')
    with pytest.raises(QuantizationError, match=r"the state cell reached 2e\+04 in the text .* float16 ends at 65,504"):
        quantize(source, tmp_path / "half", options("float16", memory_dtype="float16"))
    assert not (tmp_path / "half").exists()


@pytest.mark.parametrize("source", [BYTES, OPERATORS], ids=lambda path: path.parent.name)
@pytest.mark.parametrize("memory_dtype", ["float32", "float16"])
@pytest.mark.full
def test_float16_dtypes(memory_dtype: str, source: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    quantize(source, tmp_path / "half", options("float16", memory_dtype=memory_dtype), tell=lines.append)
    assert "float16 is for CUDA; on a CPU it gives correct results, but slowly" in lines
    model = load(tmp_path / "half", threads=1)
    assert {entry.dtype for entry in model.bundle.memory} == {memory_dtype}
    assert model.bundle.graphs["positions"].outputs["position_key_0"].dtype == "float16"
    assert model.bundle.graphs["detail"].outputs["log_prob"].dtype == "float32"
    ids = random_ids(60, seed=3, vocab_size=256)
    difference = log_probs(model, ids) - log_probs(load(source, threads=1), ids)
    assert 0 < np.abs(difference).max() <= NEAR["float16"]
    graph = ir.load(tmp_path / "half" / "score.onnx").graph
    assert {node.inputs[0].dtype for node in graph if node.op_type == "Softmax"} == {ir.DataType.FLOAT16}
    assert not [node for node in graph if node.op_type == "Cast" and node.inputs[0] in graph.inputs]
    stream = model.stream()
    stream.feed(ids[:30])
    stream.save(tmp_path / "stream.safetensors")
    again = model.restore(tmp_path / "stream.safetensors")
    np.testing.assert_array_equal(again.feed(ids[30:]).log_probs, stream.feed(ids[30:]).log_probs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.release
def test_rotations_stay_as_they_are(dtype: str, quantized: Callable[[Path, str], Path]) -> None:
    """Check the rotations, because rounded ones would choose other keys."""
    exact = ir.load(BAND / "score.onnx").graph.initializers
    found = ir.load(quantized(BAND, dtype) / "score.onnx").graph.initializers
    rotations = [name for name, value in exact.items() if len(value.shape or ()) == 3]
    assert rotations
    for name in rotations:
        np.testing.assert_array_equal(found[name].const_value.numpy(), exact[name].const_value.numpy())


# The gate.


def spoil(folder: Path, layer: int, large: float = 1e4) -> None:
    """Add a hidden unit to a layer that is always large and never read.

    The model computes the same as before, but in int8 all other units become zero next to this one.
    """
    files = {}
    for purpose in ("score", "generate", "detail"):
        path = folder / f"{purpose}.onnx"
        model = ir.load(path)
        outer = list(find_products(model))[4 * layer + 3]
        for name, row, number in ((f"layers.{layer}.inner.bias", 0, large), (str(outer.weight.name), 0, 0.0)):
            value = model.graph.initializers[name]
            array = np.array(value.const_value.numpy())
            array[row] = number
            value.const_value = ir.tensor(array, name=name)
        ir.save(model, path)
        files[path.name] = dataclasses.asdict(digest_file(path))
    edit_manifest(folder, lambda manifest: manifest["files"].update(files))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BYTES, tmp_path / "copied"))


@pytest.mark.release
def test_outlier_layer_is_found_and_kept(copied: Path, tmp_path: Path) -> None:
    spoil(copied, 1)
    outer = product_names(copied, read_bundle(copied))[7]
    report = quantize(copied, tmp_path / "out", options("int8", max_delta_bits=0.02))
    assert list(report.kept) == [outer]
    assert report.kept[outer].startswith("alone it moves log-probabilities by ")
    assert abs(report.delta_bits_per_token) <= 0.02
    graph = ir.load(tmp_path / "out" / "score.onnx").graph
    assert graph.initializers[f"{outer}.weight.T"].dtype == ir.DataType.FLOAT
    assert f"{outer}.int8" not in graph.initializers
    exact, model = load(copied, threads=1), load(tmp_path / "out", threads=1)
    ids = random_ids(90, seed=3, vocab_size=256)
    assert np.abs(log_probs(model, ids) - log_probs(exact, ids)).max() <= NEAR["int8"]
    spoilt = quantize(copied, tmp_path / "all", options("int8", max_delta_bits=10))
    assert spoilt.kept == {} and abs(spoilt.delta_bits_per_token) > 0.02


@pytest.mark.full
def test_gate_fails_closed(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(QuantizationError, match=r"1e-09 allowed; keeping 4 of 9 weight matrices in float32, .*: still"):
        quantize(BYTES, tmp_path / "out", options("weight-int4", max_delta_bits=1e-9), tell=lines.append)
    assert not list(tmp_path.iterdir())
    assert any("measuring each weight matrix alone" in line for line in lines)


@pytest.mark.full
def test_graphs_are_compared_in_segments_of_one_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a form for few tokens: with the roundings of other segments, hashes of float16 choose other keys."""
    source = shutil.copytree(BAND, tmp_path / "band")
    edit_manifest(source, lambda fields: fields["document"].update(segment_len=24))
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(map(str, random_ids(2100, seed=3, vocab_size=40))))
    monkeypatch.setattr("xlexport.quantization.run.GRAPHS_AGREE", 1e-5)
    quantize(source, tmp_path / "out", options("float16"), texts=[ids], as_ids=True)


@pytest.mark.full
def test_products_of_keep_float_stay_float32(tmp_path: Path) -> None:
    report = quantize(BYTES, tmp_path / "out", options("weight-int8", keep_float=("head*", "layers.1.o*")))
    assert report.kept == dict.fromkeys(("layers.1.output", "layers.1.outer", "head.clusters.0"), "asked for")


def difference(delta: float) -> Difference:
    return Difference(1, 1.0, delta, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("needed", [0, 1, 2, 3, 4])
def test_fewest_products_are_kept_worst_first(needed: int) -> None:
    names = [f"p{index}" for index in range(10)]
    effects = {name: float(index) for index, name in enumerate(names)}  # p9 is the worst
    worst = names[::-1][:needed]

    def measure(keep: frozenset[str]) -> Difference:
        return difference(0.0 if keep >= set(worst) else -1.0)  # a gain of the same size is not better

    kept, found = products_to_keep(names, frozenset(), 0.5, measure, effects.__getitem__, lambda line: None)
    assert list(kept) == worst
    assert found.delta_bits_per_token == 0


@pytest.mark.full
def test_text_that_is_strange_to_the_model_is_named(
    copied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = quantize(copied, tmp_path / "unknown", options("weight-int8"))
    assert not caplog.messages  # nothing is known of a held-out text, and half of the weights change
    assert 2 * report.changed_bytes == report.float32_weights_bytes
    edit_manifest(copied, lambda fields: fields["provenance"].update(held_out_bits_per_token=5))
    quantize(copied, tmp_path / "strange", options("weight-int8"))
    line = f"this text is strange to the model: {report.bits_per_token:.2f} bits per token, 5.00 on its held-out text. "
    assert caplog.messages == [f"{line}On its own kind of text quantization may cost more; give --text for yours"]
    two_bits = np.full(9, -2 * np.log(2), np.float32)
    said = [strangeness(two_bits, {"held_out_bits_per_token": bits}) is not None for bits in (1.61, 1.59, "1", None)]
    assert said == [False, True, False, False]


@pytest.mark.parametrize("delta", [1.0, float("nan")])
def test_more_than_half_is_refused(delta: float) -> None:
    names = ["a", "b", "c", "d"]
    with pytest.raises(QuantizationError, match="keeping 2 of 4 weight matrices"):
        products_to_keep(
            names, frozenset("a"), 0.5, lambda keep: difference(delta), lambda name: 1.0, lambda line: None
        )


def test_nan_does_not_pass() -> None:
    exact = np.array([-1.0, -2.0], np.float32)
    assert compare(exact, exact).within(1e-9)
    assert not compare(exact, np.array([-1.0, np.nan], np.float32)).within(1.0)


# Refusals, which write nothing.


@pytest.mark.parametrize(
    ("source", "changes", "texts", "what"),
    [
        (BYTES, {"max_delta_bits": 0.0}, [], "max_delta_bits is 0, expected a number above 0"),
        (BYTES, {"max_delta_bits": float("nan")}, [], "max_delta_bits is nan, expected a number above 0"),
        (BYTES, {"memory_dtype": "float16"}, [], "memory_dtype is float16, which does not go with dtype int8"),
        (
            BYTES,
            {"keep_float": ("layers.9.*",)},
            [],
            r"keep_float is layers.9.\*, but the weight matrices are ",
        ),
        (BYTES, {}, ["short"], "short: 78 tokens, at least 2,048 are needed"),
        (BYTES, {}, ["absent"], "absent: no such file"),
        (BAND, {}, [], "the bundle takes token ids, so a real text for it must be given as token ids"),
        (BAND, {}, ["short"], "takes token ids"),
        (GOLDEN / "late_reader" / "bundle", {}, [], "takes token ids"),
    ],
    ids=str,
)
def test_refusals(source: Path, changes: dict[str, Any], texts: list[str], what: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"It was the best of times, it was the worst of times, it was the age of reason.")
    with pytest.raises((QuantizationError, FileNotFoundError), match=what):
        quantize(source, tmp_path / "out", options("int8", **changes), texts=[tmp_path / name for name in texts])
    assert [path.name for path in tmp_path.iterdir()] == ["short"]


@pytest.mark.full
def test_quantized_damaged_and_missing_bundles_are_refused(
    copied: Path, quantized: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    with pytest.raises(QuantizationError, match=r"is already int8. Quantize the float32 bundle"):
        quantize(quantized(BYTES, "int8"), tmp_path / "out", options("int8"))
    with pytest.raises(BundleNotFoundError):
        quantize(tmp_path / "absent", tmp_path / "out", options("int8"))
    spoilt = bytearray((copied / "weights.data").read_bytes())
    spoilt[100] ^= 1
    (copied / "weights.data").write_bytes(spoilt)
    with pytest.raises(BundleError, match=r"weights.data was changed"):
        quantize(copied, tmp_path / "out", options("int8"))
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


def test_weights_with_several_hard_links_are_refused(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "another").hardlink_to(copied / "weights.data")
    with pytest.raises(QuantizationError, match=r"weights\.data: has several hard links\. Copy the bundle"):
        quantize(copied, tmp_path / "out", options("int8"))
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_existing_output_is_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError):
        quantize(BYTES, copied, options("int8"))
    assert read_bundle(copied) == read_bundle(BYTES)
    quantize(BYTES, copied, options("int8"), force=True)
    assert read_bundle(copied).precision == "int8"
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


@pytest.mark.full
def test_numbers_too_large_for_float16_stay_float32(copied: Path, tmp_path: Path) -> None:
    spoil(copied, 0, large=1e6)
    quantize(copied, tmp_path / "out", options("float16"))
    exact, model = load(copied, threads=1), load(tmp_path / "out", threads=1)
    ids = random_ids(90, seed=3, vocab_size=256)
    assert np.abs(log_probs(model, ids) - log_probs(exact, ids)).max() <= NEAR["float16"]


def test_tolerances_by_precision(quantized: Callable[[Path, str], Path]) -> None:
    assert tuple(PRECISIONS) == DTYPES
    assert TOLERANCES.keys() == {"float32", *PRECISIONS}
    assert tolerance_of(read_bundle(BYTES)) == TOLERANCES["float32"]
    found = tolerance_of(read_bundle(quantized(BYTES, "int8")))
    assert found == dataclasses.replace(TOLERANCES["int8"], delta_bits_per_token=2.0)  # twice the limit
    with pytest.raises(ParityError, match="precision 'int3' is not one of"):
        tolerance_of(dataclasses.replace(read_bundle(BYTES), precision="int3"))


def test_bundle_without_products_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1 2 3 " * 1000)
    with pytest.raises(QuantizationError, match="has no weight matrices"):
        quantize(
            GOLDEN / "late_reader" / "bundle", tmp_path / "out", options("int8"), texts=[tmp_path / "ids"], as_ids=True
        )
    assert [path.name for path in tmp_path.iterdir()] == ["ids"]
