"""The C++ programs that test kernels without ONNX Runtime: natively, under sanitizers, and on 64-bit ARM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.c_library import SANITIZED, build_c_runtime
from tests.helpers.native import build_with

pytestmark = pytest.mark.native

PROGRAMS = ("lsh", "local_attention", "relative_attention")
ARM = "aarch64-linux-musl"  # linked statically, so an emulator needs no libraries of that platform


def run(command: list[str | Path], shapes: int, **environment: str) -> str:
    """Run a program on this number of random shapes, and return its line about instruction set and differences."""
    given = {**os.environ, **environment}
    done = subprocess.run([*command, str(shapes)], env=given, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(rf"\w+: {shapes} shapes, largest difference ", done.stdout), done.stdout
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_equal_a_plain_reference(name: str) -> None:
    run([build_c_runtime(targets=PROGRAMS) / name], 200)


@pytest.mark.parametrize("level", ["base", "avx2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lower_instruction_sets_equal_it_too(name: str, level: str) -> None:
    shown = run([build_c_runtime(targets=PROGRAMS) / name], 300, XLEXPORT_OPS_INSTRUCTION_SET=level)
    assert shown.startswith((f"{level}:", "base:"))


@pytest.mark.parametrize("sanitizers", SANITIZED)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sanitizers_find_nothing(name: str, sanitizers: str) -> None:
    # GCC 12 places vectors of 64 bytes wrongly on the stack that detect_stack_use_after_return makes.
    environment = {**SANITIZED[sanitizers], "ASAN_OPTIONS": "detect_leaks=1"}
    run([build_c_runtime(sanitizers, PROGRAMS) / name], 100, **environment)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_equal_it_on_arm(name: str) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None or find_spec("ziglang") is None:
        pytest.skip("needs qemu-aarch64 (Debian's package qemu-user) and the package ziglang")
    compiler = f"{sys.executable} -m ziglang c++ -target {ARM}"
    program = build_with(compiler, "-fno-sanitize=undefined", name, "aarch64")
    assert run([emulator, program], 60).startswith("base: ")
