"""The base of the C runtime, driven through the program runtime/native/tests/base_commands.cc."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import xlruntime
from tests.helpers.c_library import build_c_runtime
from tests.helpers.native import CACHE, NATIVE, compiler

__all__ = ["CRefusal", "ask", "fuzz_program", "outcome"]

FLAGS = ("-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror")
TRACED = "-fsanitize-coverage=trace-pc"
FUZZER = "../tests/fuzz_main"
# The sources that know no ONNX Runtime.
PARTS = (
    *("atomic_output", "bundle_files", "evaluation", "graph_gate", "json", "json_dump", "json_fields"),
    *("manifest", "manifest_checks", "manifest_fields", "manifest_read", "messages", "output_check", "read_limits"),
    *("safetensors", "sha256", "state_file", "stream_state", "unicode", "tokenizers/text_walk", "tokenizers/tokenizer"),
    *("tokenizers/vocabulary", "tokenizers/vocabulary_tokenizer"),
)


class CRefusal(Exception):
    """An error of the C runtime.

    Attributes:
        kind: the name of Python's class; message, repair: as in Python.
    """

    def __init__(self, kind: str, message: str, repair: str) -> None:
        super().__init__(f"{kind}: {message} {repair}".rstrip())
        self.kind, self.message, self.repair = kind, message, repair


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


@functools.cache
def _running() -> subprocess.Popen[str]:
    program = build_c_runtime(os.environ.get("C_BASE_SANITIZE", ""), ("base_commands",)) / "base_commands"
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def ask(do: str, **fields: Any) -> Any:
    """Return the result of a command.

    Args:
        fields: its fields; bytes become hexadecimal, paths become text.

    Raises:
        CRefusal: the C runtime refused.
    """
    process = _running()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"do": do, **fields}, default=_plain) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        _running.cache_clear()
        raise AssertionError(f"the program ended with {process.wait()} at {do} {str(fields)[:500]}")
    reply = json.loads(line)
    if "error" in reply:
        raise CRefusal(reply["error"], reply["message"], reply["repair"])
    return reply["result"]


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else os.fspath(value)  # type: ignore[call-overload]


def outcome(attempt: Callable[[], Any]) -> Any:
    """Return what an attempt of Python or of C returns; of a refusal, the kind, message and repair."""
    try:
        return attempt()
    except CRefusal as refusal:
        return refusal.kind, refusal.message, refusal.repair
    except xlruntime.XlruntimeError as error:
        return type(error).__name__, error.message, error.repair or ""
