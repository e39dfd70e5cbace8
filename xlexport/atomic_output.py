"""Publish a folder whole or not at all, and write what a bundle says about itself."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from xlexport.errors import OutputExistsError
from xlruntime.bundle import MANIFEST, digest_file, is_bundle
from xlruntime.spec import Bundle, FileDigest

__all__ = ["SMALL_TENSOR_BYTES", "WEIGHTS_FILE", "check_output", "digests", "publishing", "write_manifest", "writing"]

WEIGHTS_FILE = "weights.data"  # of all graphs of a bundle
SMALL_TENSOR_BYTES = 1024  # smaller initializers stay in the graph, where shape inference can see them
RENAME_EXCHANGE = 2  # Linux, renameat2(2)
AT_FDCWD = -100


def check_output(output: Path, force: bool) -> None:
    """Refuse an output path that must not be replaced, before any work is done.

    Raises:
        OutputExistsError: something stands there that is no bundle, or is a link, or is one and `force` is off.
        FileNotFoundError: its parent folder does not exist.
    """
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent}: no such folder to write {output.name} into. Create it first.")
    if not output.exists() and not output.is_symlink():
        return
    if output.is_symlink():
        raise OutputExistsError(
            f"{output}: a symbolic link, which is never replaced.", repair="Give what it leads to, or another path."
        )
    if not is_bundle(output):
        raise OutputExistsError(
            f"{output}: exists and is not a bundle, so it is never replaced.", repair="Give another path."
        )
    if not force:
        raise OutputExistsError(
            f"{output}: a bundle is there already.", repair="Add --force to replace it, or give another path."
        )


@contextlib.contextmanager
def publishing(output: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `output` that takes its place when the block succeeds, and vanishes when it fails.

    An old bundle stays in place until the new one is complete, then the two change places at once. Two threads of
    one process must not publish to the same place.

    Raises:
        OutputExistsError, FileNotFoundError: as `check_output`.
    """
    check_output(output, force)
    _clean_up_after_killed(output)
    check_output(output, force)  # an old bundle may have come back
    temporary = _temporary(output, os.getpid())
    temporary.mkdir()
    try:
        yield temporary
        _settle(temporary)
        check_output(output, force)  # somebody else may have published meanwhile
        if output.exists():
            _exchange(temporary, output)
        else:
            temporary.rename(output)
        with contextlib.suppress(OSError):  # it stands there, whole: a power cut might only bring the old one back
            _sync(output.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def digests(folder: Path) -> dict[str, FileDigest]:
    """SHA-256 and size of every file of `folder` but the manifest."""
    return {
        path.name: digest_file(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != MANIFEST
    }


def write_manifest(folder: Path, bundle: Bundle) -> None:
    """Write `bundle.json`."""
    (folder / MANIFEST).write_text(bundle.to_json(), "utf-8")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a write that was cut short as what it is; numpy and safetensors have errors of their own for it.

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
    """Remove what killed processes left of attempts at the same output; put back an old bundle that one set aside."""
    prefix = _temporary(output, 0).name.removesuffix("0")
    for path in sorted(output.parent.iterdir()):
        pid, _, aside = path.name.removeprefix(prefix).partition(".")
        if not path.name.startswith(prefix) or not pid.isdigit():
            continue
        if int(pid) != os.getpid() and _is_running(int(pid)):  # ours was an earlier process's: containers count anew
            continue
        if aside and not output.exists():
            path.rename(output)
        else:
            shutil.rmtree(path, ignore_errors=True)


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
