"""Checkpoints are recognized by their content; bad ones are refused with one line, and no code in them ever runs."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.refusals import refusal
from xlexport.checkpoints import SourceCheckpoint, format_names, load, safe_pickle
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xltraining.checkpoint import save_checkpoint
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

CONFIG = TransformerXLConfig(n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, tgt_len=8, mem_len=8)


@pytest.fixture(scope="module")
def model() -> TransformerXL:
    torch.manual_seed(0)
    return TransformerXL(CONFIG).eval()


@pytest.fixture
def checkpoint(tmp_path: Path, model: TransformerXL) -> Path:
    path = tmp_path / "good" / "model.pt"
    save_checkpoint(path, CONFIG, model.state_dict())
    return path


@pytest.mark.parametrize("name", ["model.pt", "folder"])
@pytest.mark.parametrize("format", [None, "xltraining"])
def test_both_forms_are_read(name: str, format: str | None, tmp_path: Path, model: TransformerXL) -> None:
    path = tmp_path / name
    save_checkpoint(path, CONFIG, model.state_dict())
    source = load(path, format)
    assert isinstance(source, SourceCheckpoint)
    assert (source.architecture, source.format, source.tokenizer) == ("transformer_xl", "xltraining", "bytes")
    assert source.config == CONFIG.to_dict()
    built = source.build_model()
    assert not built.training
    assert all(torch.equal(built.state_dict()[name], tensor) for name, tensor in model.state_dict().items())

    files = [path] if path.is_file() else [path / "config.json", path / "model.safetensors"]
    assert list(source.files) == files
    for file, digest in source.files.items():
        assert digest.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert digest.size == file.stat().st_size


def test_models_are_made_of_the_files_and_share_nothing(checkpoint: Path, model: TransformerXL) -> None:
    source = load(checkpoint)
    first, second = source.build_model(), source.build_model()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    for name, tensor in model.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


def test_checkpoint_that_changes_after_reading_is_refused(checkpoint: Path) -> None:
    source = load(checkpoint)
    other = TransformerXL(CONFIG)  # the same sizes, other weights
    save_checkpoint(checkpoint, CONFIG, other.state_dict())
    with pytest.raises(CheckpointError, match="has changed since it was read"):
        source.build_model()
    assert load(checkpoint).build_model().config == CONFIG


def test_name_does_not_matter(checkpoint: Path) -> None:
    renamed = checkpoint.rename(checkpoint.with_name("weights.bin"))
    assert load(renamed).format == "xltraining"


def test_unknown_format_lists_the_known_ones(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=f"Use one of: {', '.join(format_names())}"):
        load(checkpoint, "gguf")


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.pt", CheckpointNotFoundError)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.pt")


def test_folder_without_checkpoint(tmp_path: Path) -> None:
    assert "a folder without a checkpoint" in refusal(tmp_path, CheckpointNotFoundError)


def test_folder_of_a_training_run_names_the_file_in_it(checkpoint: Path) -> None:
    assert refusal(checkpoint.parent, CheckpointNotFoundError).endswith(f"Give the file in it: {checkpoint}.")


@pytest.mark.parametrize(
    ("more", "said"), [(2, "a0.pt, a1.pt, m.pt"), (7, "a0.pt, a1.pt, a2.pt, a3.pt, a4.pt and 3 more")]
)
def test_folder_of_several_files_names_them(more: int, said: str, tmp_path: Path) -> None:
    for name in ("m", *(f"a{number}" for number in range(more))):
        (tmp_path / f"{name}.pt").touch()
    assert refusal(tmp_path, CheckpointNotFoundError).endswith(f"Give one of the files in it: {said}.")


def test_bundle_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("{}")
    assert "already a bundle" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_folder_names_the_folder(name: str, tmp_path: Path, model: TransformerXL) -> None:
    save_checkpoint(tmp_path / "folder", CONFIG, model.state_dict())
    assert refusal(tmp_path / "folder" / name).endswith(f"Give the folder that it is in: {tmp_path / 'folder'}.")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (b"It was the best of times, it was the worst of times.\n" * 9, "not a PyTorch checkpoint"),
        (b".", "not a PyTorch checkpoint"),
        (bytes(range(256)) * 9, "not a PyTorch checkpoint"),
        (b"PK\x03\x04" + bytes(99), "cut off or damaged"),
    ],
    ids=["empty", "text", "stop", "bytes", "archive"],
)
@pytest.mark.parametrize("format", [None, "xltraining"])
def test_file_that_is_not_a_checkpoint(content: bytes, what: str, format: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    message = refusal(path, format=format)
    if format is None:
        assert what in message


def test_truncated_file_wherever_it_is_cut(checkpoint: Path) -> None:
    whole = checkpoint.read_bytes()
    for length in (1, 3, 4, 5, 30, 1000, len(whole) // 2, len(whole) - 22, len(whole) - 1):
        checkpoint.write_bytes(whole[:length])
        assert "Copy or save it again" in refusal(checkpoint) or length < 4
        refusal(checkpoint, format="xltraining")


def test_flipped_bit_in_a_tensor_is_noticed(checkpoint: Path) -> None:
    with zipfile.ZipFile(checkpoint) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    content = bytearray(checkpoint.read_bytes())
    content[largest.header_offset + largest.file_size // 2 + 100] ^= 1
    checkpoint.write_bytes(content)
    torch.load(checkpoint, weights_only=True)  # torch does not notice
    assert "wrong checksum" in refusal(checkpoint)


def test_compressed_archive_is_refused_before_it_is_unpacked(checkpoint: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(checkpoint) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert "compressed or encrypted members" in refusal(packed)


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.witness),)


def bare_pickle(path: Path, payload: Payload) -> None:
    path.write_bytes(pickle.dumps({"model": payload}))


def old_pickle(path: Path, payload: Payload) -> None:
    path.write_bytes(pickle.dumps({"model": payload}, protocol=0))


def archive(path: Path, payload: Payload) -> None:
    torch.save({"model": payload}, path)


def legacy(path: Path, payload: Payload) -> None:
    torch.save({"model": payload}, path, _use_new_zipfile_serialization=False)


def disguised(path: Path, payload: Payload) -> None:
    torch.save({"format": "xltraining", "version": 1, "config": CONFIG.to_dict(), "state_dict": payload}, path)


def disguised_in_a_newer_pickle(path: Path, payload: Payload) -> None:
    content = {"format": "xltraining", "version": 1, "config": CONFIG.to_dict(), "state_dict": payload}
    torch.save(content, path, pickle_protocol=4)


@pytest.mark.parametrize("write", [bare_pickle, old_pickle, archive, legacy, disguised, disguised_in_a_newer_pickle])
@pytest.mark.parametrize("format", [None, "xltraining"])
def test_pickle_that_would_run_code_does_not(
    write: Callable[[Path, Payload], None], format: str | None, tmp_path: Path
) -> None:
    path, witness = tmp_path / "model.pt", tmp_path / "it ran"
    write(path, Payload(witness))
    message = refusal(path, format=format)
    assert not witness.exists()
    if format is None:
        assert "could run code" in message


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    witness = tmp_path / "it ran"
    pickle.loads(pickle.dumps(Payload(witness)))
    assert witness.exists()


def test_names_in_a_hostile_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"cos\x1b[2J\nsystem\n(S'x'\ntR.")
    message = refusal(path)
    assert message.isprintable()
    assert "system" in message


def test_safetensors_of_another_model_names_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"fc.weight": torch.zeros(2), "fc.bias": torch.zeros(2)}, path)
    assert refusal(path).endswith(
        "no Transformer-XL or Reformer weights in it (tensors: fc.bias, fc.weight). Give a checkpoint of a known "
        "format: docs/checkpoints.md lists them."
    )


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"model": OrderedDict(weight=torch.zeros(2)), "epoch": 3}, "Reformer weights in it (tensors: model.weight)."),
        (
            OrderedDict((f"fc{n}.\x1b", torch.zeros(2)) for n in range(9)),
            "(tensors: fc0.\\x1b, fc1.\\x1b, fc2.\\x1b, …).",
        ),
        (torch.zeros(3), "no Transformer-XL or Reformer weights in it. Give a checkpoint of a known format: docs/"),
        ({"format": "xltraining", "version": 99, "config": {}, "state_dict": {}}, "version 99"),
        ({"format": "xltraining", "version": 1, "config": {"n_layer": -1}, "state_dict": {}}, "n_layer"),
        (
            {"format": "xltraining", "version": 1, "config": CONFIG.to_dict(), "state_dict": {}},
            "word_emb.clusters.0.table is missing",
        ),
    ],
    ids=["other", "names", "tensor", "newer", "configuration", "weights"],
)
def test_archive_that_cannot_be_converted(content: object, what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    assert what in refusal(path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, model: TransformerXL) -> None:
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights["layers.0.attention.output.weight"][0, 0] = torch.nan
    weights["layers.1.feed_forward.inner.bias"][3] = torch.inf
    path = tmp_path / "model.pt"
    save_checkpoint(path, CONFIG, weights)
    assert "layers.0.attention.output.weight, layers.1.feed_forward.inner.bias" in refusal(path)


def test_refusal_of_another_package_ends_in_a_sentence(tmp_path: Path, model: TransformerXL) -> None:
    save_checkpoint(tmp_path / "folder", CONFIG, model.state_dict())
    weights = tmp_path / "folder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "folder")
    assert caught.value.message.startswith(f"{weights}: damaged (") and caught.value.message.endswith(").")
    assert caught.value.hint == "Copy it again."


def test_folder_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(64))
    assert "a folder without a checkpoint" in refusal(tmp_path, CheckpointNotFoundError)


def test_unreadable_file_is_an_error_in_one_line(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: Path, *arguments: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    assert "cannot be read (Permission denied)" in refusal(checkpoint)


def test_tensor_with_python_attributes_is_read_without_them(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    tensor.note = "what a model has noted"  # type: ignore[attr-defined]
    torch.save({"weight": tensor}, tmp_path / "noted.pt")
    assert b"_rebuild_from_type_v2" in (tmp_path / "noted.pt").read_bytes()
    found = safe_pickle.read(tmp_path / "noted.pt")["weight"]
    assert torch.equal(found, tensor) and not hasattr(found, "note")
