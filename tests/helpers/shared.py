"""Folders that one worker of pytest-xdist makes and all workers read."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

T = TypeVar("T")


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> tuple[Path, T]:
    """Return the session's folder of this name and what `make` returned when it filled the folder.

    The first caller in any worker makes it, and the others wait. Tests must not change its files.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, result = root / name, root / f"{name}.pickle"
    with FileLock(root / f"{name}.lock"):
        if not result.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # of a caller that failed
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
    return folder, pickle.loads(result.read_bytes())
