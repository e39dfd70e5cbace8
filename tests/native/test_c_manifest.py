"""Manifests, their settings and their files are read by the C runtime as by Python, with the same refusals."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliability.bundle_targets import seal
from reliability.damage import damage_bytes, damage_json
from tests.helpers.c_base import CRefusal, ask, outcome
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle
from tests.runtime.test_manifest_fields import CASES
from xlruntime import BundleError, OptionError
from xlruntime.bundle import MANIFEST, read_bundle
from xlruntime.bundle_files import BundleFiles
from xlruntime.evaluation import EvaluationSettings
from xlruntime.spec import Bundle

pytestmark = pytest.mark.native

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/bundle"))
SAMPLES = 1500  # damaged manifests


@pytest.fixture
def bundle_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle"))


def described(bundle: Bundle) -> dict[str, Any]:
    return {
        "fingerprint": bundle.fingerprint,
        "metadata": {purpose: graph.metadata(bundle.memory) for purpose, graph in bundle.graphs.items()},
        "guarded": list(bundle.guarded_files),
        "settings": bundle.settings.to_dict(),
    }


def without_detail(found: Any) -> Any:
    """Leave out the problem of a text that is not JSON: the parsers word it differently."""
    if isinstance(found, tuple):
        kind, message, repair = found
        return kind, message.partition("not valid JSON")[0], repair
    return found


@pytest.mark.parametrize("name", NAMES)
def test_golden_bundles(name: str) -> None:
    folder = golden_bundle(name)
    assert ask("bundle", folder=folder) == described(read_bundle(folder))


@pytest.mark.parametrize(("change", "said"), CASES, ids=[said[:40] for _, said in CASES])
def test_refusals_of_fields(change: Callable[[Any], Any], said: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    ours, theirs = (outcome(lambda: read_bundle(bundle_copy)), outcome(lambda: ask("bundle", folder=bundle_copy)))
    assert said in ours[1]
    if "10000000" in ours[1]:  # numbers beyond 64 bits are shown as the largest one
        assert theirs[0] == ours[0] and "vocab_size is " in theirs[1]
    else:
        assert theirs == ours


def setting(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["evaluation"]["settings"]["mem_len"].update(changes)


def evaluation(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["evaluation"].update(changes)


def ring(**changes: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["evaluation"]["rings"]["capacity"].update(changes)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "newer": lambda m: m.update(format_version=4),
    "much newer": lambda m: m.update(format_version=10**30),
    "older": lambda m: m.update(format_version=2),
    "older, quantized": lambda m: m.update(
        format_version=1, precision="int8", provenance={"sources": {"it's a/model.pt": ""}}
    ),
    "no version": lambda m: m.pop("format_version"),
    "version is true": lambda m: m.update(format_version=True),
    "version is a float": lambda m: m.update(format_version=3.0),
    "digest": lambda m: m.update(manifest_sha256="0" * 64),
    "digest is a number": lambda m: m.update(manifest_sha256=1),
    "digest is null": lambda m: m.update(manifest_sha256=None),
    "unknown field": lambda m: m.update(extra=1),
    "many problems": lambda m: m.update({str(number): 1 for number in range(20)}),
    "strange name": lambda m: m["evaluation"].update({"a b\n" * 20: 1}),
    "missing fields": lambda m: [m.pop(name) for name in ("config", "files", "memory")],
    "a list": lambda m: m.update(evaluation=[]),
    "kind": lambda m: m["tokenizer"].update(kind="words"),
    "kind is a list": lambda m: m["tokenizer"].update(kind=[]),
    "file of bytes": lambda m: m["tokenizer"].update(file="x"),
    "no file": lambda m: m.update(tokenizer={"kind": "vocabulary"}),
    "first_id": lambda m: m["tokenizer"].update(first_id=-1),
    "bytes beyond": lambda m: m["tokenizer"].update(first_id=3),
    "outside": lambda m: m["files"].update({"../x": m["files"]["weights.data"], "a\nb": m["files"]["weights.data"]}),
    "dots": lambda m: m["files"].update({"..": m["files"]["weights.data"], ".": m["files"]["weights.data"]}),
    "long name": lambda m: m["files"].update({"é" * 128: m["files"]["weights.data"]}),
    "longest name": lambda m: m["files"].update({"é" * 127 + "a": m["files"]["weights.data"]}),
    "unlisted": lambda m: m["graphs"]["score"].update(file="other.onnx"),
    "a description": lambda m: m["graphs"]["score"].update(file="README.md"),
    "digest of a file": lambda m: m["files"]["weights.data"].update(sha256="é" * 64),
    "size of a file": lambda m: m["files"]["weights.data"].update(size=-1),
    "size beyond": lambda m: m["files"]["weights.data"].update(size=2**63),
    "no score": lambda m: m["graphs"].update(other=m["graphs"].pop("score")),
    "a purpose": lambda m: m["graphs"].update({"detail_few": m["graphs"]["score"]}),
    "two suffixes": lambda m: m["graphs"].update({"detail_fixed_few": m["graphs"]["score"]}),
    "first value": lambda m: m["memory"][0].update(first_value="x"),
    "layout": lambda m: m["memory"][0].update(layout="queue"),
    "window": lambda m: m["memory"][0].update(layout="window", shape=["batch", 3, 2]),
    "flat window": lambda m: m["memory"][0].update(layout="window", shape=["batch", 3]),
    "free state": lambda m: m["memory"][0].update(layout="state"),
    "format": lambda m: m["graphs"]["score"].update(format="torchscript"),
    "own setting": lambda m: m["evaluation"]["settings"].update(restart=m["evaluation"]["settings"]["mem_len"]),
    "default": setting(default=0),
    "default is true": setting(default=True),
    "default is text": setting(default="5"),
    "off": setting(off=5),
    "no minimum": setting(minimum=None),
    "maximum": setting(maximum=2**31),
    "one value": setting(minimum=20, maximum=20, default=21),
    "boolean rows": setting(type="boolean", default=True),
    "rows": ring(rows="clamp_len"),
    "rows of nothing": ring(rows="none\u0000"),
    "limit": ring(same_length="mem_len"),
    "extra": ring(window_extra=2),
    "inputs": ring(offset="x", length=None, window=None),
    "whole": evaluation(whole=True),
    "reads_last": evaluation(reads_last=True),
    "restart": evaluation(restart=True),
    "positions": evaluation(max_positions=0, restart=True),
    "segment_len": evaluation(segment_len=0),
    "large segment_len": evaluation(segment_len=2**62),
    "first_memory": evaluation(first_memory="full"),
    "axis": lambda m: m["evaluation"]["rings"].update(segment=m["evaluation"]["rings"]["capacity"]),
    "twice": lambda m: m["memory"].append(m["memory"][0]),
    "config": lambda m: m["config"].update(deep=[[[{"a": [1.5, None, 10**40]}]]]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_more_changes(name: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, CHANGES[name])
    ours = outcome(lambda: described(read_bundle(bundle_copy)))
    assert outcome(lambda: ask("bundle", folder=bundle_copy)) == ours


def test_damaged_manifests() -> None:
    rng = random.Random(5)
    documents = [json.loads((golden_bundle(name) / MANIFEST).read_text("utf-8")) for name in NAMES]
    accepted = refused = 0
    for number in range(SAMPLES):
        document = dict(rng.choice(documents))
        document.pop("manifest_sha256")
        text = damage_json(document, rng, (100, 5000)).encode()
        if number % 5 == 0:
            text = damage_bytes(text, rng)
        ours = without_detail(outcome(lambda: described(Bundle.from_json(text, "some/bundle.json"))))  # noqa: B023
        theirs = without_detail(outcome(lambda: ask("manifest", text=text, where="some/bundle.json")))  # noqa: B023
        if isinstance(ours, tuple) and isinstance(theirs, tuple) and has_large_number(ours[1]):
            ours, theirs = ours[0], theirs[0]
        assert theirs == ours, text
        accepted, refused = accepted + isinstance(ours, dict), refused + (not isinstance(ours, dict))
    assert accepted > SAMPLES / 20 and refused > SAMPLES / 5


def has_large_number(message: str) -> bool:
    """Return whether a message shows a number beyond 2^62, which the C runtime shows as the largest one."""
    digits = "".join(mark if mark.isdigit() else " " for mark in message).split()
    return any(int(number) > 2**62 for number in digits if len(number) < 4000) or "..." in message


@pytest.mark.parametrize("name", NAMES)
def test_digest_of_the_manifest(name: str, tmp_path: Path) -> None:
    text = (golden_bundle(name) / MANIFEST).read_bytes()
    assert "manifest_sha256" in json.loads(text)
    ask("manifest", text=text, where="it")
    with pytest.raises(CRefusal, match="was changed since it was written"):
        ask("manifest", text=text.replace(b'"vocab_size": ', b'"vocab_size": 1'), where="it")


def test_digest_of_floats_and_odd_texts(bundle_copy: Path) -> None:
    """Seal a manifest with values that are hard to write, as `json.dumps` does."""
    manifest = json.loads((bundle_copy / MANIFEST).read_text("utf-8"))
    odd = [0.1, -0.0, 1e16, 1e-5, 1e22, 5e-324, 2**70, "\ud800é\x7f"]
    manifest["config"] = {"ü": odd, "\U0001f600": 1, "\uffff": 2}
    seal(bundle_copy, manifest)
    assert ask("bundle", folder=bundle_copy) == described(read_bundle(bundle_copy))


@pytest.mark.parametrize("damage", ["shorter", "changed", "missing", "folder", "description"])
def test_damaged_files(damage: str, bundle_copy: Path) -> None:
    weights, graph = bundle_copy / "weights.data", bundle_copy / "score.onnx"
    if damage == "shorter":
        os.truncate(weights, 100)
        graph.unlink()
    elif damage == "changed":
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
    elif damage == "missing":
        (bundle_copy / MANIFEST).unlink()
    elif damage == "folder":
        graph.unlink()
        graph.mkdir()
    else:
        (bundle_copy / "README.md").write_text("other")
    ours = outcome(lambda: described(read_bundle(bundle_copy)))
    assert outcome(lambda: ask("bundle", folder=bundle_copy)) == ours
    assert isinstance(ours, dict) == (damage == "description")


def test_no_bundle(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path, tmp_path / "file"):
        if folder.name == "file":
            folder.write_text("")
        ours = outcome(lambda: read_bundle(folder))  # noqa: B023
        assert ours[0] == "BundleNotFoundError"
        assert outcome(lambda: ask("bundle", folder=folder)) == ours  # noqa: B023


def test_replaced_files(bundle_copy: Path) -> None:
    files = BundleFiles(bundle_copy, read_bundle(bundle_copy))
    ask("replaced", folder=bundle_copy)
    shutil.copytree(golden_bundle(EMPTY), bundle_copy, dirs_exist_ok=True)  # written again, with the same content
    ask("replaced", folder=bundle_copy)
    (bundle_copy / "score.onnx").write_bytes(b"other")
    with pytest.raises(BundleError) as caught, files.unchanged():
        pass
    assert outcome(lambda: ask("replaced", folder=bundle_copy))[1] == caught.value.message
    (bundle_copy / "score.onnx").unlink()
    with pytest.raises(CRefusal, match=r"was replaced while it was open \(score.onnx differs\)\. Load it again\."):
        ask("replaced", folder=bundle_copy)


def evaluated(settings: EvaluationSettings) -> dict[str, Any]:
    capacity = settings.capacity() + 3
    return {
        "settings": settings.to_dict(),
        "rings": {
            symbol: [settings.rows(symbol), settings.window(symbol), settings.slots(symbol, capacity)]
            for symbol in settings.rules.rings
        },
        "inputs": settings.inputs(),
        "capacity": settings.capacity(),
        "most_rows": settings.most_rows,
        "widest_window": settings.widest_window,
        "max_segment": settings.max_segment(capacity),
        "segmentation_matters": settings.segmentation_matters,
        "longest_part": settings.longest_part,
        "longest_document": settings.longest_document,
    }


CHOICES: dict[str, list[Any]] = {
    "segment_len": [None, 1, 7, 0, -1, 2**30, 2**30 + 1],
    "restart": [None, True, False],
    "mem_len": [None, 0, 1, 30, 2**30 + 1, True],
    "same_length": [None, True, False, 1],
    "clamp_len": [None, -1, 0, 5],
    "n_hashes": [None, 1, 100],
    "other": [None, None, None, 1],
}


@pytest.mark.parametrize("name", NAMES)
def test_chosen_settings(name: str) -> None:
    folder, rng, accepted = golden_bundle(name), random.Random(6), 0
    bundle = read_bundle(folder)
    for _ in range(150):
        given = {key: rng.choice(values) for key, values in CHOICES.items() if rng.random() < 0.6}
        given = {key: value for key, value in given.items() if value is not None}
        if rng.random() < 0.8:  # only what the bundle has
            given = {key: given[key] for key in given if key in (*bundle.evaluation.settings, "segment_len", "restart")}
        try:
            ours: Any = evaluated(bundle.evaluation.choose(**given))
            accepted += 1
        except OptionError as error:
            ours = ("OptionError", error.message, error.repair or "")
        assert outcome(lambda: ask("choose", folder=folder, settings=given)) == ours, given  # noqa: B023
    assert accepted > 10


def test_settings_of_all_axes_of_shapes(tmp_path: Path) -> None:
    """Positions are limited: rules for restarts and for the longest document."""
    folder = Path(shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle"))
    for most, restart in itertools.product((None, 1, 5, 100), (False, True)):
        edit_manifest(folder, evaluation(max_positions=most, restart=restart))
        ours = outcome(lambda: evaluated(read_bundle(folder).settings))
        assert outcome(lambda: ask("choose", folder=folder, settings={})) == ours


def test_digest_of_a_large_file(tmp_path: Path) -> None:
    raw = random.Random(7).randbytes((1 << 20) * 3 + 17)
    (tmp_path / "large").write_bytes(raw)
    assert ask("digest", path=tmp_path / "large") == hashlib.sha256(raw).hexdigest()
    with pytest.raises(CRefusal, match="cannot be read"):
        ask("digest", path=tmp_path / "none")
