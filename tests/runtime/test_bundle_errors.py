"""Bundles that are broken, changed, too new or missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import edit_manifest
from xlruntime import BundleError, BundleNotFoundError, Model, load
from xlruntime.bundle import changed_descriptions, is_bundle, read_bundle
from xlruntime.spec import FORMAT_VERSION, Bundle

Change = Callable[[dict[str, Any]], Any]


def listed_files(folder: Path) -> list[str]:
    return sorted(json.loads((folder / "bundle.json").read_text("utf-8"))["files"])


def refusal(folder: Path, error: type[Exception] = BundleError) -> str:
    """Return the message of a failed load; check that it is one line and begins with the place."""
    with pytest.raises(error) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def test_every_file_is_listed(bundle_copy: Path) -> None:
    on_disk = sorted(path.name for path in bundle_copy.iterdir() if path.name != "bundle.json")
    assert listed_files(bundle_copy) == on_disk
    assert {"score.onnx", "weights.data", "first_memory.safetensors", "parity.json"} <= set(on_disk)


DESCRIPTIONS = ["README.md", "parity.json"]


@pytest.mark.parametrize("change", ["edited", "empty", "missing", "a folder"])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_may_change(name: str, change: str, bundle_copy: Path) -> None:
    """Check that people may edit or delete what no program runs; the manifest still shows that it changed."""
    path, bundle = bundle_copy / name, read_bundle(bundle_copy)
    assert changed_descriptions(bundle_copy, bundle) == {}
    size = path.stat().st_size
    if change == "edited":
        path.write_text(f"{path.read_text('utf-8')}More.\n", "utf-8")
    else:
        path.unlink()
        if change == "empty":
            path.touch()
        if change == "a folder":
            path.mkdir()
    load(bundle_copy)
    assert read_bundle(bundle_copy) == bundle
    found = {"edited": f"has {size + 6} bytes, expected {size}", "empty": f"has 0 bytes, expected {size}"}
    assert changed_descriptions(bundle_copy, bundle) == {name: f"{name} {found.get(change, 'is missing')}"}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_description_cannot_be_a_file_that_is_used(name: str, bundle_copy: Path) -> None:
    """Check that nothing without a guarding digest is run or read as part of the model."""
    shutil.copyfile(bundle_copy / "score.onnx", bundle_copy / name)
    edit_manifest(bundle_copy, lambda manifest: manifest["graphs"]["score"].update(file=name))
    assert f"files are used but have no digest: {name}" in refusal(bundle_copy)
    edit_manifest(bundle_copy, lambda manifest: manifest["graphs"]["score"].update(file="score.onnx"))
    edit_manifest(bundle_copy, lambda manifest: manifest.update(tokenizer={"kind": "vocabulary", "file": name}))
    assert f"files are used but have no digest: {name}" in refusal(bundle_copy)


def test_flipped_byte_in_any_file_that_is_used_is_noticed(bundle_copy: Path) -> None:
    assert set(DESCRIPTIONS) < set(listed_files(bundle_copy))
    for name in set(listed_files(bundle_copy)) - set(DESCRIPTIONS):
        path = bundle_copy / name
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
            message = refusal(bundle_copy)
            assert re.search(rf"{name} was changed \(SHA-256 [0-9a-f]{{12}}…, expected [0-9a-f]{{12}}…\)", message)
        path.write_bytes(content)
    load(bundle_copy)


def test_missing_and_truncated_files_are_all_listed(bundle_copy: Path) -> None:
    (bundle_copy / "weights.data").unlink()
    (bundle_copy / "detail.onnx").unlink()
    score = bundle_copy / "score.onnx"
    size = score.stat().st_size
    score.write_bytes(score.read_bytes()[:-1])
    message = refusal(bundle_copy)
    for problem in (
        "weights.data is missing",
        "detail.onnx is missing",
        f"score.onnx has {size - 1} bytes, expected {size}",
    ):
        assert problem in message
    assert message.endswith("Copy it again, or convert the checkpoint again.")


def test_folder_in_the_place_of_a_file_is_refused(bundle_copy: Path) -> None:
    (bundle_copy / "score.onnx").unlink()
    (bundle_copy / "score.onnx").mkdir()
    assert "score.onnx is missing" in refusal(bundle_copy)


def test_unchecked_bundle_that_cannot_be_loaded_is_refused(bundle_copy: Path) -> None:
    (bundle_copy / "score.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"score\.onnx: not an ONNX graph \(no field has wire type 6"):
        load(bundle_copy, check_files=False)


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder. Make a bundle with" in refusal(tmp_path / "absent", BundleNotFoundError)


def test_file_instead_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.touch()
    assert "a file, expected a bundle folder" in refusal(path, BundleNotFoundError)
    assert not is_bundle(path)


def test_folder_without_a_manifest(bundle_copy: Path) -> None:
    assert is_bundle(bundle_copy)
    (bundle_copy / "bundle.json").unlink()
    assert "no bundle.json in it, so not a bundle" in refusal(bundle_copy, BundleNotFoundError)
    assert not is_bundle(bundle_copy)
    with pytest.raises(FileNotFoundError):
        load(bundle_copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[]", "no integer format_version"),
        (b"{}", "no integer format_version"),
        (b'{"format_version": "1"}', "no integer format_version"),
        (b'{"format_version": %d}' % FORMAT_VERSION, "a field is missing or malformed"),
    ],
)
def test_file_that_is_not_a_manifest_is_refused(content: bytes, message: str, bundle_copy: Path) -> None:
    (bundle_copy / "bundle.json").write_bytes(content)
    assert message in refusal(bundle_copy)


def test_newer_format_is_refused_before_anything_else(bundle_copy: Path) -> None:
    (bundle_copy / "bundle.json").write_text(f'{{"format_version": {FORMAT_VERSION + 1}}}', "utf-8")
    message = refusal(bundle_copy)
    assert f"format version {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}" in message
    assert "Install a newer xlexport" in message


def test_older_format_is_refused_before_anything_else(bundle_copy: Path) -> None:
    (bundle_copy / "bundle.json").write_text('{"format_version": 1}', "utf-8")
    message = refusal(bundle_copy)
    assert f"format version 1 is of an earlier xlexport, this one reads {FORMAT_VERSION}" in message
    assert message.endswith(f"Convert the checkpoint again: xlexport convert CHECKPOINT -o {bundle_copy} --force")


def test_older_format_is_refused_with_the_line_that_makes_it_again(bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda manifest: manifest.update(format_version=2, precision="int8"))
    assert refusal(bundle_copy).endswith(
        f"Convert the checkpoint again: xlexport convert CHECKPOINT -o {bundle_copy} --force --dtype int8"
    )


FIELDS = sorted(json.loads(next(Path(__file__).parents[1].glob("golden/*/bundle/bundle.json")).read_text("utf-8")))


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ("format_version", "manifest_sha256")])
def test_missing_field_is_named(field: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda manifest: manifest.pop(field))
    assert f"a field is missing or malformed ({field} is missing)" in refusal(bundle_copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(vocab_size="many"),
        lambda manifest: manifest.update(memory=3),
        lambda manifest: manifest.update(graphs=[]),
        lambda manifest: manifest["evaluation"].update(unknown=1),
        lambda manifest: manifest["evaluation"]["settings"]["mem_len"].update(default=0),
        lambda manifest: manifest["evaluation"].update(segment_len="8"),
        lambda manifest: manifest["evaluation"].pop("settings"),
        lambda manifest: manifest["memory"][0].pop("shape"),
        lambda manifest: manifest["graphs"]["score"].pop("file"),
        lambda manifest: manifest["graphs"]["score"]["inputs"][0].pop("name"),
        lambda manifest: manifest["files"]["score.onnx"].pop("size"),
        lambda manifest: manifest["tokenizer"].update(first_id="2"),
        lambda manifest: manifest["tokenizer"].update(first_id=-1),
        lambda manifest: manifest["evaluation"].update(restart=True),
        lambda manifest: manifest["evaluation"].update(max_positions=0),
    ],
)  # fmt: skip
def test_malformed_field_is_refused(change: Change, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    assert "a field is missing or malformed" in refusal(bundle_copy)


@pytest.mark.parametrize(("first", "refused"), [(0, False), (1, True), (2, True)])
def test_bytes_without_id_are_refused(first: int, refused: bool, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda manifest: manifest["tokenizer"].update(first_id=first))
    if refused:
        assert f"bytes have ids {first} to {first + 255}, but the vocabulary is 0 to 255" in refusal(bundle_copy)
    else:
        load(bundle_copy)


@pytest.mark.parametrize("name", ["../score.onnx", "/etc/passwd", "sub/score.onnx", "..", ".", ""])
def test_file_outside_the_bundle_is_refused(name: str, bundle_copy: Path) -> None:
    (bundle_copy.parent / "score.onnx").write_bytes((bundle_copy / "score.onnx").read_bytes())
    edit_manifest(bundle_copy, lambda manifest: manifest["files"].update({name: manifest["files"]["score.onnx"]}))
    assert f"file names must stay inside the bundle, found [{name!r}]" in refusal(bundle_copy)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda manifest: manifest["graphs"]["score"].update(file="../score.onnx"), "../score.onnx"),
        (lambda manifest: manifest["tokenizer"].update(kind="tokenizers", file="/etc/passwd"), "/etc/passwd"),
        (lambda manifest: manifest["files"].pop("detail.onnx"), "detail.onnx"),
        (lambda manifest: manifest["files"].pop("first_memory.safetensors"), "first_memory.safetensors"),
    ],
)
def test_file_that_is_used_but_not_listed_is_refused(change: Change, name: str, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    assert f"files are used but have no digest: {name}" in refusal(bundle_copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["graphs"]["score"]["inputs"][0].update(dtype="int32"),
        lambda manifest: manifest["memory"].reverse(),
        lambda manifest: manifest["memory"][0].update(first_value="other"),
        lambda manifest: manifest["graphs"]["score"].update(max_segment=32),
    ],
)
def test_graph_that_differs_from_the_manifest_is_refused(change: Change, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, change)
    assert "score.onnx: its metadata differs from the manifest" in refusal(bundle_copy)


def test_graphs_that_were_exchanged_are_refused(bundle_copy: Path) -> None:
    shutil.copyfile(bundle_copy / "detail.onnx", bundle_copy / "score.onnx")
    with pytest.raises(BundleError, match=r"score\.onnx: its metadata differs from the manifest"):
        load(bundle_copy, check_files=False)


@pytest.mark.parametrize("name", ["post_lnorm_zeros", "pre_lnorm_empty", "reformer_band", "reformer_chunk"])
def test_manifest_there_and_back(name: str, golden: Callable[[str], Model]) -> None:
    bundle = golden(name).bundle
    again = Bundle.from_json(bundle.to_json(), "it")
    assert again == bundle
    assert again.fingerprint == bundle.fingerprint


def test_fingerprint_is_of_the_numbers_not_the_paperwork(bundle_copy: Path) -> None:
    fingerprint = read_bundle(bundle_copy).fingerprint
    for name in listed_files(bundle_copy):
        with_other = dict(json.loads((bundle_copy / "bundle.json").read_text("utf-8")))
        del with_other["manifest_sha256"]
        with_other["files"][name] = {"sha256": "0" * 64, "size": 1}
        changed = Bundle.from_json(json.dumps(with_other), "it").fingerprint != fingerprint
        assert changed == (name not in ("README.md", "parity.json"))
