"""The fuzzer of the parts of the C runtime that read files of strangers."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.native import CACHE, NATIVE, compiler

__all__ = ["fuzz_program"]

FLAGS = ("-std=c++17", f"-I{NATIVE / 'include'}", "-O1", "-g1", "-Wall", "-Wextra", "-Werror")
TRACED = "-fsanitize-coverage=trace-pc"
FUZZER = "../tests/fuzz_main"
# The sources that read them, which know no ONNX Runtime.
PARTS = (
    *("bundle", "errors", "evaluation", "json", "onnx_tensors", "safetensors", "sha256", "unicode"),
    *(f"tokenizers/{name}" for name in ("byte_pair_file", "byte_pairs", "character_tables", "held_text", "symbol_set")),
    *(f"tokenizers/{name}" for name in ("tokenizer", "vocabulary", "vocabulary_tokenizer")),
)


def fuzz_program(flags: tuple[str, ...]) -> Path:
    """Return the fuzzer, compiled with these flags once for all sessions of the same sources.

    All sources but that of the fuzzer itself report the places that a run reaches.

    Args:
        flags: additional flags, such as `-fsanitize=address`.
    """
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler: install g++ or clang, or name one in CXX")
    command = (*found.split(), *FLAGS, *flags)
    headers = [*(NATIVE / "src").rglob("*.h"), *(NATIVE / "src").rglob("*.inc")]
    common = _digest([*command, TRACED, *map(_content, sorted(headers))])
    CACHE.mkdir(parents=True, exist_ok=True)

    def compile_one(part: str) -> Path:
        source, own = NATIVE / "src" / f"{part}.cc", () if part == FUZZER else (TRACED,)
        made = CACHE / f"{source.stem}-{_digest([common, *own, _content(source)])}.o"
        if not made.is_file():
            partial = made.with_suffix(f".{os.getpid()}")
            subprocess.run([*command, *own, "-c", source, "-o", partial], check=True)
            partial.rename(made)
        return made

    with FileLock(CACHE / f"{common}.lock"):  # other workers need the same objects
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, (*PARTS, "../tests/fuzz_base", FUZZER)))
        program = CACHE / f"fuzz-{_digest(file.name for file in objects)}"
        if not program.is_file():
            partial = program.with_suffix(f".{os.getpid()}")
            subprocess.run([*command, *objects, "-o", partial], check=True)
            partial.rename(program)
    return program


def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
