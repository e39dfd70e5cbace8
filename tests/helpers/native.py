"""The library of kernels, built from the sources of this checkout once for all sessions of the same sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.paths import ROOT

__all__ = ["NATIVE", "build_kernels", "compiler", "installed_package", "kernel_library"]

NATIVE = ROOT / "runtime" / "native"
CACHE = ROOT / ".pytest_cache" / "native"
BUILT_FROM = ("ops", "ort", "build_library.py")


def compiler() -> str | None:
    """Return this machine's C++ compiler: that of CXX, or the first one that is installed."""
    return os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)


def installed_package() -> bool:
    """Return whether xlexport-ops is installed."""
    return importlib.util.find_spec("xlexport_ops") is not None


def build_kernels(flags: str = "") -> Path:
    """Return the library, built with the machine's compiler and these flags, such as `-fsanitize=address -g`.

    Another session or worker may have built it from the same sources. Without a compiler, the test is skipped.
    """
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler: install g++ or clang, or name one in CXX")
    version = subprocess.run([*found.split(), "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(f"{found} {flags}".encode() + version)
    for file in sorted(path for name in BUILT_FROM for path in _files(NATIVE / name)):
        digest.update(f"{file.relative_to(NATIVE)} {file.stat().st_size}\n".encode() + file.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    library, making = folder / "libxlexport_ops.so", folder / "making.so"
    with FileLock(folder / "lock"):  # other workers may need it at the same time
        if not library.is_file():
            command = [sys.executable, str(NATIVE / "build_library.py"), "-o", str(making), "--compiler", found]
            subprocess.run([*command, f"--flags={flags}"], check=True)
            making.rename(library)
    return library


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


@pytest.fixture(scope="session")
def kernel_library() -> Path:
    """Return the library of this checkout, or else that of the installed package; without both, skip the test."""
    if compiler() is None and installed_package():
        import xlexport_ops

        return Path(xlexport_ops.LIBRARY)
    return build_kernels()
