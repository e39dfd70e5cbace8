"""Bundles that are broken, changed, of another format or missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.helpers.manifests import edit_manifest, seal
from tests.runtime.conftest import Golden
from xlexport.manifest import fingerprint
from xlruntime import BundleError, Model, OptionError, load
from xlruntime.bundle import FIRST_MEMORY_FILE, FORMAT, Bundle, FileDigest
from xlruntime.bundle_files import digest_file, is_bundle, read_bundle
from xlruntime.errors import (
    BundleDamagedError,
    BundleFormatError,
    BundleGraphError,
    BundleMismatchError,
    BundleNotFoundError,
)

Change = Callable[[dict[str, Any]], Any]


def listed_files(folder: Path) -> list[str]:
    return sorted(json.loads((folder / "bundle.json").read_text("utf-8"))["files"])


def refusal(folder: Path, error: type[Exception] = BundleError) -> str:
    """Return the message of a failed load; check that it is one line and begins with the place."""
    with pytest.raises(error) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert message.isprintable() and len(message) < 1000
    return message


@pytest.mark.parametrize("change", ["edited", "missing", "a folder"])
def test_descriptions_may_change(change: str, bundle_copy: Path) -> None:
    for name in ("README.md", "parity.json"):
        (bundle_copy / name).unlink()
        if change == "edited":
            (bundle_copy / name).write_text("Ours.\n", "utf-8")
        if change == "a folder":
            (bundle_copy / name).mkdir()
    load(bundle_copy)


def test_flipped_byte_in_any_file_is_noticed(bundle_copy: Path) -> None:
    for name in (*listed_files(bundle_copy), "bundle.json", "bundle.json.sha256"):
        path = bundle_copy / name
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
            message = refusal(bundle_copy, BundleDamagedError)
            if name.startswith("bundle.json"):
                assert "bundle.json: differs from the SHA-256 in bundle.json.sha256. Copy" in message
            else:
                assert re.search(rf"{name} was changed \(SHA-256 [0-9a-f]{{12}}…, expected [0-9a-f]{{12}}…\)", message)
        path.write_bytes(content)
    load(bundle_copy)


def test_expected_digest_is_compared(bundle_copy: Path) -> None:
    digest = digest_file(bundle_copy / "bundle.json").sha256
    assert load(bundle_copy, digest=digest).digest == load(bundle_copy).digest == digest
    with pytest.raises(BundleMismatchError, match=f"its SHA-256 is {digest}, expected '0000"):
        load(bundle_copy, digest="0" * 64, check_files=False)
    edit_manifest(bundle_copy, lambda manifest: manifest["document"].update(segment_len=9))
    load(bundle_copy)
    with pytest.raises(BundleMismatchError):
        read_bundle(bundle_copy, digest)


@pytest.mark.parametrize("kind", ["missing", "folder", "circle"])
def test_digest_that_is_no_file_counts_as_damage(kind: str, bundle_copy: Path) -> None:
    path = bundle_copy / "bundle.json.sha256"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)
    with pytest.raises(BundleDamagedError, match="differs from the SHA-256"):
        read_bundle(bundle_copy)


def test_missing_and_truncated_files_are_all_listed(bundle_copy: Path) -> None:
    (bundle_copy / "weights.data").unlink()
    (bundle_copy / "detail.onnx").unlink()
    (bundle_copy / "detail.onnx").mkdir()
    score = bundle_copy / "score.onnx"
    size = score.stat().st_size
    score.write_bytes(score.read_bytes()[:-1])
    message = refusal(bundle_copy, BundleDamagedError)
    for problem in (
        "weights.data is missing",
        "detail.onnx is missing",
        f"score.onnx has {size - 1} bytes, expected {size}",
    ):
        assert problem in message
    assert message.endswith("Copy it again, or convert the checkpoint again.")


def test_link_that_leaves_the_folder_is_refused(bundle_copy: Path) -> None:
    weights = bundle_copy / "weights.data"
    weights.rename(bundle_copy / "other.data")
    weights.symlink_to("other.data")
    load(bundle_copy)
    shutil.move(bundle_copy / "other.data", bundle_copy.parent / "other.data")
    weights.unlink()
    weights.symlink_to("../other.data")
    assert "weights.data is a link that leads out of the folder" in refusal(bundle_copy, BundleDamagedError)


def test_unchecked_bundle_that_cannot_be_loaded_is_refused(bundle_copy: Path) -> None:
    (bundle_copy / "score.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleGraphError, match=r"score\.onnx: not an ONNX graph \(no field has wire type 6"):
        load(bundle_copy, check_files=False)


def test_graphs_that_were_exchanged_are_refused(bundle_copy: Path) -> None:
    shutil.copyfile(bundle_copy / "detail.onnx", bundle_copy / "generate.onnx")
    opened = load(bundle_copy, check_files=False)
    with pytest.raises(BundleGraphError, match=r"generate\.onnx: its inputs and outputs are not those of bundle\.json"):
        opened.session("generate")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "no such folder. Make a bundle with"),
        ("bundel", "no such folder. Did you mean "),
        ("bundle/score.onnx", "a file, expected a bundle folder"),
        (".", "no bundle.json in it, so not a bundle"),
    ],
)
def test_path_that_is_not_a_bundle(path: str, message: str, bundle_copy: Path) -> None:
    folder = bundle_copy.parent / path
    assert message in refusal(folder, BundleNotFoundError) and issubclass(BundleNotFoundError, FileNotFoundError)
    assert is_bundle(bundle_copy) and not is_bundle(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[]", "its format is not an integer, so xlexport did not write it"),
        (b"{}", "its format is not an integer"),
        (b'{"format": "4"}', "its format is not an integer"),
        (b'{"format": true}', "its format is not an integer"),
        (b'{"format": %d}' % 10**4000, "the whole number 10000000000000000000 is beyond 64 bits"),
        (b'{"format": %d}' % FORMAT, "requires is missing; model is missing"),
    ],
)
def test_file_that_is_not_a_manifest_is_refused(content: bytes, message: str, bundle_copy: Path) -> None:
    seal(bundle_copy, content)
    assert message in refusal(bundle_copy, BundleFormatError)


@pytest.mark.parametrize("fields", [{"format_version": 3}, {"format": 6}])
def test_other_format_is_refused_before_anything_else(fields: dict[str, int], bundle_copy: Path) -> None:
    (bundle_copy / "bundle.json.sha256").unlink()
    (bundle_copy / "bundle.json").write_text(json.dumps(fields), "utf-8")
    (found,) = fields.values()
    message = f"{bundle_copy / 'bundle.json'}: is of format {found}, this xlruntime reads {FORMAT}. Convert the "
    command = f"checkpoint again: xlexport convert CHECKPOINT -o {bundle_copy}"
    assert refusal(bundle_copy, BundleFormatError) == message + command


def test_last_format_is_refused_with_the_command_that_rewrites_it(bundle_copy: Path) -> None:
    seal(bundle_copy, b'{"format": 4}')
    message = f"is of format 4, this xlruntime reads 5. Rewrite it: xlexport configure {bundle_copy} -o NEW"
    assert refusal(bundle_copy, BundleFormatError) == f"{bundle_copy / 'bundle.json'}: {message}"


def test_manifest_that_would_take_much_memory_is_not_parsed(bundle_copy: Path) -> None:
    """Use empty lists, which need 31 times the memory of their text."""
    edit_manifest(bundle_copy, lambda manifest: manifest["model"]["config"].update(x=[[]] * 500_000))
    assert "bundle.json: reading it would take more than 67,108,864 bytes of memory" in refusal(bundle_copy)


@pytest.mark.parametrize("damage", ["cut", "shape", "missing", "infinite", "whole numbers"])
def test_invalid_first_values_are_refused(damage: str, bundle_copy: Path) -> None:
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
    digest = vars(digest_file(file))
    edit_manifest(bundle_copy, lambda manifest: manifest["files"].update({FIRST_MEMORY_FILE: digest}))
    message = refusal(bundle_copy)
    assert f"{FIRST_MEMORY_FILE}: {'damaged' if damage == 'cut' else 'missing or misshapen rows'}" in message


@pytest.mark.parametrize("newer", ["1.99", "99.0.1"])
def test_bundle_that_needs_a_newer_onnxruntime_is_refused(newer: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda manifest: manifest["requires"].update(onnxruntime=newer))
    assert f"needs ONNX Runtime {newer} or newer, found 1." in refusal(bundle_copy, BundleFormatError)


@pytest.mark.parametrize("setting", ["mem_len", "segment_len"])
def test_memory_larger_than_the_machine_is_refused(setting: str, bytes_model: Model) -> None:
    message = r"would take [0-9.]+ GB, more than three quarters of this machine's [0-9.]+ GB\. Choose a smaller"
    with pytest.raises(OptionError, match=message):
        bytes_model.stream(**{setting: 1 << 30})


@pytest.mark.parametrize("name", ["post_lnorm_zeros", "pre_lnorm_empty", "reformer_band", "reformer_chunk"])
def test_manifest_there_and_back(name: str, golden: Golden) -> None:
    bundle = golden(name).bundle
    again = Bundle.from_json(bundle.to_json(), "it")
    assert again == bundle
    assert again.fingerprint == bundle.fingerprint
    assert json.loads(again.to_json()) == json.loads((golden(name).folder / "bundle.json").read_text("utf-8"))


def test_fingerprint_is_of_the_numbers_alone(bundle_copy: Path) -> None:
    bundle = read_bundle(bundle_copy)
    names = set(bundle.files)
    files = {**bundle.files, "words.json": digest_file(bundle_copy / "README.md")}
    assert bundle.fingerprint == fingerprint(files, bundle.graphs.values())
    for name in names:
        changed = {**files, name: FileDigest("0" * 64, 1)}
        assert fingerprint(changed, bundle.graphs.values()) != bundle.fingerprint
