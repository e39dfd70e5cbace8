"""Write outputs that appear whole: under a temporary name next to the target, then renamed.

Modes follow the umask.
A killed writer leaves its temporary, `.NAME.tmp-` with random digits. `xlruntime` and `xltraining` have the same file.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from errno import EEXIST
from pathlib import Path

__all__ = ["file", "folder"]


@contextlib.contextmanager
def file(target: Path) -> Iterator[Path]:
    """Yield an empty file, which replaces `target` if the block succeeds; errors name the target."""
    if target.exists() and not target.is_file():
        raise FileExistsError(EEXIST, "exists and is not a file, so it is never replaced", str(target))
    temporary = target.with_name(f".{target.name}.tmp-{secrets.token_hex(8)}")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        yield temporary
        _settle(temporary, mode)
        temporary.replace(target)
    except OSError as error:
        if error.errno is None or str(error.filename or temporary) != str(temporary):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces the folder `target` by two renames: the old one aside, the new one in."""
    aside = target.with_name(f".{target.name}.old")
    if aside.exists():
        raise FileExistsError(EEXIST, f"left by a killed run: rename it to {target.name}, or remove it", str(aside))
    temporary = target.with_name(f".{target.name}.tmp-{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        yield temporary
        for path in filter(Path.is_file, temporary.rglob("*")):
            _settle(path, temporary.stat().st_mode & 0o666)
        if target.is_dir() and not target.is_symlink():
            target.rename(aside)
        temporary.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _settle(path: Path, mode: int) -> None:
    """Write a file to the disk with the mode of new files: some libraries write for the owner only."""
    path.chmod(mode)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
