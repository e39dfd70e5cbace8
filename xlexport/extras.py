"""The optional parts of an installation: which packages each command needs beyond the base install."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from xlexport.errors import MissingDependencyError

__all__ = ["EXTRAS", "missing_modules", "require"]

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "convert": ("torch", "onnx", "onnx_ir", "onnxscript", "google_crc32c"),
    "train": ("torch", "tqdm"),
    "text": ("sentencepiece", "tokenizers"),
    "tables": ("pyarrow",),
    "plot": ("matplotlib",),
}
"""Extra -> the modules that it installs; the names are those of pyproject.toml."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of `extra` that are not installed, without importing any."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def require(extra: str) -> None:
    """Check that an extra is installed before its packages are imported.

    Raises:
        MissingDependencyError: it is not; lists all modules that are missing.
    """
    missing = missing_modules(extra)
    if missing:
        raise MissingDependencyError(
            f"{', '.join(missing)} not installed, needed here.", repair=f"Install it: pip install 'xlexport[{extra}]'."
        )
