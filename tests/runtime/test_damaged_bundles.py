"""Bundles that were damaged or changed in a way that digests of files do not show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.helpers.manifests import edit_manifest
from tests.runtime.test_bundle_errors import refusal
from xlruntime import BundleError, Model, OptionError, TokenError, load
from xlruntime.bundle import digest_file, read_bundle
from xlruntime.spec import FIRST_MEMORY_FILE
from xlruntime.tokenizers.vocabulary import Vocabulary

Change = Callable[[dict[str, Any]], Any]


def seal(folder: Path, name: str) -> None:
    """Update the digest of a file in the manifest."""
    digest = digest_file(folder / name)
    edit_manifest(
        folder, lambda manifest: manifest["files"].update({name: {"sha256": digest.sha256, "size": digest.size}})
    )


@pytest.fixture
def sealed(bundle_copy: Path) -> Path:
    """Return a bundle whose manifest has its own digest, as every written manifest has."""
    (bundle_copy / "bundle.json").write_text(read_bundle(bundle_copy).to_json(), "utf-8")
    load(bundle_copy)
    return bundle_copy


def test_flipped_digit_in_the_manifest_is_noticed(sealed: Path) -> None:
    text = (sealed / "bundle.json").read_text("utf-8")
    for before, after in [('"mem_len": 12', '"mem_len": 13'), ('"clamp_len": -1', '"clamp_len": 11')]:
        assert before in text
        (sealed / "bundle.json").write_text(text.replace(before, after, 1), "utf-8")
        assert "was changed since it was written (its manifest_sha256 differs)" in refusal(sealed)


def test_flipped_letter_in_the_name_of_the_digest_is_noticed(sealed: Path) -> None:
    text = (sealed / "bundle.json").read_text("utf-8").replace("manifest_sha256", "manifest_sha257")
    (sealed / "bundle.json").write_text(text, "utf-8")
    assert "manifest_sha257 is unknown" in refusal(sealed)


def test_layout_of_the_manifest_does_not_matter(sealed: Path) -> None:
    manifest = json.loads((sealed / "bundle.json").read_text("utf-8"))
    (sealed / "bundle.json").write_text(json.dumps(dict(reversed(manifest.items()))), "utf-8")
    load(sealed)


def test_manifest_changed_on_purpose_is_read_without_the_digest(sealed: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["evaluation"]["settings"]["mem_len"]["default"] = 10

    edit_manifest(sealed, change)
    assert load(sealed).bundle.settings["mem_len"] == 10


def setting(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest["evaluation"]["settings"][name]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["evaluation"].update(whole="yes"), "evaluation.whole is 'yes', expected true or false"),
        (lambda m: m["evaluation"].update(segment_len=12.0), "evaluation.segment_len is 12.0, expected a whole number"),
        (lambda m: setting(m, "mem_len").update(default=True), "its default is True, expected a whole number"),
        (lambda m: setting(m, "mem_len").update(default=0), "its default is 0, expected 1 to"),
        (lambda m: setting(m, "mem_len").update(minimum=[]), "minimum is a list, expected a whole number or null"),
        (lambda m: setting(m, "mem_len").update(type="rune"), "type is 'rune', expected 'integer' or 'boolean'"),
        (lambda m: m["evaluation"]["rings"].clear(), "memory memory_key_0 is a ring over ['capacity'], expected one"),
        (lambda m: m["evaluation"]["rings"]["capacity"].update(rows="x\n"), "keeps 'x\\n' rows, which is not an"),
        (lambda m: m["memory"][0].update(layout="state"), "memory memory_key_0 is a state with free axes ['capacity']"),
        (lambda m: m["memory"][1]["shape"].append(None), "memory[1].shape[4] is None, expected a whole number or text"),
        (lambda m: m["memory"][0].update(layout="heap"), "layout is 'heap', expected 'ring' or 'window' or 'state'"),
        (lambda m: m["graphs"]["score"].update(file={}), "graphs.score.file is an object, expected text"),
        (lambda m: m["files"]["README.md"].update(size="1"), "files.'README.md'.size is '1', expected a whole number"),
        (lambda m: m["files"]["README.md"].update(sha256="x\n"), "expected a SHA-256 and a size"),
        (lambda m: m.update(vocab_size=1e300), "vocab_size is 1e+300, expected a whole number"),
        (lambda m: m.update(vocab_size=float("inf")), "vocab_size is inf, expected a whole number"),
        (lambda m: m.update(vocab_size=300), "vocab_size is 300, but the graphs know 256 tokens"),
        (lambda m: m.update(config="none"), "config is 'none', expected an object"),
        (lambda m: m.update(extra=1), "extra is unknown"),
        (lambda m: m.update(format_version=True), "no integer format_version"),
        (lambda m: m.update(format_version=10**4000), "format version 10000000000000000000 is newer"),
        (lambda m: m["tokenizer"].update(kind="runes"), "tokenizer.kind is 'runes', expected 'bytes' or 'vocabulary'"),
        (lambda m: m["tokenizer"].update(kind="vocabulary"), "with file None: only bytes and none have no file"),
        (lambda m: m["graphs"].pop("score"), "the graph 'score' is missing"),
        (lambda m: m["memory"].append({**m["memory"][0], "input": "x"}), "score graph does not take or return: 'x'"),
        (lambda m: m["files"].update({"a\nb": m["files"]["README.md"]}), "stay inside the bundle, found ['a\\nb']"),
        (lambda m: m["files"].update({"a" * 300: m["files"]["README.md"]}), "must stay inside the bundle"),
    ],
)  # fmt: skip
def test_manifest_of_other_kinds_is_refused(change: Change, said: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    message = refusal(bundle_copy)
    assert said in message
    assert message.isprintable()
    assert len(message) < 1000


def test_all_problems_are_reported_together(bundle_copy: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["architecture"], manifest["evaluation"]["segment_len"]
        manifest["vocab_size"] = None

    edit_manifest(bundle_copy, change)
    message = refusal(bundle_copy)
    for said in ("architecture is missing", "evaluation.segment_len is missing", "vocab_size is None"):
        assert said in message


@pytest.mark.parametrize("depth", [500, 100_000])
def test_deeply_nested_manifest_is_refused_or_read(depth: int, sealed: Path) -> None:
    text = (sealed / "bundle.json").read_text("utf-8")
    (sealed / "bundle.json").write_text(text.replace('"config": {', f'"config": {{"x": {"[" * depth}{"]" * depth}, '))
    assert re.search("not valid JSON|was changed", refusal(sealed))


@pytest.mark.parametrize("damage", ["cut", "shape", "missing", "infinite", "whole numbers"])
def test_invalid_first_rows_are_refused(damage: str, bundle_copy: Path) -> None:
    file = bundle_copy / FIRST_MEMORY_FILE
    rows = load_file(file)
    name = next(iter(rows))
    changed = {
        "shape": rows[name][:1],
        "infinite": np.full_like(rows[name], np.inf),
        "whole numbers": rows[name].astype(np.int32),
    }
    if damage == "missing":
        del rows[name]
    elif damage in changed:
        rows[name] = np.ascontiguousarray(changed[damage])
    save_file(rows, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    seal(bundle_copy, FIRST_MEMORY_FILE)
    message = refusal(bundle_copy)
    assert f"{FIRST_MEMORY_FILE}: {'damaged' if damage == 'cut' else 'no such rows'}" in message


def test_graph_that_fails_in_a_step_is_reported(bundle_copy: Path) -> None:
    """Remove the graph of positional keys, so that a step lacks inputs."""
    edit_manifest(bundle_copy, lambda manifest: manifest["graphs"].pop("positions"))
    with pytest.raises(BundleError, match=r"score\.onnx: ONNX Runtime cannot run it \(.*position_key"):
        load(bundle_copy).stream().feed("some text")


@pytest.mark.parametrize("setting", ["mem_len", "segment_len"])
def test_memory_larger_than_the_machine_is_refused(setting: str, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=r"would take [0-9.]+ GB, but this machine has [0-9.]+ GB\. Choose a smaller"):
        bytes_model.stream(**{setting: 1 << 30})


@pytest.mark.parametrize("symbol", ["a\nb" * 2000, [[[]]] * 900, {"a": 1}, 10**400, "\x1b[2J"])
@pytest.mark.parametrize("field", ["kind", "unk", "space", "lower_case"])
def test_messages_about_vocabularies_are_short(field: str, symbol: object) -> None:
    fields = {"format": "xlexport vocabulary", "kind": "words", "symbols": ["a", "b"], field: symbol}
    with pytest.raises(BundleError) as caught:
        Vocabulary.from_json(json.dumps(fields), "it")
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize("ids", [[1, True], [False, 2, 3], (True, 1)])
def test_booleans_are_not_ids(ids: list[int], bytes_model: Model) -> None:
    with pytest.raises(TokenError, match="found true or false among them"):
        list(bytes_model.score([ids]))
