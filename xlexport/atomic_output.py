"""Protect existing outputs, and publish new ones completely or not at all (`xlruntime.atomic_output`)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from xlexport.errors import OutputExistsError, OutputFolderError
from xlruntime import atomic_output

__all__ = ["check_file", "check_folder", "check_own_folder", "file", "folder", "naming", "writing"]


def check_folder(output: Path) -> None:
    """Refuse an output path whose folder does not exist.

    Raises:
        OutputFolderError: the folder does not exist; the message names it.
    """
    if not output.parent.is_dir():
        raise OutputFolderError(
            f"{output.parent}: no such folder to write {output.name} into.", hint="Create it first."
        )


def check_file(output: Path, force: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before any work is done.

    Raises:
        OutputExistsError: `output` exists and is not a file, or it is a file and `force` is off.
        OutputFolderError: its folder does not exist.
    """
    _check(output, force, Path.is_file, "a file")
    if output.is_symlink() and not output.exists():
        raise OutputExistsError(f"{output}: a link to a missing file.", hint="Remove it, or give another path.")


def check_own_folder(output: Path, force: bool, is_own: Callable[[Path], bool], kind: str) -> None:
    """Refuse a folder that must not be replaced, before any work is done.

    Args:
        is_own: returns whether a folder is of the kind that may be replaced.
        kind: that kind, for messages: "a bundle".

    Raises:
        OutputExistsError: the output exists and is of another kind, or is a link, or `force` is off.
        OutputFolderError: its parent folder does not exist.
    """
    if output.is_symlink():
        raise OutputExistsError(
            f"{output}: a symbolic link, which is never replaced.", hint="Give what it leads to, or another path."
        )
    _check(output, force, is_own, kind)


def _check(output: Path, force: bool, is_own: Callable[[Path], bool], kind: str) -> None:
    check_folder(output)
    if output.exists() and not is_own(output):
        raise OutputExistsError(
            f"{output}: exists and is not {kind}, so it is never replaced.", hint="Give another path."
        )
    if output.exists() and not force:
        raise OutputExistsError(
            f"{output}: {kind} is there already.", hint="Add --force to replace it, or give another path."
        )


@contextlib.contextmanager
def file(output: Path, check: Callable[[], None] | None = None) -> Iterator[Path]:
    """Yield a file to write. It replaces `output` if the block succeeds, and is removed if the block fails.

    Args:
        check: raises if `output` must not be replaced; called before the block and again after it.

    Raises:
        OSError: the file cannot be written; an older file stays unchanged.
    """
    check = check or (lambda: check_folder(output))
    check()
    with naming(output, if_named=False), atomic_output.file(output) as temporary:
        yield temporary
        check()


@contextlib.contextmanager
def folder(output: Path, check: Callable[[], None]) -> Iterator[Path]:
    """Yield a folder to fill, as `file` yields a file to write."""
    check()
    with naming(output, if_named=False), atomic_output.folder(output) as temporary:
        yield temporary
        check()


@contextlib.contextmanager
def naming(output: Path, if_named: bool = True) -> Iterator[None]:
    """Let system errors in the block name `output` instead of its temporary file.

    Args:
        if_named: whether this goes for errors that name a file, too.

    Raises:
        OSError: with the name of `output`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and not if_named):
            raise
        raise OSError(error.errno, error.strerror, str(output)) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report an incomplete write as a full disk; numpy and safetensors raise errors of their own for it.

    Raises:
        OSError: with the error number of a full disk, and `path`.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.ENOSPC, f"cannot be written completely ({error})", str(path)) from error
