"""Programs on the C interface: the examples, those of the page, a project that finds the package, and sanitizers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

import xlruntime
from tests.helpers.c_library import NATIVE, SANITIZED, TARGETS, build_c_runtime, find_onnxruntime
from tests.helpers.hub import put_into_cache
from tests.helpers.pages import blocks_of
from tests.helpers.paths import BAND, EMPTY, ROOT, ZEROS, golden_bundle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load as load_checkpoint
from xlruntime import Sampling

pytestmark = pytest.mark.native

PAGE = "docs/c_interface.md"
TEXT = "The old man walked down to the river."
EXERCISE = "exercise_c_interface"
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(found C CXX)
find_package(xlruntime REQUIRED)
foreach(kind shared static)
  add_executable(program_${kind} program.c)
  target_link_libraries(program_${kind} PRIVATE xlruntime::${kind})
endforeach()
"""


def run(*command: str | Path, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a program that finds ONNX Runtime through the environment."""
    found = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(find_onnxruntime()), **(environment or {})}
    done = subprocess.run(command, capture_output=True, env=found, cwd=folder, timeout=540, check=False)
    assert done.returncode == 0, (done.stdout[-2000:] + done.stderr[-6000:]).decode(errors="replace")
    return done.stdout.decode(errors="replace")


def nats(folder: Path) -> float:
    """Return what Python finds for the text of the page."""
    return float(-xlruntime.load(folder).stream().feed(TEXT).log_probs.sum())


def bits_of(line: str) -> float:
    """Return the bits in a line of totals."""
    return float(line.partition("bits ")[2].partition(",")[0])


def program_of_page(language: str, file: Path) -> None:
    """Write the page's program in this language to a file; other blocks are parts of programs."""
    (block,) = (block for block in blocks_of(PAGE) if block.language == language and " main(" in block.text)
    file.write_text(block.text, "utf-8")


def test_onnxruntime_has_no_telemetry_unless_the_user_has_chosen_it(tmp_path: Path) -> None:
    program = "import ctypes, os, sys; loaded = [ctypes.CDLL(name) for name in sys.argv[2:]]\n"
    program += "status = loaded[-1].xlr_load(sys.argv[1].encode(), None, ctypes.byref(ctypes.c_void_p()))\n"
    program += "getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p\n"
    program += "print(status, getenv(b'ORT_DISABLE_TELEMETRY'), os.listdir(os.environ['HOME']) == [])"
    own, ort = str(build_c_runtime() / "libxlruntime.so"), str(find_onnxruntime())
    chosen = {"ORT_DISABLE_TELEMETRY": "0"}
    for before, variables, expected in (
        ([], {}, "0 b'1' True\n"),
        ([], chosen, "0 b'0' False\n"),
        ([ort], {}, "0 None"),  # another thread may read the environment
    ):
        environment = {"HOME": str(tmp_path), "XLRUNTIME_ONNXRUNTIME": ort, **variables}
        command = [sys.executable, "-c", program, str(golden_bundle(EMPTY)), *before, own]
        shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        assert shown.startswith(expected)


def test_xlscore_prints_what_python_finds(tmp_path: Path) -> None:
    folder = golden_bundle(EMPTY)
    (tmp_path / "text.txt").write_text(TEXT * 40, "utf-8")
    options = ("--mem-len", "11", "--segment-len", "6", "--threads", "1", "--no-kernels")
    printed = run(build_c_runtime() / "xlscore", folder, tmp_path / "text.txt", *options, "--tokens")
    *tokens, total = printed.splitlines()
    model = xlruntime.load(folder, threads=1, ops="none")
    (expected,) = model.score([TEXT * 40], mem_len=11, segment_len=6)
    assert bits_of(total) == pytest.approx(expected.bits, rel=1e-14)
    assert len(tokens) == expected.scored_tokens


def test_bundle_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    bundle, program = golden_bundle(EMPTY), build_c_runtime() / "xlscore"
    snapshot = put_into_cache(bundle, tmp_path, "me/bundle")
    behind_links, itself = (run(program, place, tmp_path / "text.txt") for place in (snapshot, bundle))
    assert bits_of(behind_links) == bits_of(itself)
    (snapshot / "weights.data").unlink()
    (snapshot / "weights.data").symlink_to(bundle / "weights.data")
    with pytest.raises(AssertionError, match=r"weights\.data is missing, no regular file, or outside the folder"):
        run(program, snapshot, tmp_path / "text.txt")


def test_examples_of_streams(tmp_path: Path) -> None:
    folder, state = golden_bundle(EMPTY), tmp_path / "saved.state"
    printed = run(build_c_runtime() / "stream", folder, state)
    stream = xlruntime.load(folder).restore(state)
    assert stream.position == 78
    drawn = list(stream.generate(max_tokens=60, sampling=Sampling(temperature=0.8, seed=1)))
    assert printed.endswith(bytes(drawn).decode(errors="replace") + "\n")
    assert "The captain" not in printed
    assert "yes: " in run(build_c_runtime() / "stream_cpp", folder)


def test_example_in_rust(tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("no Rust compiler: install rustc")
    built = build_c_runtime()
    run("rustc", "-O", "-L", built, "-l", "xlruntime", "-o", tmp_path / "stream", "-C", f"link-arg=-Wl,-rpath,{built}",
        NATIVE / "examples" / "stream.rs", folder=tmp_path)  # fmt: skip
    printed = run(tmp_path / "stream", golden_bundle(EMPTY), TEXT)
    assert printed.startswith(f"{len(TEXT) - 1} tokens, ")


def test_programs_of_the_page(tmp_path: Path) -> None:
    folder, built = golden_bundle(EMPTY), build_c_runtime()
    link = ["-I", str(NATIVE / "include"), "-L", str(built), "-lxlruntime", f"-Wl,-rpath,{built}"]
    for compiler, language, flags in (("cc", "c", "-std=c99"), ("c++", "cpp", "-std=c++17")):
        source = tmp_path / f"program.{language}"
        program_of_page(language, source)
        run(compiler, flags, "-Wall", "-Wextra", "-Werror", "-pedantic", source, *link, "-o", tmp_path / language)
        (shown,) = run(tmp_path / language, folder).splitlines()
        assert f"{nats(folder):.3f}"[:-1] in shown


def test_a_program_without_onnxruntime_is_refused_in_one_line(tmp_path: Path) -> None:
    program = build_c_runtime() / "xlscore"
    environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(tmp_path / "missing.so")}
    done = subprocess.run(
        [program, golden_bundle(EMPTY), "x"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "ONNX Runtime cannot be loaded" in done.stderr


def test_the_library_exports_the_functions_of_its_header_under_a_name_with_a_number() -> None:
    library = build_c_runtime() / "libxlruntime.so"
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    header = (NATIVE / "include" / "xlruntime.h").read_text("utf-8")
    assert exported == set(re.findall(r"^XLR_API [^(]*?(\w+)\(", header, re.MULTILINE))
    assert "Library soname: [libxlruntime.so.0]" in run("readelf", "-d", library)


def test_readme_states_the_size_of_the_library() -> None:
    (stated,) = re.findall(r"a C library of ([\d,]+) kB", (ROOT / "README.md").read_text("utf-8"))
    size = (build_c_runtime() / "libxlruntime.so").stat().st_size / 1000
    assert 0.9 < size / int(stated.replace(",", "")) < 1.1


def test_a_project_finds_the_package(tmp_path: Path) -> None:
    built = build_c_runtime(targets=(*TARGETS, "xlruntime_static"))
    run("cmake", "--install", built, "--prefix", tmp_path / "prefix")
    assert (tmp_path / "prefix" / "share/licenses/xlruntime/LICENSE").read_bytes() == (NATIVE / "LICENSE").read_bytes()
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(PROJECT, "utf-8")
    program_of_page("c", project / "program.c")
    run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", project / "build")
    for kind in ("shared", "static"):
        assert run(project / "build" / f"program_{kind}", golden_bundle(EMPTY)).startswith(f"{len(TEXT) - 1} tokens")


@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed: requirements/native.txt")
def test_an_archive_does_what_its_readme_says(tmp_path: Path) -> None:
    run(sys.executable, NATIVE / "build_archives.py", "-o", tmp_path, "--platform", f"linux-{platform.machine()}")
    (archive,) = tmp_path.iterdir()
    shutil.unpack_archive(archive, tmp_path, filter="data")
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    commands = re.findall(r"^```sh\n(.*?)^```", (folder / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    printed = run("sh", "-ec", "".join(commands), folder=folder, environment={"BUNDLE": str(golden_bundle(EMPTY))})
    results = re.findall(r"^(\d+) tokens, (.+) nats$", printed, re.MULTILINE)
    assert len(results) == 2  # built by CMake, and with pkg-config
    for tokens, found in results:
        assert int(tokens) == len(TEXT) - 1
        assert float(found) == pytest.approx(nats(golden_bundle(EMPTY)), abs=1e-3)


@pytest.mark.parametrize("sanitizers", SANITIZED)
def test_sanitizers_find_nothing(sanitizers: str, tmp_path: Path) -> None:
    built = build_c_runtime(sanitizers, (EXERCISE, "xlscore"))
    for name in (EMPTY, ZEROS, "pre_lnorm_empty", "relative_attention", BAND):  # the last two with kernels
        (tmp_path / name).mkdir()
        assert run(built / EXERCISE, golden_bundle(name), tmp_path / name, environment=SANITIZED[sanitizers]) == ""
    (tmp_path / "text.txt").write_text(TEXT * 40, "utf-8")
    assert run(built / "xlscore", golden_bundle(EMPTY), tmp_path / "text.txt", environment=SANITIZED[sanitizers]) != ""


def test_alice_has_the_bits_of_python(shared_data: Path, kernel_library: Path, tmp_path: Path) -> None:
    sample = NATIVE.parents[1] / "samples" / "transformer_xl_bytes" / "checkpoint.pt"
    convert(load_checkpoint(sample), tmp_path / "bundle", ConversionOptions())
    book = shared_data / "alice29.txt"
    for ops, options in ((kernel_library, ()), ("none", ("--no-kernels",))):
        (expected,) = xlruntime.load(tmp_path / "bundle", ops=ops).score([book])
        printed = run(build_c_runtime() / "xlscore", tmp_path / "bundle", book, *options)
        assert bits_of(printed) == pytest.approx(expected.bits, rel=1e-14)
