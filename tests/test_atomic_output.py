"""A bundle appears whole or not at all, even if writing it fails or is killed."""

from __future__ import annotations

import ctypes
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
from xlexport.atomic_output import file, writing
from xlexport.bundles import check_output, digests, publishing
from xlexport.errors import OutputExistsError


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


@pytest.fixture(params=["exchange", "no renameat2", "renameat2 fails"])
def way_to_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Test with the system call that exchanges two folders, and in two ways without it."""

    class Library:
        def __init__(self, *arguments: object, **settings: object) -> None:
            if request.param == "renameat2 fails":
                self.renameat2 = lambda *paths: -1

    if request.param != "exchange":
        monkeypatch.setattr(ctypes, "CDLL", Library)
    return str(request.param)


def test_new_bundle_appears_whole(output: Path) -> None:
    with publishing(output) as folder:
        assert folder.parent == output.parent
        write_bundle(folder, "new")
        assert not output.exists()
    assert is_whole(output, "new")
    assert not neighbours(output)


def test_old_bundle_is_replaced_in_the_end(old: Path, way_to_exchange: str) -> None:
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


def test_failed_exchange_leaves_the_old_bundle(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **settings: None)  # has no renameat2
    rename = Path.rename

    def fail_to_move_in(self: Path, target: Path) -> Path:
        if target == old and ".old" not in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_to_move_in)
    with pytest.raises(OSError, match="Input/output"), publishing(old, force=True) as folder:
        write_bundle(folder, "new")
    assert is_whole(old, "old")
    assert not neighbours(old)


def test_failed_sync_of_the_folder_does_not_fail_a_complete_bundle(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, refused = os.fsync, []

    def refused_for_the_parent(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), output.parent.stat()):
            refused.append(output.exists())
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused_for_the_parent)
    with publishing(output) as folder:
        write_bundle(folder, "new")
    assert is_whole(output, "new")
    assert refused == [True]


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


def a_file(output: Path) -> None:
    output.write_text("mine")


def an_empty_folder(output: Path) -> None:
    output.mkdir()


def a_foreign_folder(output: Path) -> None:
    output.mkdir()
    (output / "thesis.tex").write_text("mine")


def a_link_to_a_bundle(output: Path) -> None:
    write_bundle(output.parent / "elsewhere", "old")
    output.symlink_to(output.parent / "elsewhere")


def a_dangling_link(output: Path) -> None:
    output.symlink_to(output.parent / "nowhere")


def a_pipe(output: Path) -> None:
    os.mkfifo(output)


FOREIGN = [a_file, an_empty_folder, a_foreign_folder, a_link_to_a_bundle, a_dangling_link, a_pipe]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("make", FOREIGN)
def test_output_that_is_not_a_bundle_is_never_replaced(make: Callable[[Path], None], force: bool, output: Path) -> None:
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


def test_pipe_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(FileExistsError, match="never replaced"), file(output):
        os.mkfifo(output)
    assert output.is_fifo() and [*tmp_path.iterdir()] == [output]


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

exchange, rename, move = atomic_output._exchange, Path.rename, atomic_output._move_to_free_place
def exchange_and_die(temporary):
    exchange(temporary)
    die()

def move_and_die(new, output):
    move(new, output)
    die()

def rename_and_die(self, target):
    rename(self, target)
    die()

match point:
    case "settling":
        atomic_output._settle = die
    case "before the exchange":
        atomic_output._exchange = die
    case "after the exchange":
        atomic_output._exchange = exchange_and_die
    case "old one set aside":
        atomic_output.ctypes.CDLL = lambda *arguments, **settings: None
        Path.rename = rename_and_die
    case "published":
        atomic_output._move_to_free_place = move_and_die

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
    assert neighbours(output)


@pytest.mark.parametrize("point", ["begun", "writing", "settling", "published"])
def test_killed_before_the_first_bundle_is_there(point: str, output: Path) -> None:
    run_and_kill(point, output)
    assert is_whole(output, "new") if point == "published" else not output.exists()
    publish(output, "next")
    assert is_whole(output, "next")
    assert not neighbours(output)


@pytest.mark.parametrize("point", ["begun", "writing", "settling", "before the exchange", "after the exchange"])
def test_killed_while_replacing_a_bundle(point: str, old: Path) -> None:
    run_and_kill(point, old)
    assert is_whole(old, "new" if point == "after the exchange" else "old")
    publish(old, "next")
    assert is_whole(old, "next")
    assert not neighbours(old)


def test_bundle_that_a_killed_process_had_set_aside_comes_back(old: Path) -> None:
    """Restore the old bundle in the next run if folders cannot be exchanged in one step, and a kill comes between."""
    run_and_kill("old one set aside", old)
    assert not old.exists()
    with pytest.raises(OutputExistsError, match="Add --force"), publishing(old):
        pytest.fail("the block must not run")
    assert is_whole(old, "old")
    assert not neighbours(old)


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


def test_other_errors_of_a_write_pass_through(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), writing(tmp_path):
        tmp_path.write_text("")
