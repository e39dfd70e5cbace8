"""The optional parts of an installation: the packages that each extra of pyproject.toml adds to the base install."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib import metadata

from xlexport.errors import MissingDependencyError

__all__ = ["disable_telemetry", "install_command", "is_installed", "missing_packages", "packages_of", "require"]

# Variables with which packages send nothing of their own accord.
NO_TELEMETRY = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime, if a model's own code imports it
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, for transformers, datasets, evaluate and lm_eval, too
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # datasets and evaluate, which lm_eval imports
    "RAY_USAGE_STATS_ENABLED": "0",
}


def disable_telemetry() -> None:
    """Turn off the telemetry of packages that are not imported yet, unless the user has set their variables."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)


def packages_of(extra: str) -> list[str]:
    """Return the packages of an extra, from the metadata of the installed xlexport; none if it is not installed."""
    try:
        requirements = metadata.requires("xlexport") or []
    except metadata.PackageNotFoundError:  # a copy of the sources on Python's path
        return []
    matches = (re.match(rf"([\w.-]+).*\bextra == ['\"]{extra}['\"]", line) for line in requirements)
    return [match[1] for match in matches if match]


def is_installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def missing_packages(extra: str) -> list[str]:
    """Return the packages of `extra` that are not installed."""
    return [name for name in packages_of(extra) if not is_installed(name)]


def install_command(packages: Iterable[str]) -> str:
    """Return the command that installs packages; xlexport itself is on no package index."""
    return f"pip install {' '.join(packages)}"


def require(extra: str | None, *further: str) -> None:
    """Check that an extra is installed before its packages are imported, and turn off their telemetry.

    Args:
        extra: its name; None: only `further`.
        further: other packages that are needed, too.

    Raises:
        MissingDependencyError: it is not; lists all packages that are missing.
    """
    disable_telemetry()
    missing = [*(missing_packages(extra) if extra else ()), *(name for name in further if not is_installed(name))]
    if missing:
        raise MissingDependencyError(
            f"{', '.join(missing)} not installed, needed here.",
            hint=f"Install {'it' if len(missing) == 1 else 'them'}: {install_command(missing)}.",
        )
