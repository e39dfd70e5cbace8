"""Hostile files: each is refused with one line, and none runs anything, hangs, or takes much memory."""

from __future__ import annotations

import contextlib
import copyreg
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.hostile_pickles import GADGETS, bombs, damaged, disguised, forms, plain, reaching, text
from tests.checkpoints.hostile_torch_files import (
    archive,
    archives,
    cut,
    disguised_in_files,
    legacy,
    legacy_files,
    saved,
    tensor,
    torch_bombs,
    wholes,
)
from tests.helpers.paths import ROOT
from xlexport.checkpoints.safe_pickle import read
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlexport.formats import load

MOST_MEGABYTES = 200  # in addition to the file's size
MOST_SECONDS = 10  # of work; they take less than one on most machines


def hostile_files(canary: Path) -> list[tuple[str, bytes]]:
    """Yield every file with a name that says what is wrong with it."""
    pickles = [*forms("os.mkdir", canary), *reaching(canary), *damaged()]
    wrapped = [(f"{name}, in an archive", archive(content[:-1])) for name, content in pickles if content[-1:] == b"."]
    cuts = [
        (f"{kind} cut at {percent} %", content)
        for kind, new in (("archive", True), ("legacy", False))
        for percent, content in enumerate(cut(saved(new)))
    ]
    noise = [(f"noise {seed}", random.Random(seed).randbytes(1000)) for seed in range(20)]
    starts = [(f"a good start, then {name}", saved(False)[:100] + content) for name, content in noise]
    texts = [("empty", b""), ("text", b"It was the best of times.\n" * 9), ("zeros", bytes(9999))]
    return [
        *pickles,
        *disguised(canary),
        *disguised_in_files(canary),
        *wrapped,
        *bombs(),
        *torch_bombs(),
        *archives(),
        *wholes(),
        *legacy_files(),
        *cuts,
        *noise,
        *starts,
        *texts,
    ]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canary") / "it ran"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, canary: Path) -> list[dict[str, Any]]:
    """Return the outcome of each file with each reader, in a separate process."""
    folder = tmp_path_factory.mktemp("hostile")
    files = hostile_files(canary)
    assert len({content for _, content in files}) > 400
    names = {f"{number:04d}": name for number, (name, _) in enumerate(files)}
    for number, (_, content) in enumerate(files):
        (folder / f"{number:04d}").write_bytes(content)
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoints.read_files", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    *lines, guard = (json.loads(line) for line in run.stdout.splitlines())
    assert guard["guard"], "the guard notes nothing"
    assert len(lines) == 2 * len(names), "the process ended before it had read all"
    return [{**line, "name": names[line["file"]]} for line in lines]


PROPERTIES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "is refused": lambda report: report["outcome"] == "CheckpointError",
    "has a message of one line that a terminal can show": lambda report: (
        report["message"].isprintable() and report["message"].endswith(".") and len(report["message"]) < 2000
    ),
    "runs nothing": lambda report: not report["noted"],
    "takes little memory": lambda report: report["megabytes"] <= MOST_MEGABYTES,
    "ends soon": lambda report: report["seconds"] <= MOST_SECONDS,
}


@pytest.mark.release
@pytest.mark.parametrize("name", PROPERTIES)
def test_each_file(name: str, reports: list[dict[str, Any]], canary: Path) -> None:
    others = [f"{report['name']} by {report['reader']}: {report}" for report in reports if not PROPERTIES[name](report)]
    assert not others
    assert not canary.exists()


# Calls.


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that the pickles would make; assert that it is not made and that no module is imported."""
    modules = set(sys.modules)
    yield tmp_path / "it ran"
    assert set(sys.modules) == modules
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize("gadget", GADGETS)
def test_call_is_refused_by_its_name(gadget: str, witness: Path) -> None:
    path = witness.with_name("model.pt")
    for form, content in forms(gadget, witness):
        for content_of_file in (content, archive(content.removeprefix(b"\x80\x02")[:-1])):
            path.write_bytes(content_of_file)
            with pytest.raises(CheckpointError, match=r"could run code \(.*\); nothing was run\.") as caught:
                read(path)
            assert gadget[:60] in str(caught.value), form
            assert str(caught.value).isprintable()


def test_disguised_call_is_refused(witness: Path) -> None:
    path = witness.with_name("model.pt")
    files = [*disguised(witness), *disguised_in_files(witness)]
    assert len({content for _, content in files}) == len(files) > 35
    for name, content in files:
        path.write_bytes(content)
        for reader in (read, load):
            with pytest.raises(CheckpointError) as caught:
                reader(path)
            assert str(caught.value).isprintable() and len(str(caught.value)) < 2000, name


@pytest.mark.parametrize(
    "name",
    [
        *("reduce", "reduce by a name from the stack", "inst", "obj", "text, protocol 0"),
        *("name by places of the memo", "call before what is damaged", "reduce in state"),
    ],
)
def test_they_would_have_run(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "it ran"
    with contextlib.suppress(pickle.UnpicklingError):
        pickle.loads({**dict(forms("os.mkdir", canary)), **dict(disguised(canary))}[name])
    assert canary.exists()


def test_registered_extension_is_refused(witness: Path, tmp_path: Path) -> None:
    """Refuse a number that a library has registered for a function: scanners of names do not see it."""
    path = tmp_path / "model.pt"
    path.write_bytes(plain(b"\x82\xf0(" + text(str(witness)) + b"tR"))
    copyreg.add_extension("os", "mkdir", 0xF0)
    try:
        with pytest.raises(CheckpointError, match="an operation at byte 2 that no checkpoint needs"):
            read(path)
        assert not witness.exists()
        pickle.loads(path.read_bytes())  # the place in which it would have run
        witness.rmdir()
    finally:
        copyreg.remove_extension("os", "mkdir", 0xF0)


# Messages.


def test_all_refused_names_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    body = b"(cos\nsystem\ncbuiltins\neval\ncargparse\nNamespace\n" + tensor() + b"cmodel\nMyModel\n)\x81}NNsbl"
    path.write_bytes(archive(body))
    with pytest.raises(CheckpointError, match=r"\('os.system', 'builtins.eval', 'model.MyModel'\); nothing was run"):
        read(path)


def test_refused_names_are_named_in_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "names.pkl"
    path.write_bytes(b"\x80\x02cos\nsystem\n(")
    with pytest.raises(CheckpointError, match=r"could run code \('os.system'\)"):
        read(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong checksum", r"'archive/data/1' in it is damaged \(wrong checksum\)"),
        ("compressed member", "compressed or encrypted members"),
        ("member twice", "two of a name, 'archive/data.pkl'"),
        ("members that overlap", "members that overlap"),
        ("archive, too many rows", "a tensor in it is larger than its storage"),
        ("archive, storage of another type's size", "storage '0' in it is missing, or not of the size"),
    ],
)
@pytest.mark.full
def test_problems_of_an_archive_are_reported(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(dict(archives())[name])
    with pytest.raises(CheckpointError, match=message) as caught:
        read(path)
    assert caught.value.hint == "Copy or save it again."


def test_places_that_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "loop", tmp_path / "dangling", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="not a file"):
            read(path)
    with pytest.raises(CheckpointNotFoundError, match="no such file"):
        read(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        read(tmp_path / ("a" * 300))


def test_the_good_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content in (archive(tensor()), legacy(tensor())):
        path.write_bytes(content)
        assert torch.equal(read(path), torch.arange(6.0).reshape(2, 3))
