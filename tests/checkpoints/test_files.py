"""Nothing outside a folder is read: neither by name nor by link, nor anything but files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xlexport.checkpoints.files import inside, read_json
from xlexport.errors import CheckpointError


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
