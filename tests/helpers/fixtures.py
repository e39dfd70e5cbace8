"""Fixtures of several folders: a conftest imports those it wants, and some then serve every test beside it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import xlexport.convert
from xlexport.architectures import Step
from xlruntime import spec
from xlruntime.bundle import read_bundle

__all__ = ["one_thread", "quiet_transformers", "reuse_graphs"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from more threads, and lose much where other processes want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers() -> None:
    """Silence transformers, which says with every model that its classes are deprecated; import nothing for it."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if "transformers" in sys.modules:
        sys.modules["transformers"].logging.set_verbosity_error()


@pytest.fixture
def reuse_graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let `convert` take the graphs of a bundle instead of tracing the same model for seconds again."""

    def reuse(made: Path) -> None:
        def copy_graphs(step: Step, folder: Path) -> dict[str, spec.Graph]:
            bundle = read_bundle(made)
            for name in ("weights.data", *(graph.file for graph in bundle.graphs.values())):
                shutil.copyfile(made / name, folder / name)
            return dict(bundle.graphs)

        monkeypatch.setattr(xlexport.convert, "export_onnx", copy_graphs)

    return reuse
