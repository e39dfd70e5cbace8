"""Inner loops are compiled once for each instruction set: no function of one set may serve another."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.native import NATIVE, compiler

pytestmark = pytest.mark.native

FLAGS = {
    "base": (),
    "avx2": ("-mavx2", "-mfma", "-mbmi2"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mavx512cd", "-mfma", "-mbmi2"),
}
FLAGS["vnni"] = (*FLAGS["avx512"], "-mavx512vnni")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instruction sets of x86-64")
@pytest.mark.parametrize("level", FLAGS)
def test_no_function_is_shared_between_instruction_sets(level: str, tmp_path: Path) -> None:
    """Look for weak symbols, of which a linker keeps one copy for all files: it may be that of AVX-512.

    Without optimization each inline function becomes such a symbol, unless it is always inlined or in an anonymous
    namespace.
    """
    found, nm = compiler(), shutil.which("nm")
    if found is None or nm is None:
        pytest.skip("needs a C++ compiler and nm")
    made = tmp_path / f"{level}.o"
    source = NATIVE / "kernels" / f"level_{level}.cc"
    subprocess.run(
        [*found.split(), *("-std=c++17", "-O0", "-fPIC", "-fno-exceptions"), *FLAGS[level], "-c", source, "-o", made],
        check=True,
    )
    listed = subprocess.run([nm, "--demangle", "--defined-only", made], check=True, capture_output=True, text=True)
    symbols = [line.split(maxsplit=2)[1:] for line in listed.stdout.splitlines()]
    assert [name for kind, name in symbols if kind in "WVu" or kind == "T"] == []
    table = "vnni_int8_attention" if level == "vnni" else f"level_{level}"
    assert [kind for kind, name in symbols if name == f"xlexport::{table}"] == ["D"]
