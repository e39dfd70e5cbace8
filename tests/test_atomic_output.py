"""A bundle appears whole or not at all, even if writing it fails or is killed."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from safetensors import SafetensorError

from tests.helpers.outputs import is_whole, neighbours, publish, write_bundle
from tests.helpers.paths import ROOT
from xlexport.atomic_output import file, writing
from xlexport.bundles import check_output, publishing
from xlexport.errors import OutputExistsError
from xlexport.manifest import digests
from xlruntime import atomic_output


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and time of each file in a folder, to notice changes."""
    found = {path.name: path.lstat() for path in folder.rglob("*")}
    return {name: (status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "place [1]"  # brackets are special to glob, not to publishing
    folder.mkdir()
    return folder / "model [x].bundle"


@pytest.fixture
def old(output: Path) -> Path:
    write_bundle(output, "old")
    return output


def test_new_bundle_appears_whole(output: Path) -> None:
    with publishing(output) as folder:
        assert folder.parent == output.parent
        write_bundle(folder, "new")
        assert not output.exists()
    assert is_whole(output, "new")
    assert not neighbours(output)


def test_old_bundle_is_replaced_in_the_end(old: Path) -> None:
    with publishing(old, force=True) as folder:
        write_bundle(folder, "new")
        assert is_whole(old, "old")
    assert is_whole(old, "new")
    assert not neighbours(old)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("force", [False, True])
def test_failure_leaves_the_old_output(error: type[BaseException], force: bool, output: Path) -> None:
    if force:
        write_bundle(output, "old")
    with pytest.raises(error), publishing(output, force) as folder:
        write_bundle(folder, "new")
        raise error
    assert is_whole(output, "old") if force else not output.exists()
    assert not neighbours(output)


@pytest.mark.parametrize(("umask", "folder_mode", "file_mode"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_modes_follow_the_umask(umask: int, folder_mode: int, file_mode: int, output: Path) -> None:
    before = os.umask(umask)
    try:
        with publishing(output) as folder:
            write_bundle(folder, "new")
            (folder / "score.onnx").chmod(0o600)  # as onnx writes external data
        page = output.with_name("page.html")
        with file(page) as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(output.stat().st_mode) == folder_mode
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*output.iterdir(), page)} == {file_mode}


def a_foreign_folder(output: Path) -> None:
    output.mkdir()
    (output / "thesis.tex").write_text("mine")


def a_link_to_a_bundle(output: Path) -> None:
    write_bundle(output.parent / "elsewhere", "old")
    output.symlink_to(output.parent / "elsewhere")


FOREIGN: list[Callable[[Path], object]] = [
    lambda output: output.write_text("mine"),
    Path.mkdir,
    a_foreign_folder,
    a_link_to_a_bundle,
    lambda output: output.symlink_to(output.parent / "nowhere"),
    os.mkfifo,
]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("make", FOREIGN)
def test_output_that_is_not_a_bundle_is_never_replaced(
    make: Callable[[Path], object], force: bool, output: Path
) -> None:
    make(output)
    before = listing(output.parent)
    for refuse in (lambda: check_output(output, force), lambda: publishing(output, force).__enter__()):
        what = r"a symbolic link, which is" if output.is_symlink() else r"exists and is not a bundle, so it is"
        with pytest.raises(OutputExistsError, match=rf"bundle: {what} never replaced\. Give .*another path\.$"):
            refuse()
    assert listing(output.parent) == before


def test_bundle_is_replaced_only_by_force(old: Path) -> None:
    with pytest.raises(OutputExistsError, match=r"Add --force to replace it, or give another path\.$"):
        check_output(old, force=False)
    with pytest.raises(FileExistsError), publishing(old):
        pytest.fail("the block must not run")
    check_output(old, force=True)
    assert is_whole(old, "old")


def test_bundle_that_appears_meanwhile_is_not_replaced(output: Path) -> None:
    with pytest.raises(OutputExistsError, match="Add --force"), publishing(output) as folder:
        write_bundle(folder, "new")
        write_bundle(output, "from elsewhere")
    assert is_whole(output, "from elsewhere")
    assert not neighbours(output)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_file_never_replaces_something_else(make: Callable[[Path], object], tmp_path: Path) -> None:
    output = tmp_path / "out"
    make(output)
    with (
        pytest.raises(FileExistsError, match="exists and is not a file, so"),
        atomic_output.file(output),
    ):
        pytest.fail("the block must not run")
    assert [*tmp_path.iterdir()] == [output]


def test_link_at_the_output_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    output.symlink_to(elsewhere)
    with atomic_output.file(output) as temporary:
        temporary.write_text("new")
    assert (output.is_symlink(), output.read_text(), elsewhere.read_text()) == (False, "new", "mine")


def test_missing_parent_folder_is_named(tmp_path: Path) -> None:
    output = tmp_path / "absent" / "bundle"
    for refuse in (lambda: check_output(output, True), lambda: publishing(output).__enter__()):
        with pytest.raises(FileNotFoundError, match=r"absent: no such folder to write bundle into\. Create it"):
            refuse()


def test_digests_leave_out_the_manifest(old: Path) -> None:
    assert {name: digest.size for name, digest in digests(old).items()} == {"score.onnx": 3000}


# Killed: the process ends between two instructions, without cleaning up.

KILLED = """
import os, signal, sys
from pathlib import Path
from xlexport import bundles
from xlruntime import atomic_output

point, output = sys.argv[1], Path(sys.argv[2])

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def rename_and_die(self, target):
    rename(self, target)
    die()

rename = Path.rename
if point == "settling":
    atomic_output._settle = die
if point == "renamed":
    Path.rename = rename_and_die

with bundles.publishing(output, force=True) as folder:
    if point == "begun":
        die()
    (folder / "bundle.json").write_text("new")
    (folder / "score.onnx").write_text("new" * 500)
    if point == "writing":
        die()
    (folder / "score.onnx").write_text("new" * 1000)
sys.exit("it was not killed")
"""


def run_and_kill(point: str, output: Path) -> None:
    command = [sys.executable, "-c", KILLED, point, str(output)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.parametrize("point", ["begun", "writing", "settling", "renamed"])
def test_killed_before_the_first_bundle_is_there(point: str, output: Path) -> None:
    run_and_kill(point, output)
    assert is_whole(output, "new") if point == "renamed" else not output.exists()
    publish(output, "next")
    assert is_whole(output, "next")


@pytest.mark.parametrize("point", ["begun", "writing", "settling"])
def test_killed_while_replacing_a_bundle(point: str, old: Path) -> None:
    run_and_kill(point, old)
    assert is_whole(old, "old")
    publish(old, "next")
    assert is_whole(old, "next")


def test_bundle_that_a_killed_process_had_set_aside_is_named(old: Path) -> None:
    run_and_kill("renamed", old)
    aside = old.with_name(f".{old.name}.old")
    assert is_whole(aside, "old") and not old.exists()
    with pytest.raises(FileExistsError, match=r"left by a killed run: rename it to .*, or remove it") as caught:
        publish(old, "next")
    assert caught.value.filename == str(aside)
    aside.rename(old)
    publish(old, "next")
    assert is_whole(old, "next")


def test_the_two_packages_have_the_same_module() -> None:
    files = [ROOT / folder / "atomic_output.py" for folder in ("runtime/python/xlruntime", "training/xltraining")]
    assert len({file.read_bytes() for file in files}) == 1


# A full disk.

LIMITED = """
import resource, sys
from pathlib import Path
from xlexport.bundles import publishing

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with publishing(Path(sys.argv[1]), force=True) as folder:
        (folder / "bundle.json").write_text("new")
        (folder / "score.onnx").write_text("new" * 1000)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY, reason="already limited")
def test_file_that_cannot_grow_leaves_the_old_bundle(old: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(old)]
    limited = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert limited.stdout == "File too large\n", limited.stderr
    assert is_whole(old, "old")
    assert not neighbours(old)


def cut_short_by_numpy() -> NoReturn:
    raise OSError("100000 requested and 16384 written")


def cut_short_by_safetensors() -> NoReturn:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("write", [cut_short_by_numpy, cut_short_by_safetensors])
def test_write_that_was_cut_short_is_reported_as_a_full_disk(write: Callable[[], NoReturn], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written completely") as caught, writing(tmp_path / "weights.data"):
        write()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "weights.data"))
