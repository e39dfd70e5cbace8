"""Several processes write one output: none removes another one's files, and one whole result stays."""

from __future__ import annotations

import errno
import fcntl
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.outputs import is_whole, neighbours, publish, write_bundle
from tests.helpers.paths import ROOT
from xlexport.atomic_output import check_file, file
from xlexport.bundles import publishing
from xlexport.errors import OutputExistsError
from xlruntime import atomic_output
from xlruntime.state_file import read_state, write_state

DEAD, ALIVE = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "place [1]"  # brackets are special to glob and re, not to publishing
    folder.mkdir()
    return folder / "model [x].bundle"


def remains(output: Path, token: str) -> Path:
    """Make the folder and the lock file of a writer, and return the lock file."""
    folder = output.with_name(f".{output.name}.xlexport-{token}")
    write_bundle(folder, "theirs")
    lock = folder.with_name(f"{folder.name}.lock")
    lock.touch()
    return lock


def test_folders_of_others_are_left_alone(output: Path) -> None:
    """Keep folders of a writer that is still alive, of another output, and of unknown origin."""
    alive = remains(output, ALIVE)
    names = [
        alive.name,
        alive.name.removesuffix(".lock"),
        f".{output.name}2.xlexport-{DEAD}",
        f".{output.name}.xlexport-mine",
        f".{output.name}.xlexport-{DEAD}0",
        f"{output.name}.xlexport-{DEAD}",
    ]
    for name in names[2:]:
        write_bundle(output.with_name(name), "theirs")
    remains(output, DEAD)
    with alive.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        publish(output, "new")
    assert neighbours(output) == sorted(names)
    assert all(is_whole(output.with_name(name), "theirs") for name in names[1:])
    publish(output, "new")  # the lock is free now
    assert neighbours(output) == sorted(names[2:])


def test_remains_without_a_lock_file_are_removed(output: Path) -> None:
    """Remove them, because a writer makes its lock file first and removes it last."""
    remains(output, DEAD).unlink()
    publish(output, "new")
    assert not neighbours(output)


