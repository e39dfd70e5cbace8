"""Fixtures for several folders: a conftest imports the ones it needs; some then apply to all tests of its folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import xlexport.conversion
from xlexport.families import Step
from xlexport.families.step import StepGraphs
from xlruntime.bundle_files import read_bundle


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers() -> None:
    """Silence transformers, which warns about deprecated classes for every model; do not import it."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if "transformers" in sys.modules:
        sys.modules["transformers"].logging.set_verbosity_error()


@pytest.fixture
def reuse_graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make `convert` reuse the graphs of a bundle, because tracing the same model again takes seconds."""

    def reuse(made: Path) -> None:
        def copy_graphs(step: Step, folder: Path, shorter: Sequence[Step] = ()) -> StepGraphs:
            bundle = read_bundle(made)
            for name in ("weights.data", *(graph.file for graph in bundle.graphs.values())):
                shutil.copyfile(made / name, folder / name)
            return StepGraphs(dict(bundle.graphs), dict(bundle.steps))

        monkeypatch.setattr(xlexport.conversion, "export_onnx", copy_graphs)

    return reuse
