"""Open a bundle in whatever runs its graphs: ONNX Runtime, or PyTorch where the user trusts the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xlruntime
from xlruntime.bundle import read_bundle
from xlruntime.model import Model

__all__ = ["open_bundle"]


def open_bundle(folder: str | Path, *, trust: bool = False, **options: Any) -> Model:
    """`xlruntime.load`, or with `trust` `xlexport.torch_runtime.load` for a bundle that PyTorch runs.

    Args:
        trust: whether code that is in the bundle may run.
        options: those of `xlruntime.load`.

    Raises:
        BundleError, ProviderError, OptionError: as both of them.
    """
    if trust and any(graph.format != "onnx" for graph in read_bundle(Path(folder), False).graphs.values()):
        from xlexport.torch_runtime import load

        return load(folder, **options)
    return xlruntime.load(folder, **options)
