"""Publish a file or a folder whole or not at all, even if writing fails or is killed.

Hidden names have no process number, so the next run replaces what a killed one has left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["publishing"]


@contextlib.contextmanager
def publishing(output: Path) -> Iterator[Path]:
    """Yield a path where the block makes a file or a folder, which then replaces `output`.

    If the block fails, the old output stays. A folder cannot be replaced in one step: a killed process may have set
    the old one aside, and then it comes back here.

    Raises:
        OSError: it cannot be written.
    """
    temporary, aside = output.with_name(f".{output.name}.tmp"), output.with_name(f".{output.name}.old")
    if aside.exists() and not output.exists():
        os.replace(aside, output)
    _remove(aside)
    _remove(temporary)
    try:
        yield temporary
        for path in sorted(temporary.iterdir()) if temporary.is_dir() else [temporary]:
            _sync(path)
        if output.is_dir() and temporary.is_dir():
            os.replace(output, aside)
            try:
                os.replace(temporary, output)
            except OSError:
                os.replace(aside, output)
                raise
            _remove(aside)
        else:
            os.replace(temporary, output)
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
