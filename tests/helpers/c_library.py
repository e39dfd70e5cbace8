"""Build the C runtime of runtime/c with CMake, once for all sessions of the same sources."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.c_runtime import CRuntime
from tests.helpers.paths import ROOT

__all__ = ["NATIVE", "SANITIZED", "TARGETS", "build_c_runtime", "c_runtime", "find_onnxruntime"]

NATIVE = ROOT / "runtime" / "c"
TARGETS = ("xlruntime_shared", "xlscore", "stream", "stream_cpp")
SANITIZED = {  # sanitizers of the compiler, and how programs that have them run
    "address,undefined": {
        # Without detect_stack_use_after_return: GCC 12 places vectors of 64 bytes wrongly on the stack that it makes.
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    },
    # ONNX Runtime itself is not instrumented, so what it does to memory is not looked at.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"},
}


@functools.cache
def build_c_runtime(sanitize: str = "", targets: tuple[str, ...] = TARGETS) -> Path:
    """Return the folder of the built library and examples; skip the test if a tool is missing.

    Args:
        sanitize: sanitizers of the compiler, such as `address,undefined`.
    """
    missing = [tool for tool in ("cmake", "c++", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the C runtime needs {', '.join(missing)}: install CMake and a C++ compiler")
    folder = ROOT / ".pytest_cache" / "native" / f"cmake{sanitize and '-'}{sanitize.replace(',', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # CMake compiles what has changed since the last session
        options = [f"-DXLRUNTIME_SANITIZE={sanitize}", "-DXLRUNTIME_TESTS=ON"]
        options += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1"] if sanitize else []
        _run("cmake", "-S", NATIVE, "-B", folder, *options)
        _run("cmake", "--build", folder, "--parallel", str(os.cpu_count()), "--target", *targets)
    return folder


def find_onnxruntime() -> Path:
    """Return the library of the installed ONNX Runtime, whose scores are those of Python; skip if it has none."""
    import onnxruntime

    found = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        pytest.skip("this ONNX Runtime has no library for C")
    return found[0]


@pytest.fixture(scope="session")
def c_runtime() -> CRuntime:
    """Return the C interface of the library."""
    return CRuntime(build_c_runtime() / "libxlruntime.so", find_onnxruntime())


def _run(*command: str | Path) -> None:
    """Run a command of CMake; show its output only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
