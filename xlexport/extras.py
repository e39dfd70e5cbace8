"""The optional parts of an installation: which packages each command needs beyond the base install."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

from xlexport.errors import MissingDependencyError

__all__ = ["DISTRIBUTIONS", "EXTRAS", "install_command", "missing_modules", "require"]

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "convert": ("torch", "onnx", "onnx_ir", "onnxscript", "google_crc32c"),
    "train": ("torch",),
    "text": ("sentencepiece", "tokenizers"),
    "tables": ("pyarrow",),
    "plot": ("matplotlib",),
    "images": ("PIL",),
    "ray": ("fsspec", "pandas", "pyarrow", "ray"),
    "tensorboard": ("tensorboard",),
    "serve": ("prometheus_client", "pydantic", "starlette", "uvicorn"),
    "lm-eval": ("aiohttp", "lm_eval", "requests", "tenacity"),
}
"""Extra -> the modules that it installs; the names are those of pyproject.toml."""

DISTRIBUTIONS: Mapping[str, str] = {
    "PIL": "pillow",
    "google_crc32c": "google-crc32c",
    "lm_eval": "lm-eval",
    "onnx_ir": "onnx-ir",
    "prometheus_client": "prometheus-client",
}
"""Module -> its name on the package index, if the names differ."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of `extra` that are not installed, without importing any."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def install_command(modules: Iterable[str]) -> str:
    """Return the command that installs packages; xlexport itself is on no package index."""
    return f"pip install {' '.join(DISTRIBUTIONS.get(name, name) for name in modules)}"


def require(extra: str, *further: str) -> None:
    """Check that an extra is installed before its packages are imported.

    Args:
        further: other modules that are needed, too.

    Raises:
        MissingDependencyError: it is not; lists all modules that are missing.
    """
    missing = [*missing_modules(extra), *(name for name in further if importlib.util.find_spec(name) is None)]
    if missing:
        raise MissingDependencyError(
            f"{', '.join(missing)} not installed, needed here.",
            hint=f"Install {'it' if len(missing) == 1 else 'them'}: {install_command(missing)}.",
        )
