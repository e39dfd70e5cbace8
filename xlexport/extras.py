"""The optional parts of an installation: the packages that each extra of pyproject.toml adds to the base install."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

from xlexport.errors import MissingDependencyError

__all__ = ["install_command", "is_installed", "missing_packages", "packages_of", "require"]


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
    """Check that an extra is installed before its packages are imported.

    Args:
        extra: its name; None: only `further`.
        further: other packages that are needed, too.

    Raises:
        MissingDependencyError: it is not; lists all packages that are missing.
    """
    missing = [*(missing_packages(extra) if extra else ()), *(name for name in further if not is_installed(name))]
    if missing:
        raise MissingDependencyError(
            f"{', '.join(missing)} not installed, needed here.",
            hint=f"Install {'it' if len(missing) == 1 else 'them'}: {install_command(missing)}.",
        )
