"""Publish a file or a folder whole or not at all, even if writing fails or is killed.

Both are written under a hidden name in the same folder, synchronized, and then take their place in one step. A process
that is killed leaves the old output, or none; the next run at the same output removes its remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from xlexport.errors import OutputExistsError, OutputFolderError

__all__ = ["check_file", "check_folder", "file", "folder", "move_into_place", "naming", "writing"]

RENAME_EXCHANGE = 2  # Linux, renameat2(2)
AT_FDCWD = -100


def check_folder(output: Path) -> None:
    """Refuse an output path whose folder does not exist.

    Raises:
        OutputFolderError: names it.
    """
    if not output.parent.is_dir():
        raise OutputFolderError(
            f"{output.parent}: no such folder to write {output.name} into.", repair="Create it first."
        )


def check_file(output: Path, force: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before any work is done.

    Raises:
        OutputExistsError: `output` exists and is not a file, or it is a file and `force` is off.
        OutputFolderError: its folder does not exist.
    """
    check_folder(output)
    if output.exists() and not output.is_file():
        raise OutputExistsError(
            f"{output}: exists and is not a file, so it is never replaced.", repair="Give another path."
        )
    if output.is_symlink() and not output.exists():
        raise OutputExistsError(f"{output}: a link that leads nowhere.", repair="Remove it, or give another path.")
    if output.exists() and not force:
        raise OutputExistsError(
            f"{output}: a file is there already.", repair="Add --force to replace it, or give another path."
        )


@contextlib.contextmanager
def file(output: Path, check: Callable[[], None] | None = None) -> Iterator[Path]:
    """Yield a path to write, whose file replaces `output` if the block succeeds and vanishes if it fails.

    Args:
        check: raises if `output` must not be replaced; called before the block and again after it.

    Raises:
        OSError: it cannot be written; an older file stays as it was.
    """
    check = check or (lambda: check_folder(output))
    check()
    _clean_up_after_killed(output)
    temporary = _temporary(output, os.getpid())
    try:
        with naming(output, temporary):
            yield temporary
            _sync(temporary)
            check()  # somebody else may have published meanwhile
            move_into_place(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def folder(output: Path, check: Callable[[], None]) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `output` if the block succeeds and vanishes if it fails.

    An old folder stays in place until the new one is complete, then the two change places at once. Two threads of one
    process must not publish to the same place.

    Args:
        check: raises if `output` must not be replaced; called before the block and again after it.
    """
    check()
    _clean_up_after_killed(output)
    check()  # an old folder may have come back
    temporary = _temporary(output, os.getpid())
    temporary.mkdir()
    try:
        yield temporary
        _settle(temporary)
        check()  # somebody else may have published meanwhile
        if output.exists():
            _exchange(temporary, output)
        else:
            temporary.rename(output)
        _sync_parent(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into_place(complete: Path, output: Path) -> None:
    """Let a complete file, which is on the disk already, replace `output` in one step."""
    os.replace(complete, output)
    _sync_parent(output)


@contextlib.contextmanager
def naming(output: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let errors of the system in the block name `output`, not the hidden file that the user never gave.

    Args:
        temporary: the hidden file; None: all errors of the block are of `output`.

    Raises:
        OSError: with the name of `output`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (temporary is not None and error.filename not in (None, str(temporary))):
            raise
        raise OSError(error.errno, error.strerror, str(output)) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a write that was cut short as a full disk; numpy and safetensors have errors of their own for it.

    Raises:
        OSError: with the number that a full disk has, and `path`.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.ENOSPC, f"cannot be written whole ({error})", str(path)) from error


def _temporary(output: Path, pid: int) -> Path:
    return output.with_name(f".{output.name}.xlexport-{pid}")


def _clean_up_after_killed(output: Path) -> None:
    """Remove what killed processes left of attempts at the same output; put back an old folder that one set aside."""
    prefix = _temporary(output, 0).name.removesuffix("0")
    for path in sorted(output.parent.iterdir()):
        pid, _, aside = path.name.removeprefix(prefix).partition(".")
        if not path.name.startswith(prefix) or not pid.isdigit():
            continue
        if int(pid) != os.getpid() and _is_running(int(pid)):  # ours was an earlier container's
            continue
        if aside and not output.exists():
            path.rename(output)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has a number that large
        return False
    except PermissionError:
        return True
    return True


def _settle(folder: Path) -> None:
    """Make every file readable by others, and have it all on the disk before it is published."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
        _sync(path)
    _sync(folder)


def _sync_parent(output: Path) -> None:
    with contextlib.suppress(OSError):  # the output is complete: a power cut might only bring the old one back
        _sync(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Let two folders change places: in one step where the system can, so that `old` is never missing."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(old), RENAME_EXCHANGE)
    except (OSError, AttributeError, TypeError):  # not Linux, or a C library without it
        failed = True
    if not failed:
        return
    aside = old.with_name(f"{new.name}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)  # removed with the temporary folder
