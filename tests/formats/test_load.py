"""Checkpoints are recognized by their content; bad ones are refused with one line, and no code in them ever runs."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.refusals import refusal
from xlexport.checkpoints.files import inside, read_json
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlexport.formats import format_names, load
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

REFORMER = ReformerConfig(d_model=16, n_head=2, d_head=4, d_inner=20, attn_layers=("lsh", "local"), axial_dims=(4, 12))
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


@pytest.mark.parametrize("name", ["weights.bin", "folder"])
@pytest.mark.parametrize("format", [None, "xltraining"])
@pytest.mark.parametrize("kind", ["transformer_xl", "reformer"])
def test_both_forms_are_read(kind: str, name: str, format: str | None, tmp_path: Path, model: TransformerXL) -> None:
    trained = model if kind == "transformer_xl" else Reformer(REFORMER)
    path = tmp_path / name
    save_checkpoint(tmp_path / "saved.pt" if name == "weights.bin" else path, trained.config, trained.state_dict())
    if name == "weights.bin":  # a file's name does not matter
        (tmp_path / "saved.pt").rename(path)
    source = load(path, format)
    assert isinstance(source, SourceCheckpoint)
    assert (source.architecture, source.format, source.tokenizer) == (kind, "xltraining", "bytes")
    assert source.config == trained.config.to_dict()
    assert source.parameters == sum(parameter.numel() for parameter in trained.parameters())
    built = source.build_model()
    assert not built.training
    assert all(torch.equal(built.state_dict()[name], tensor) for name, tensor in trained.state_dict().items())
    assert refusal(path, config={"num_buckets": (8,)}).endswith("Leave out --config.")

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


FOLDERS: dict[str, tuple[dict[str, str], str]] = {  # its files, and the end of the message
    "empty": (
        {},
        "a folder without a checkpoint. Give a checkpoint of a known format: docs/",
    ),
    "other": (
        {"config.json": '{"model_type": "gpt2"}', "model.safetensors": ""},
        "(its config.json says 'gpt2').",
    ),
    "one file": ({"a.pt": ""}, "Give the file in it: {path}/a.pt."),
    "three": (dict.fromkeys(("m.pt", "a0.pt", "a1.pt"), ""), "Give one of the files in it: a0.pt, a1.pt, m.pt."),
    "many": (
        dict.fromkeys([f"a{number}.pt" for number in range(8)], ""),
        "Give one of the files in it: a0.pt, a1.pt, a2.pt, a3.pt, a4.pt and 3 more.",
    ),
    "graphs": ({"score.onnx": ""}, "Make one with `xlexport convert CHECKPOINT`."),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_without_a_checkpoint(kind: str, tmp_path: Path) -> None:
    files, end = FOLDERS[kind]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    message = refusal(tmp_path, CheckpointNotFoundError)
    assert end.format(path=tmp_path) in message


def test_paths_of_other_kinds(tmp_path: Path, checkpoint: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.pt", CheckpointNotFoundError)
    (tmp_path / "bundle.json").write_text("{}")
    assert "already a bundle" in refusal(tmp_path)
    with pytest.raises(CheckpointError, match=f"Use one of: {', '.join(format_names())}"):
        load(checkpoint, "gguf")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.pt")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_folder_names_the_folder(name: str, tmp_path: Path, model: TransformerXL) -> None:
    folder = tmp_path / "folder"
    save_checkpoint(folder, CONFIG, model.state_dict())
    assert refusal(folder / name).endswith(f"Give the folder that it is in: {folder}.")
    (folder / name).write_bytes((folder / name).read_bytes()[:-3])
    assert f"{folder / name}: " in refusal(folder, format="xltraining")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (b"It was the best of times, it was the worst of times.\n" * 9, "not a PyTorch checkpoint"),
        (b".", "not a PyTorch checkpoint"),
        (b"GGUF\x03\0\0\0", "a GGUF file of llama.cpp, not a PyTorch checkpoint. Write the model as a module"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as Keras writes, not a PyTorch checkpoint"),
        (bytes(range(256)) * 9, "not a PyTorch checkpoint"),
        (b"PK\x03\x04" + bytes(99), "cut off or damaged"),
    ],
    ids=["empty", "text", "stop", "gguf", "hdf5", "bytes", "archive"],
)
@pytest.mark.parametrize("format", [None, "xltraining"])
def test_file_that_is_not_a_checkpoint(content: bytes, what: str, format: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    message = refusal(path, format=format)
    if format is None:
        assert what in message


def test_safetensors_of_another_model_names_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"fc.weight": torch.zeros(2), "fc.bias": torch.zeros(2)}, path)
    assert refusal(path).endswith(
        "no weights of a known model in it (tensors: fc.bias, fc.weight). Give a checkpoint of a known "
        "format: docs/checkpoints.md lists them. docs/own_models.md converts other models."
    )


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"model": OrderedDict(weight=torch.zeros(2)), "epoch": 3}, "known model in it (tensors: model.weight)."),
        (
            OrderedDict((f"fc{n}.\x1b", torch.zeros(2)) for n in range(9)),
            "(tensors: fc0.\\x1b, fc1.\\x1b, fc2.\\x1b, fc3.\\x1b, fc4.\\x1b and 4 more).",
        ),
        (torch.zeros(3), "no weights of a known model in it. Give a checkpoint of a known format: docs/"),
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


def test_unreadable_file_is_an_error_in_one_line(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: Path, *arguments: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    assert "cannot be read (Permission denied)" in refusal(checkpoint)


# Nothing outside a folder is read: neither by name nor by link, nor anything but files.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Make a snapshot with a file, in a cache with the layout of Hugging Face's hub."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--owner--name" / "blobs").mkdir()
    (tmp_path / "models--owner--name" / "blobs" / "4567def").write_text('{"n_layer": 3}')
    (snapshot / "config.json").symlink_to("../../blobs/4567def")
    return snapshot


def test_file_of_the_folder(folder: Path) -> None:
    assert inside(folder, "config.json") == folder / "config.json"
    assert inside(folder, "absent.json") == folder / "absent.json"
    (folder / "other.json").symlink_to("config.json")
    assert inside(folder, "other.json") == folder / "other.json"


def test_folder_that_is_a_link_or_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert inside(folder.parent / "link", "config.json").read_text() == "{}"
    monkeypatch.chdir(folder)
    assert inside(Path(), "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret.json", "/etc/passwd", "sub/../../secret.json", "sub/x", "a\0b", "a/", "x" * 300]
)
def test_name_that_leads_out(name: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"leads (out of the folder|nowhere)\.") as caught:
        inside(folder, name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        *((target, "leads out of the folder") for target in ("../secret.json", "/etc/passwd", "../absent.json")),
        ("sub/../../secret.json", "leads out of the folder"),
        ("absent", "leads nowhere"),
        ("link", "leads nowhere"),  # a circle
        ("sub", "is not a file"),
    ],
)
def test_link_that_leads_elsewhere(target: str, wrong: str, folder: Path) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(CheckpointError, match=f"'link' {wrong}. Put the file itself into it."):
        inside(folder, "link")


def test_pipe_is_not_a_file(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(CheckpointError, match="'pipe' is not a file"):
        inside(folder, "pipe")


@pytest.mark.parametrize("target", ["../../refs/main", "../../../other/blobs/1", "../../../../secret", "../other/x"])
def test_links_of_the_hubs_cache(target: str, cache: Path) -> None:
    assert read_json(inside(cache, "config.json")) == {"n_layer": 3}
    (cache / "model.bin").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"'model\.bin' leads out of the folder"):
        inside(cache, "model.bin")


def test_name_that_has_moved_names_its_replacement() -> None:
    with pytest.raises(ImportError, match=r"is xlexport\.formats\.load since this version"):
        importlib.import_module("xlexport.checkpoints").load  # noqa: B018 -- only asked for