def test_lock_file_that_was_replaced_meanwhile_is_not_removed(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two clean up: the second opens the lock file before the first removes it."""
    lock = remains(output, DEAD)
    flock = fcntl.flock

    def other_is_first(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        lock.unlink()
        lock.write_text("another one")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", other_is_first)
        atomic_output.remove_remains(output)
    assert lock.read_text() == "another one"
    assert is_whole(output.with_name(lock.name.removesuffix(".lock")), "theirs")


def test_lock_file_that_is_removed_before_it_is_locked_is_replaced(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, locked = fcntl.flock, list[int]()

    def removed_at_first(descriptor: int, operation: int) -> None:
        if not locked:
            (lock,) = output.parent.iterdir()
            lock.unlink()
        locked.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_at_first)
    publish(output, "new")
    assert len(locked) == 2
    assert is_whole(output, "new")
    assert not neighbours(output)


def test_file_system_without_locks_keeps_all_leftovers(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    lock = remains(output, DEAD)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        publish(output, "new")
        assert is_whole(output, "new")
        assert neighbours(output) == [lock.name.removesuffix(".lock"), lock.name]
    publish(output, "next")
    assert not neighbours(output)


def test_links_in_the_place_of_lock_files_are_not_followed(output: Path) -> None:
    victim = output.parent / "victim"
    victim.write_text("mine")
    link = remains(output, DEAD)
    link.unlink()
    link.symlink_to(victim)
    publish(output, "new")
    assert victim.read_text() == "mine"
    assert link.is_symlink()


def test_link_at_the_output_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target, output = tmp_path / "target", tmp_path / "page.html"
    target.write_text("mine")
    output.symlink_to(target)
    with file(output) as temporary:
        temporary.write_text("new")
    assert (target.read_text(), output.read_text(), output.is_symlink()) == ("mine", "new", False)


def test_names_cannot_be_predicted(tmp_path: Path) -> None:
    names = set()
    for _ in range(20):
        with file(tmp_path / "page.html") as temporary:
            names.add(temporary.name)
    assert len(names) == 20


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        atomic_output.create(tmp_path / "link")
    assert not (tmp_path / "victim").exists()


def test_the_two_packages_have_the_same_module() -> None:
    runtime, training = (ROOT / folder / "atomic_output.py" for folder in ("runtime/xlruntime", "training/xltraining"))
    assert runtime.read_bytes() == training.read_bytes()


# Several writers of one output.

PUBLISHER = """
import os, sys
from pathlib import Path
from xlexport.bundles import publishing

os.getpid = lambda: 1  # as in containers
word, output = sys.argv[1], Path(sys.argv[2])
input()
for _ in range(30):
    with publishing(output, force=True) as folder:
        (folder / "bundle.json").write_text(word)
        (folder / "score.onnx").write_text(word * 1000)
"""


def test_processes_with_the_same_number_publish_whole_bundles(output: Path) -> None:
    """Give all processes the number 1, as in containers."""
    old = output
    write_bundle(old, "old")
    words = ["a", "b", "c", "d"]
    command = [sys.executable, "-c", PUBLISHER]
    processes = [
        subprocess.Popen([*command, word, str(old)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for word in words
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    seen = 0
    while any(process.poll() is None for process in processes):
        try:
            assert len((old / "score.onnx").read_text()) in (3000, 1000)  # from "old", and from one letter
            seen += 1
        except FileNotFoundError:  # removed since its folder was found
            assert old.is_dir()
    assert [process.communicate()[1] for process in processes] == [""] * 4
    assert seen
    assert any(is_whole(old, word) for word in words)
    assert not neighbours(old)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("renameat2", [True, False])
def test_threads_that_publish_to_one_place(
    force: bool, renameat2: bool, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that without `force` one thread succeeds, and the others raise an error with the reason."""
    if not renameat2:
        monkeypatch.setattr(atomic_output, "_renameat2", lambda *_: False)  # as on other systems than Linux
    begin = threading.Barrier(8)

    def one(number: int) -> str:
        begin.wait()
        try:
            with publishing(output, force) as folder:
                write_bundle(folder, str(number))
        except OutputExistsError:
            return "refused"
        return str(number)

    for _ in range(5):
        shutil.rmtree(output, ignore_errors=True)
        with ThreadPoolExecutor(8) as pool:
            done = [word for word in pool.map(one, range(8)) if word != "refused"]
        assert len(done) == (8 if force else 1)
        assert any(is_whole(output, word) for word in done)
        assert not neighbours(output)


@pytest.mark.parametrize("force", [False, True])
def test_threads_that_write_one_file(force: bool, tmp_path: Path) -> None:
    output, begin = tmp_path / "page.html", threading.Barrier(8)

    def one(number: int) -> str:
        begin.wait()
        try:
            with file(output, lambda: check_file(output, force)) as temporary:
                temporary.write_text(str(number) * 1000)
        except OutputExistsError:
            return "refused"
        return str(number)

    for _ in range(10):
        output.unlink(missing_ok=True)
        with ThreadPoolExecutor(8) as pool:
            done = [word for word in pool.map(one, range(8)) if word != "refused"]
        assert len(done) == (8 if force else 1)
        assert output.read_text() in [word * 1000 for word in done]
        assert not neighbours(output)


def test_threads_that_save_one_state(tmp_path: Path) -> None:
    """Read the state in another thread meanwhile: reading never fails, and every state is whole."""
    path, done = tmp_path / "stream.state", threading.Event()
    arrays = [{"memory": np.full((64, 64), number, np.float32)} for number in range(8)]
    write_state(path, "it", 1, {"number": 0}, arrays[0])

    def save(number: int) -> None:
        for _ in range(25):
            write_state(path, "it", 1, {"number": number}, arrays[number])

    def read() -> int:
        seen = 0
        while not done.is_set():
            fields, found = read_state(path, "it", 1, "")
            np.testing.assert_array_equal(found["memory"], arrays[fields["number"]]["memory"])
            seen += 1
        return seen

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(save, range(8)))
        done.set()
        assert reading.result() > 0
    assert [path.name for path in tmp_path.iterdir()] == ["stream.state"]
