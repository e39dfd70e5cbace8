"""Invalid fields of a manifest are refused when it is read, with a message of one line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.refusals import BASE, CONTRADICTIONS, PYTHON_ALONE
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import GOLDEN
from tests.runtime.test_bundle_errors import refusal
from xlruntime.bundle import DTYPES, EACH, Feed
from xlruntime.devices import Device
from xlruntime.errors import BundleFormatError
from xlruntime.providers import device_value

Manifest = dict[str, Any]
Change = Callable[[Manifest], Any]
MANIFEST = json.loads((GOLDEN / "pre_lnorm_same_length_zeros/bundle/bundle.json").read_text("utf-8"))


def at(*places: str | int, **changes: Any) -> Change:
    """Return a change of the object at these places of a manifest."""

    def change(manifest: Any) -> None:
        for place in places:
            manifest = manifest[place]
        manifest.update(changes)

    return change


memory, document = partial(at, "memory", 0), partial(at, "document")
model, tokenizer = partial(at, "model"), partial(at, "tokenizer")
ring, feed, files = partial(at, "rings", "capacity"), partial(at, "graphs", "score", "inputs"), partial(at, "files")
setting, graph, steps = partial(at, "settings"), partial(at, "graphs"), partial(at, "steps", "score", 0)


def output(purpose: str, name: str, **changes: Any) -> Change:
    return at("graphs", purpose, "outputs", name, **changes)


def dropped(purpose: str, name: str) -> Change:
    return lambda manifest: manifest["graphs"][purpose]["outputs"].pop(name)


def encoder(**changes: Any) -> Change:
    """Make it an encoder-decoder, whose graph `encode` has no outputs."""
    ids = {"source_len": 5, "pad": 0, "start": 1, "end": 2, **changes}
    encode = {**MANIFEST["graphs"]["positions"], "inputs": {"source": {"feed": "source"}}, "outputs": {}}

    def change(manifest: Manifest) -> None:
        manifest["document"].update(encoder=ids, max_positions=9)
        manifest["graphs"]["encode"] = encode

    return change


DIGEST = {"sha256": "0" * 64, "size": 1}
# A bundle with rings of shape (batch, 2, capacity, 7) over 256 tokens.
CASES: list[tuple[Change, str]] = [  # in addition to the contradictions of the conformance kit
    # types
    (lambda m: m.update(extra=1), "extra is unknown"),
    (model(config="none"), "model.config is 'none', expected an object"),
    (model(vocab_size="many"), "model.vocab_size is 'many', expected a whole number"),
    (model(vocab_size=1e300), "vocab_size is 1e+300, expected a whole number"),
    (model(vocab_size=True), "vocab_size is True, expected a whole number"),
    (document(full_document="yes"), "document.full_document is 'yes', expected true or false"),
    (ring(slots=[1, 1]), "rings.capacity.slots is a list, expected a list of 3"),
    (document(unknown=1), "document.unknown is unknown"),
    (document(fresh_memory="full"), "document.fresh_memory is 'full', expected 'empty' or 'zeros'"),
    (lambda m: m.update(memory=3), "memory is 3, expected a list"),
    (lambda m: m.update(graphs=[]), "graphs is a list, expected an object"),
    (
        lambda m: m["memory"][1]["shape"].append(None),
        "memory[1].shape[4] is None, expected a whole number from 1 to 2147483647 or a name",
    ),
    (graph("score", file={}), "graphs.score.file is an object, expected text"),
    (files(**{"score.onnx": {**DIGEST, "size": "1"}}), "files.'score.onnx'.size is '1', expected a whole number"),
    (files(**{"score.onnx": {**DIGEST, "sha256": "x\n"}}), "sha256 is 'x\\n', expected a SHA-256"),
    (tokenizer(kind="runes"), "tokenizer.kind is 'runes', expected 'bytes' or 'vocabulary'"),
    (tokenizer(first_id="2"), "tokenizer.first_id is '2', expected a whole number"),
    # requirements
    (lambda m: m["requires"].update(onnxruntime="new"), "onnxruntime is 'new', expected a version such as 1.24.1"),
    (lambda m: m["requires"]["domains"].update({"ai.xlexport": 2}), "that this xlruntime lacks: ai.xlexport 2"),
    # tokenizer
    (tokenizer(kind="none", first_id=1), "first_id of tokenizer 'none' is 1"),
    (tokenizer(first_id=1), "bytes have ids 1 to 256, but the vocabulary is 0 to 255"),
    (tokenizer(kind="vocabulary"), "with file None: only bytes and none have no file"),
    # documents and settings
    (setting("mem_len", value=True, minimum=None), "mem_len is not a number"),
    (
        setting("mem_len", maximum=2**40),
        "maximum is 1099511627776, expected a whole number from -1073741824 to 1073741824",
    ),
    (setting("mem_len", minimum=[]), "minimum is a list, expected a whole number from"),
    (setting("mem_len", value="12"), "value is '12', expected a whole number from"),
    # rings
    (ring(slots=[1, 1, 2**31]), "rings.capacity.slots[2] is 2147483648, expected a whole number from"),
    (ring(rows=[0, 0, -1]), "ring 'capacity' keeps -1 rows in 20 slots"),
    (ring(window_if="x\n"), "ring 'capacity' has a window if 'x\\n', no boolean setting"),
    (lambda m: m["rings"].update(batch=m["rings"]["capacity"]), "a ring has the symbol 'batch'"),
    (lambda m: m["rings"].clear(), "memory memory_key_0 is a ring over ['capacity'], expected one of []"),
    # memory
    (memory(dtype="float8_e4m3fn"), "memory[0].dtype is 'float8_e4m3fn', expected one of float16"),
    (memory(dtype=""), "memory[0].dtype is ''"),
    (memory(shape=[2, "capacity", 7]), "memory memory_key_0 has no axis 'batch' in front"),
    (memory(shape=[]), "memory memory_key_0 has no axis 'batch' in front"),
    (memory(shape=["batch", 2, 12, 7]), "memory memory_key_0 is a ring over [], expected one of ['capacity']"),
    (memory(shape=["batch", "a" * 999, "b" * 999]), "is a ring over ['aaaaaaaaaaaa...aaaaaaaaaaaaa', 'bbb"),
    (memory(shape=["batch", "batch", "capacity"]), "is a ring over ['batch', 'capacity']"),
    (memory(shape=["batch", 2, "capacity", -7]), "memory[0].shape[3] is -7, expected a whole number from 1 to"),
    (memory(shape=["batch", 2, "capacity", 0]), "memory[0].shape[3] is 0"),
    (memory(shape=["batch", 2, "", 7]), "memory[0].shape[2] is ''"),
    (memory(layout="state"), "memory memory_key_0 is a state with free axes ['capacity']"),
    (memory(layout="window", shape=["batch", 2]), "memory memory_key_0 is a window without rows"),
    (memory(input="a" * 5000), f"memory that the graph 'score' does not take: '{'a' * 40}'"),
    (memory(input="memory_value_0", output="new_memory_value_0"), "memories share an input or output"),
    # graphs
    (graph("score", fixed={"width": 3}), "the graph 'score' fixes axes that no step has: width"),
    (lambda m: m["steps"].pop("score"), "the graph 'score', or its step, is missing"),
    (lambda m: m["steps"].update(score=[]), "steps of 'score' have no graph that runs without kernels on every device"),
    (steps(graph="more"), "steps of 'score' name graphs that are missing: more"),
    (steps(graph="generate"), "the graph 'generate' does not return log_prob"),
    (steps(kernels=["LSHSort"]), "steps of 'score' have no graph that runs without kernels"),
    (steps(device="accelerator"), "steps of 'score' have no graph that runs without kernels"),
    (steps(device="gpu"), "steps.score[0].device is 'gpu'"),
    (steps(max_segment=0), "max_segment is 0, expected a whole number from 1 to 2147483647"),
    (lambda m: m.update(fingerprint="0"), "fingerprint is '0', expected a SHA-256"),
    (lambda m: m["graphs"].pop("positions"), "takes position_key_0, but nothing feeds it as constant"),
    (feed(more={"feed": "source"}), "the graph 'score' takes more, but nothing feeds it as source"),
    (feed(more={"feed": "tokens", "ring": None}), "inputs.more.ring is None, expected text"),
    (graph("positions", inputs={"tokens": {"feed": "tokens"}}), "the graph 'positions' takes tokens, but nothing"),
    (output("score", "log_prob", shape=["batch"]), "log_prob of the graph 'score' is not float32"),
    (output("detail", "rank", dtype="float32"), "rank of the graph 'detail' is not int64 (batch, segment)"),
    (output("detail", "top_ids", shape=["batch", "segment", "k"]), "top_ids of the graph 'detail' is not int64"),
    (output("detail", "top_ids", shape=["batch", "segment", 257]), "top_ids of the graph 'detail' is not int64"),
    (output("generate", "logits", shape=[1, 256]), "logits of the graph 'generate' is not float32 (batch, vocab_size)"),
    (dropped("detail", "rank"), "the graph 'detail' does not return rank"),
    (dropped("generate", "logits"), "the graph 'generate' does not return logits"),
    (
        lambda m: m["graphs"]["score"]["outputs"].update(new_memory_key_0={"dtype": "float32", "shape": []}),
        "the graph 'score' lists memory among its outputs: new_memory_key_0",
    ),
    # encoder
    (document(encoder={"source_len": 5, "pad": 0, "start": 1, "end": 2}), "found only one of them"),
    (encoder(end=1), "pad, start and end are not three different ids"),
    (encoder(end=256), "ids of the encoder are outside the vocabulary: end 256"),
    (encoder(source_len=0), "source_len is 0, expected a whole number from 1 to"),
    # files
    (files(**{"a\nb": DIGEST}), "stay inside the bundle, found ['a\\nb']"),
    (files(**{"a" * 300: DIGEST}), "must stay inside the bundle"),
    *((files(**{name: DIGEST}), f"found [{name!r}]") for name in ("../score.onnx", "/etc/passwd", "..", ".", "")),
    *((files(**{name: DIGEST}), f"found [{name!r}]") for name in ("a:b", "a\\b")),
    (graph("score", file="../score.onnx"), "files are used but have no digest: ../score.onnx"),
    (graph("score", file="README.md"), "files are used but have no digest: README.md"),
    (tokenizer(kind="tokenizers", file="/etc/passwd"), "files are used but have no digest: /etc/passwd"),
]


@pytest.mark.parametrize(("change", "said"), CASES, ids=[said[:60] for _, said in CASES])
def test_field_that_no_bundle_can_have_is_refused(change: Change, said: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    message = refusal(bundle_copy, BundleFormatError)
    assert said in message
    assert message.startswith(f"{bundle_copy / 'bundle.json'}: ")


REFUSED = {name: (change, "") for name, change in CONTRADICTIONS.items()} | PYTHON_ALONE


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_contradictions_of_the_conformance_kit_are_refused(change: Change, said: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / BASE / "bundle", tmp_path / "bundle"))
    edit_manifest(folder, change)
    assert re.search(said.removesuffix("$"), refusal(folder, BundleFormatError))


def test_all_problems_are_reported_together(bundle_copy: Path) -> None:
    def change(manifest: Manifest) -> None:
        del manifest["model"]["architecture"], manifest["document"]["segment_len"]
        manifest["model"]["vocab_size"] = None

    edit_manifest(bundle_copy, change)
    message = refusal(bundle_copy)
    for said in ("model.architecture is missing", "document.segment_len is missing", "model.vocab_size is None"):
        assert said in message


def test_every_type_is_of_numpy_and_of_onnxruntime() -> None:
    for dtype in DTYPES:
        assert device_value(np.zeros(2, dtype), Device("cpu")).numpy().dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    "fields",
    [
        ("input", "", "", "float32"),
        ("input", "", "", "", EACH),
        ("tokens", "", "", "int64"),
        ("tokens", "", "", "", EACH),
    ],
)
def test_inputs_of_the_caller_have_dtype_and_shape_and_no_others_have(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=f"the feed '{fields[0]}' has dtype"):
        Feed(*fields)
