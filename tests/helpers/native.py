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

__all__ = ["NATIVE", "build_kernels", "build_with", "compiler", "installed_package", "kernel_library"]

NATIVE = ROOT / "runtime" / "native"
CACHE = ROOT / ".pytest_cache" / "native"
BUILT_FROM = ("ops", "ort", "build_library.py")


def compiler() -> str | None:
    """Return this machine's C++ compiler: that of CXX, or the first one that is installed."""
    return os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)


def installed_package() -> bool:
    """Return whether xlexport-ops is installed."""
    return importlib.util.find_spec("xlexport_ops") is not None


def build_kernels(flags: str = "", program: str | None = None) -> Path:
    """Return the library, built with the machine's compiler and these flags, such as `-fsanitize=address -g`.

    Another session or worker may have built it from the same sources. Without a compiler, the test is skipped.

    Args:
        program: the name of a file of `runtime/native/tests` with a main function. Then this is a program.
    """
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler: install g++ or clang, or name one in CXX")
    return build_with(found, flags, program)


def build_with(found: str, flags: str = "", program: str | None = None, target: str | None = None) -> Path:
    """Return the same, built with the command `found`, which may build for another architecture."""
    version = subprocess.run([*found.split(), "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(f"{found} {flags} {program} {target}".encode() + version)
    built_from = BUILT_FROM if program is None else (*BUILT_FROM, "tests/fake_ort.h", f"tests/{program}.cc")
    for file in sorted(path for name in built_from for path in _files(NATIVE / name)):
        digest.update(f"{file.relative_to(NATIVE)} {file.stat().st_size}\n".encode() + file.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    library, making = folder / (program or "libxlexport_ops.so"), folder / "making"
    with FileLock(folder / "lock"):  # other workers may need it at the same time
        if not library.is_file():
            command = [sys.executable, str(NATIVE / "build_library.py"), "-o", str(making), "--compiler", found]
            command += [f"--flags={flags}", *(["--target", target] if target else [])]
            command += [] if program is None else ["--program", str(NATIVE / "tests" / f"{program}.cc")]
            subprocess.run(command, check=True)
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
