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

from tests.helpers.native import build_kernels, build_with

pytestmark = pytest.mark.native

PROGRAMS = ("lsh", "relative_attention")
ARM = "aarch64-linux-musl"  # linked statically, so an emulator needs no libraries of that platform
SANITIZERS = {"address": "-fsanitize=address,undefined -fno-sanitize-recover=all", "thread": "-fsanitize=thread"}


def run(command: list[str | Path], shapes: int, level: str | None = None) -> str:
    """Run a program on this number of random shapes, and return its line about instruction set and differences."""
    environment = {**os.environ, **({"XLEXPORT_OPS_INSTRUCTION_SET": level} if level else {})}
    done = subprocess.run(
        [*command, str(shapes)], env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(rf"\w+: {shapes} shapes, largest difference ", done.stdout), done.stdout
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_equal_a_plain_reference(name: str) -> None:
    run([build_kernels(program=name)], 200)


@pytest.mark.parametrize("level", ["base", "avx2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lower_instruction_sets_equal_it_too(name: str, level: str) -> None:
    assert run([build_kernels(program=name)], 300, level).startswith((f"{level}:", "base:"))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sanitizers_find_nothing(name: str, sanitizer: str) -> None:
    run([build_kernels(f"-g -O1 {SANITIZERS[sanitizer]}", name)], 100)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_equal_it_on_arm(name: str) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None or find_spec("ziglang") is None:
        pytest.skip("needs qemu-aarch64 (Debian's package qemu-user) and the package ziglang")
    compiler = f"{sys.executable} -m ziglang c++ -target {ARM}"
    program = build_with(compiler, "-fno-sanitize=undefined", name, "aarch64")
    assert run([emulator, program], 60).startswith("base: ")
