"""Published attacks on readers of pickles, in plain form and disguised: each is refused, and nothing in it runs."""

from __future__ import annotations

import contextlib
import copyreg
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints.hostile_gadgets import GADGETS, disguised, forms
from tests.checkpoints.hostile_pickles import plain, text
from tests.checkpoints.hostile_torch_files import archive
from xlexport.checkpoints import load
from xlexport.checkpoints.safe_pickle import read
from xlexport.errors import CheckpointError


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that the pickles would make; assert that it is not made and that no module is imported."""
    modules = set(sys.modules)
    yield tmp_path / "it ran"
    assert set(sys.modules) == modules
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize("gadget", GADGETS)
def test_call_is_refused_by_its_name(gadget: str, canary: Path) -> None:
    path = canary.with_name("model.pt")
    for form, content in forms(gadget, canary):
        for content_of_file in (content, archive(content.removeprefix(b"\x80\x02")[:-1])):
            path.write_bytes(content_of_file)
            with pytest.raises(CheckpointError, match=r"could run code \(.*\); nothing was run\.") as caught:
                read(path)
            assert gadget[:60] in str(caught.value), form
            assert str(caught.value).isprintable()


def test_disguised_call_is_refused(canary: Path) -> None:
    path = canary.with_name("model.pt")
    files = list(disguised(canary))
    assert len({content for _, content in files}) == len(files) > 35
    for name, content in files:
        path.write_bytes(content)
        for reader in (read, load):
            with pytest.raises(CheckpointError) as caught:
                reader(path)
            assert str(caught.value).isprintable() and len(str(caught.value)) < 2000, name


@pytest.mark.parametrize("name", ["name by places of the memo", "call before what is damaged"])
def test_they_would_have_run(name: str, tmp_path: Path) -> None:
    content = dict(disguised(tmp_path / "it ran"))[name]
    with contextlib.suppress(pickle.UnpicklingError):
        pickle.loads(content)
    assert (tmp_path / "it ran").exists()


def test_registered_extension_is_refused(canary: Path, tmp_path: Path) -> None:
    """Refuse a number that a library has registered for a function: scanners of names do not see it."""
    path = tmp_path / "model.pt"
    path.write_bytes(plain(b"\x82\xf0(" + text(str(canary)) + b"tR"))
    copyreg.add_extension("os", "mkdir", 0xF0)
    try:
        with pytest.raises(CheckpointError, match="an operation at byte 2 that no checkpoint needs"):
            read(path)
        assert not canary.exists()
        pickle.loads(path.read_bytes())  # the place in which it would have run
        canary.rmdir()
    finally:
        copyreg.remove_extension("os", "mkdir", 0xF0)
