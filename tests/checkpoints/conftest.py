"""Fixtures of the tests of the checkpoint formats."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.fixtures import one_thread, quiet_transformers
from xlexport.checkpoints import safe_pickle
from xlexport.commands import run

__all__ = ["Inspect", "Shown", "inspect", "one_thread", "pickled", "quiet_transformers", "saved"]


@dataclass(frozen=True)
class Shown:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The table's rows."""
        assert self.code == 0, self.err
        width = max(line.index("  ") for line in self.out.splitlines())
        rows = [(line[:width].rstrip(), line[width:].strip()) for line in self.out.splitlines()]
        assert all(value for _, value in rows)
        return rows


Inspect = Callable[..., Shown]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Run `xlexport inspect` with some arguments."""

    def call(*arguments: object) -> Shown:
        code = run(["inspect", *map(str, arguments)])
        captured = capsys.readouterr()
        return Shown(code, captured.out, captured.err)

    return call


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
