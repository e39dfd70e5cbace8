"""Copies of a Reformer's bundle, and of the kernels, in which LSH sorts in reverse or gathers row 0 for every index."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import onnx

from tests.helpers.c_library import NATIVE, build_c_runtime
from tests.helpers.manifests import edit_manifest
from xlruntime.bundle_files import digest_file

OPERATORS = ("LSHSort", "LSHGather")
HEAD = '<domain: "ai.xlexport", opset_import: ["": 20, "ai.xlexport": 1]>'
BODIES = {  # which call their own one under the name Own
    "LSHSort": """LSHSort (buckets) => (order, inverse) {
        sorted, ranks = ai.xlexport.Own (buckets)
        back = Constant <value_ints = [-1]> ()
        end = Constant <value_ints = [-2147483648]> ()
        order = Slice (sorted, back, end, back, back)
        count = Shape <start = -1> (buckets)
        last = Add (count, back)
        inverse = Sub (last, ranks)
    }""",
    "LSHGather": """LSHGather (rows, index) => (gathered) {
        first = Sub (index, index)
        gathered = ai.xlexport.Own (rows, first)
    }""",
}
LINES = {  # of kernels: file, text, and what takes its place
    "LSHSort": (
        "lsh_sort.cc",
        "for (int64_t k = 0; k < N; ++k) inverse[order[k]] = k;",
        "for (int64_t k = 0; k < N; ++k) inverse[order[k]] = N - 1 - k;"
        "for (int64_t k = 0; k < N; ++k) order[inverse[k]] = k;",
    ),
    "LSHGather": ("lsh_gather.cc", "own + wanted[m] * bytes", "own + 0 * wanted[m]"),
}


def with_another_body(bundle: Path, folder: Path, operator: str) -> Path:
    """Copy a bundle to `folder`, where score and detail have another body of the operator, with new digests."""
    shutil.copytree(bundle, folder)
    files = {name: folder / name for name in ("score.onnx", "detail.onnx")}
    for file in files.values():
        graph = onnx.load(file, load_external_data=False)
        (own,) = (function for function in graph.functions if function.name == operator)
        own.name = "Own"
        graph.functions.append(onnx.parser.parse_function(HEAD + BODIES[operator]))
        onnx.save(graph, file)
    digests = {name: asdict(digest_file(file)) for name, file in files.items()}
    edit_manifest(folder, lambda manifest: manifest["files"].update(digests))
    return folder


def library_with_another(operator: str, library: Path) -> Path:
    """Link a library with another kernel of the operator, which is both the C runtime and a library of kernels."""
    built = build_c_runtime() / "CMakeFiles"
    name, old, new = LINES[operator]
    text = (NATIVE / "kernels" / name).read_text("utf-8")
    assert text.count(old) == 1
    source = library.with_suffix(".cc")
    source.write_text(text.replace(old, new), "utf-8")
    objects = [*built.glob("xlruntime_objects.dir/**/*.o"), *built.glob("xlruntime_kernels.dir/kernels/*.o")]
    kept = [file for file in objects if file.name not in (f"{name}.o", "register.cc.o")]  # its functions are hidden
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{NATIVE / 'kernels'}"]
    sources = [source, NATIVE / "kernels" / "register.cc"]
    subprocess.run(["c++", *flags, *sources, *kept, "-o", library, "-pthread", "-ldl"], check=True)
    return library
