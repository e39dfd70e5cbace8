"""Our declarations of ONNX Runtime's C interface agree with the official header, if there is one.

The environment variable ONNXRUNTIME_INCLUDE names the folder of onnxruntime_c_api.h. Without it, the folder of Debian's
package libonnxruntime-dev is searched.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.helpers.native import NATIVE, compiler

HEADERS = sorted((NATIVE / "ort").glob("*.h"))
OFFICIAL = "onnxruntime_c_api.h"
TYPES = {  # ours: theirs
    **{
        f"ort::k{name}": f"ONNX_TENSOR_ELEMENT_DATA_TYPE_{name.upper()}" for name in ("Float", "Uint8", "Int8", "Int32")
    },
    **{f"ort::k{name}": f"ONNX_TENSOR_ELEMENT_DATA_TYPE_{name.upper()}" for name in ("Int64", "Bool", "Float16")},
    **{f"ort::k{name}": f"ONNX_TENSOR_ELEMENT_DATA_TYPE_{name.upper()}" for name in ("Double", "Bfloat16")},
    "ort::kFail": "ORT_FAIL",
    "ort::kInvalidArgument": "ORT_INVALID_ARGUMENT",
}
ARITY = """
#include <stdio.h>
template <size_t Index, typename Result, typename... Arguments>
size_t arity(ort::Entry<Index, Result(Arguments...)>) { return sizeof...(Arguments); }
"""
OFFICIAL_ARITY = """
#include <stddef.h>
#include <stdio.h>
template <typename Result, typename... Arguments>
size_t arity(Result (*)(Arguments...)) { return sizeof...(Arguments); }
"""


@pytest.fixture(scope="module")
def official() -> Path:
    """Return the folder of the official header."""
    named = os.environ.get("ONNXRUNTIME_INCLUDE")
    for folder in (
        [Path(named)] if named else [Path("/usr/include/onnxruntime"), Path("/usr/local/include/onnxruntime")]
    ):
        if (folder / OFFICIAL).is_file():
            return folder
    pytest.skip(f"no {OFFICIAL}: install libonnxruntime-dev, or name its folder in ONNXRUNTIME_INCLUDE")


def printed_by(folder: Path, includes: Iterable[str], helpers: str, lines: list[str]) -> list[str]:
    """Compile a program of statements that print, and return what it prints."""
    source, program = folder / "program.cc", folder / "program"
    begin = "".join(f"#include {header}\n" for header in includes) + helpers
    source.write_text(begin + "int main() {\n" + "\n".join(lines) + "\n}\n", "utf-8")
    command = [*(compiler() or "").split(), "-std=c++17", "-w", "-o", str(program), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def entries() -> list[str]:
    """Return the names of the functions that we declare."""
    found = [name for header in HEADERS for name in re.findall(r"using (\w+) =\s*Entry<", header.read_text("utf-8"))]
    assert {"CreateStatus", "KernelContextParallelFor"} <= set(found)
    return found


def fields() -> list[str]:
    """Return the names of the fields of a custom operator that we declare."""
    (body,) = re.findall(r"struct OrtCustomOp \{(.*?)\n\};", (NATIVE / "ort/api.h").read_text("utf-8"), re.DOTALL)
    found = re.findall(r"\(\*(\w+)\)\(", body)
    assert found[0] == "CreateKernel" and found[-1] == "KernelComputeV2"
    return ["version", *found]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_functions_fields_and_numbers_are_those_of_the_official_header(official: Path, tmp_path: Path) -> None:
    names, struct = entries(), (official / OFFICIAL).read_text("utf-8").partition("struct OrtApi {")[2]
    declared = re.findall(r"(?:ORT_API2_STATUS\(|ORT_API_CALL\s*\*\s*)(\w+)", struct)
    declared += [f"Release{name}" for name in re.findall(r"ORT_CLASS_RELEASE\((\w+)\)", struct)]
    theirs = {name.replace("_", "").lower(): name for name in declared}
    line = 'printf("{0} %zu %zu\\n", (size_t)({1}), (size_t)({2}));'
    ours = printed_by(
        tmp_path,
        [f'"{header}"' for header in HEADERS],
        ARITY,
        [
            *(line.format(name, f"ort::{name}::index", f"arity(ort::{name}())") for name in names),
            *(line.format(name, f"offsetof(OrtCustomOp, {name})", 0) for name in fields()),
            *(line.format(name, name, 0) for name in TYPES),
        ],
    )
    found = printed_by(
        tmp_path,
        [f'"{official / OFFICIAL}"'],
        OFFICIAL_ARITY,
        [
            *(
                line.format(name, f"offsetof(OrtApi, {their}) / sizeof(void*)", f"arity(decltype(OrtApi::{their}){{}})")
                for name in names
                for their in [theirs[name.lower()]]
            ),
            *(line.format(name, f"offsetof(OrtCustomOp, {name})", 0) for name in fields()),
            *(line.format(name, their, 0) for name, their in TYPES.items()),
        ],
    )
    assert ours == found
