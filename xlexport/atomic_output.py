"""Refuse outputs that must not be replaced, and publish the others whole or not at all (`xlruntime.atomic_output`).

A process that is killed leaves the old output, or none; the next run at the same output removes its remains. Several
may publish to one output: without a permission to replace it, only the first succeeds; with it, the last one wins.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from xlexport.errors import OutputExistsError, OutputFolderError
from xlruntime import atomic_output

__all__ = ["check_file", "check_folder", "file", "folder", "naming", "writing"]


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
    """Yield a file to write, which replaces `output` if the block succeeds and vanishes if it fails.

    Args:
        check: raises if `output` must not be replaced; called before the block and again after it.

    Raises:
        OSError: it cannot be written; an older file stays as it was.
    """
    check = check or (lambda: check_folder(output))
    check()
    with atomic_output.file(output, check) as temporary:
        yield temporary


@contextlib.contextmanager
def folder(output: Path, check: Callable[[], None]) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `output` if the block succeeds and vanishes if it fails.

    An old folder stays in place until the new one is complete, then the two change places at once.

    Args:
        check: raises if `output` must not be replaced; called before the block and again after it.
    """
    check()
    with atomic_output.folder(output, check) as temporary:
        check()  # an old folder may have come back
        yield temporary


@contextlib.contextmanager
def naming(output: Path) -> Iterator[None]:
    """Let all errors of the system in the block name `output`, not the file in which it grows.

    Raises:
        OSError: with the name of `output`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
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
