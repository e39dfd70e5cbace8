"""Fixtures of the tests of the restricted reader."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xlexport.checkpoints import safe_pickle


@pytest.fixture
def pickled(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that writes a value, or a pickle's bytes, to a file and reads it with the restricted reader."""

    def write_and_read(content: Any, protocol: int = 2, **settings: Any) -> Any:
        path = tmp_path / "content.pkl"
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
        return safe_pickle.read(path, **settings)

    return write_and_read


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that writes a value with torch.save and reads it with the restricted reader."""

    def save_and_read(content: Any, new: bool = True, **settings: Any) -> Any:
        path = tmp_path / "content.pt"
        torch.save(content, path, _use_new_zipfile_serialization=new, **settings)
        return safe_pickle.read(path)

    return save_and_read
