"""Invalid fields of a manifest are refused when it is read, with a message of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import edit_manifest
from tests.runtime.test_bundle_errors import refusal
from xlruntime.bundle import read_bundle
from xlruntime.tensor_kinds import DTYPES

Manifest = dict[str, Any]


def output(manifest: Manifest, purpose: str, name: str) -> Manifest:
    found: Manifest = next(entry for entry in manifest["graphs"][purpose]["outputs"] if entry["name"] == name)
    return found


def memory(**changes: Any) -> Callable[[Manifest], None]:
    return lambda manifest: manifest["memory"][0].update(changes)


def both(*changes: tuple[str, str, str, Any]) -> Callable[[Manifest], None]:
    """Change fields of outputs: (purpose, output, field, value)."""

    def change(manifest: Manifest) -> None:
        for purpose, name, field, value in changes:
            output(manifest, purpose, name)[field] = value

    return change


# A bundle with two rings of shape (batch, 2, capacity, 7) over 256 tokens.
CASES: list[tuple[Callable[[Manifest], Any], str]] = [
    (memory(dtype="float8_e4m3fn"), "the dtype of memory_key_0 is 'float8_e4m3fn', expected one of float16, float32"),
    (memory(dtype="O"), "the dtype of memory_key_0 is 'O'"),
    (memory(dtype="datetime64"), "the dtype of memory_key_0 is 'datetime64'"),
    (memory(dtype="bfloat16"), "the dtype of memory_key_0 is 'bfloat16'"),
    (memory(dtype=""), "the dtype of memory_key_0 is ''"),
    (memory(dtype="str"), "the dtype of memory_key_0 is 'str'"),
    (memory(shape=[2, "capacity", 7]), "memory memory_key_0 has no axis 'batch' in front"),
    (memory(shape=[]), "memory memory_key_0 has no axis 'batch' in front"),
    (memory(shape=["batch", 2, 12, 7]), "memory memory_key_0 is a ring over [], expected one of ['capacity']"),
    (memory(shape=["batch", "batch", "capacity"]), "is a ring over ['batch', 'capacity']"),
    (memory(shape=["batch", 2, "capacity", -7]), "an axis of memory_key_0 is -7, expected a name or 1 to 2147483647"),
    (memory(shape=["batch", -2, "capacity", -7]), "an axis of memory_key_0 is -2"),
    (memory(shape=["batch", 2, "capacity", 0]), "an axis of memory_key_0 is 0"),
    (memory(shape=["batch", 2, "capacity", 2**31]), "an axis of memory_key_0 is 2147483648"),
    (memory(shape=["batch", 2, "", 7]), "an axis of memory_key_0 is ''"),
    (memory(input="a" * 5000), f"memory that the score graph does not take or return: '{'a' * 40}'."),
    (memory(input="memory_value_0", output="new_memory_value_0"), "memories share an input or output"),
    (lambda m: m["graphs"]["score"]["inputs"][0].update(dtype="complex64"), "is 'complex64', expected one of"),
    (lambda m: m["graphs"]["score"]["inputs"].append(m["graphs"]["score"]["inputs"][0]), "have the same name"),
    (lambda m: m["graphs"]["score"].update(max_segment=0), "max_segment is 0, expected a whole number of at least 1"),
    (lambda m: m["graphs"]["score"].update(max_segment=-1), "max_segment is -1"),
    (lambda m: output(m, "score", "log_prob").update(name="nats"), "the graph 'score' does not return log_prob"),
    (lambda m: output(m, "detail", "rank").update(name="ranks"), "the graph 'detail' does not return rank"),
    (lambda m: output(m, "generate", "logits").update(name="logit"), "the graph 'generate' does not return logits"),
    (both(("score", "log_prob", "dtype", "float64")), "log_prob of the graph 'score' is not float32 (batch, segment)"),
    (both(("score", "log_prob", "shape", ["segment", "batch"])), "log_prob of the graph 'score' is not float32"),
    (both(("score", "log_prob", "shape", ["batch"])), "log_prob of the graph 'score' is not float32"),
    (both(("detail", "rank", "dtype", "float32")), "rank of the graph 'detail' is not int64 (batch, segment)"),
    (both(("detail", "top_ids", "shape", ["batch", "segment", "k"])), "top_ids of the graph 'detail' is not int64"),
    (both(("detail", "top_ids", "shape", ["batch", "segment", 257])), "top_ids of the graph 'detail' is not int64"),
    (both(("generate", "logits", "shape", [1, 256])), "logits of the graph 'generate' is not float32 (batch, vocab"),
    (lambda m: m.update(tokenizer={"kind": "vocabulary", "file": ""}), "the tokenizer's file has no name"),
    (lambda m: m.update(vocab_size=0), "vocab_size is 0, expected 1 to 2147483647"),
    (lambda m: m.update(vocab_size=10**300), "vocab_size is 1000000"),
    (lambda m: m["evaluation"]["rings"].update(batch=m["evaluation"]["rings"]["capacity"]), "has the symbol 'batch'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CASES, ids=[said[:40] for _, said in CASES])
def test_field_that_no_bundle_can_have_is_refused(
    change: Callable[[Manifest], Any], said: str, bundle_copy: Path
) -> None:
    edit_manifest(bundle_copy, change)
    message = refusal(bundle_copy)
    assert said in message
    assert message.startswith(f"{bundle_copy / 'bundle.json'}: ")
    assert message.isprintable() and len(message) < 1000


def test_every_type_is_of_numpy_and_of_onnxruntime() -> None:
    import numpy as np

    from xlruntime.devices import Device
    from xlruntime.providers import device_value

    for dtype in DTYPES:
        assert device_value(np.zeros(2, dtype), Device("cpu")).numpy().dtype == np.dtype(dtype)


def test_manifest_that_would_take_much_memory_is_not_parsed(bundle_copy: Path) -> None:
    """Use empty lists, which need 31 times the memory of their text."""
    text = (bundle_copy / "bundle.json").read_text("utf-8")
    many = json.dumps([[]] * 500_000)
    (bundle_copy / "bundle.json").write_text(text.replace('"config": {', f'"config": {{"x": {many}, '))
    assert "bundle.json: reading it would take more than 67,108,864 bytes of memory" in refusal(bundle_copy)


def test_manifest_that_is_too_large_is_not_read(bundle_copy: Path) -> None:
    with (bundle_copy / "bundle.json").open("r+b") as file:
        file.truncate((1 << 26) + 1)
    assert "bundle.json: reading it would take more than" in refusal(bundle_copy)


def test_honest_manifests_pass(bundle_copy: Path) -> None:
    read_bundle(bundle_copy)
