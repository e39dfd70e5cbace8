"""The library of kernels, built from the sources of this checkout once for all sessions of the same sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.paths import ROOT

__all__ = ["NATIVE", "build_kernels", "build_with", "compiler", "installed_package", "kernel_library"]

NATIVE = ROOT / "runtime" / "c"
CACHE = ROOT / ".pytest_cache" / "native"
BUILT_FROM = ("kernels", "ort", "build_library.py")
CASES = ("tests/fake_ort.h", "tests/kernel_test.h")


def compiler() -> str | None:
    """Return this machine's C++ compiler: that of CXX, or the first one that is installed."""
    return os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)


def installed_package() -> bool:
    """Return whether xlexport-ops is installed."""
    return importlib.util.find_spec("xlexport_ops") is not None


def build_kernels() -> Path:
    """Return the library, built with the machine's compiler; without one, skip the test.

    Another session or worker may have built it from the same sources.
    """
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler: install g++ or clang, or name one in CXX")
    return build_with(found)


def build_with(found: str, flags: str = "", program: str | None = None, target: str | None = None) -> Path:
    """Return the library, or a program that is linked with the kernels, built once for the same sources.

    Args:
        found: the command of the compiler, which may build for another architecture.
        flags: additional flags.
        program: the name of a file of `runtime/c/tests` with a main function. Then this is a program.
        target: the architecture; None: that of this machine.
    """
    version = subprocess.run([*found.split(), "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(f"{found} {flags} {target}".encode() + version)
    _add_files(digest, BUILT_FROM)
    objects = CACHE / f"kernels-{digest.hexdigest()[:16]}"  # the same for the library and all programs
    digest.update(str(program).encode())
    _add_files(digest, () if program is None else (f"tests/{program}.cc", *CASES))
    folder = CACHE / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    objects.mkdir(exist_ok=True)
    library, making = folder / (program or "libxlexport_ops.so"), folder / "making"
    with FileLock(objects / "lock"):  # other workers may need the same objects at the same time
        if not library.is_file():
            command = [sys.executable, str(NATIVE / "build_library.py"), "-o", str(making), "--compiler", found]
            command += [f"--flags={flags}", "--objects", str(objects), *(["--target", target] if target else [])]
            command += [] if program is None else ["--program", str(NATIVE / "tests" / f"{program}.cc")]
            subprocess.run(command, check=True)
            making.rename(library)
    return library


def _add_files(digest: hashlib._Hash, names: Iterable[str]) -> None:
    """Add the names and contents of files, and of all files of folders, in the order of their names."""
    for file in sorted(path for name in names for path in _files(NATIVE / name)):
        digest.update(f"{file.relative_to(NATIVE)} {file.stat().st_size}\n".encode() + file.read_bytes())


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


@pytest.fixture(scope="session")
def kernel_library() -> Path:
    """Return the library of this checkout; without both a compiler and the installed package, skip the test.

    Without a compiler, or if the variable KERNELS is `installed`, it is the library of the installed package.
    """
    if installed_package() and (compiler() is None or os.environ.get("KERNELS") == "installed"):
        import xlexport_ops

        return Path(xlexport_ops.LIBRARY)
    return build_kernels()
