"""Build the library of kernels from its sources, or a program that tests them.

python build_library.py -o libxlexport_ops.so [--compiler "python -m ziglang c++"]
python build_library.py -o lsh --program tests/lsh.cc
"""

from __future__ import annotations

import argparse
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["build", "build_for", "cmake_options"]

SOURCES = Path(__file__).parent / "kernels"
FLAGS = ("-std=c++17", "-O3", "-Wall", "-Wextra")
KERNEL_FLAGS = (
    *("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
AVX512 = (  # what x86-64-v4 means, in words that GCC and zig share
    *("-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mavx512cd"),
    "-mprefer-vector-width=512",
)
LEVELS = {  # flags of the files with inner loops, by the end of their names
    "avx2": ("-mavx2", "-mfma", "-mbmi2"),
    "avx512": AVX512,
    "vnni": (*AVX512, "-mavx512vnni"),
}
# Unless asked, zig checks for undefined behaviour, and builds a C++ library, which kernels do not need.
ZIG = ("-fno-sanitize=undefined", "-nostdlib++", "-s")


def build(
    output: Path,
    compiler: Sequence[str],
    version: str,
    target: str | None = None,
    flags: Sequence[str] = (),
    program: Path | None = None,
    objects: Path | None = None,
) -> None:
    """Compile all sources and link them into the shared library `output`.

    Args:
        compiler: the command, such as `["g++"]`.
        version: the version that the library reports.
        target: the architecture, which decides on the instruction sets; None: that of this machine.
        flags: additional flags, such as those of a sanitizer. They follow all others, so they win.
        program: a source with a main function, which is linked with the kernels into a program instead.
        objects: a folder that keeps the compiled kernels. Those in it are used, so the caller gives each state of
            sources, compiler and flags a folder of its own.
    """
    has_levels = (target or platform.machine()).lower().startswith(("x86_64", "amd64"))
    sources = [
        source
        for source in sorted(SOURCES.glob("*.cc"))
        if has_levels or source.stem.removeprefix("level_") not in LEVELS
    ]
    with tempfile.TemporaryDirectory() as scratch:

        def run(*arguments: str | Path) -> None:
            # In the scratch folder, where a linker for Windows also leaves a file that nobody needs.
            subprocess.run([*compiler, *arguments, *flags], cwd=scratch, check=True)

        def compile_one(source: Path) -> Path:
            folder = scratch if objects is None or source == program else objects.resolve()
            made = Path(folder, f"{source.parent.name}_{source.stem}.o")
            if made.is_file():
                return made
            making = made.with_suffix(".making")
            own = LEVELS.get(source.stem.removeprefix("level_"), ())
            named = [f'-DXLEXPORT_OPS_VERSION="{version}"'] if source.stem == "register" else []
            general = FLAGS if source == program else (*FLAGS, *KERNEL_FLAGS)
            run(*general, *own, *named, "-c", source.resolve(), "-o", making)
            return making.rename(made)

        with ThreadPoolExecutor() as pool:
            compiled = list(pool.map(compile_one, [*sources, *([] if program is None else [program])]))
        linked = Path(scratch, output.name)
        run(*(["-shared"] if program is None else ["-pthread"]), "-o", linked, *compiled)
        shutil.move(linked, output)


def build_for(target: str, output: Path, version: str) -> None:
    """Build with the package ziglang for the platform that zig calls `target`, such as `x86_64-linux-gnu.2.17`."""
    build(output, [sys.executable, "-m", "ziglang", "c++", "-target", target], version, target, ZIG)


def cmake_options(folder: Path, target: str, system: str, processor: str) -> list[str]:
    """Return the options with which CMake compiles by the package ziglang for the platform that zig calls `target`.

    CMake takes no arguments in the names of compilers, so `folder` gets a program for each of zig's commands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    commands = {"C_COMPILER": f"cc -target {target}", "CXX_COMPILER": f"c++ -target {target}"}
    commands |= {"AR": "ar", "RANLIB": "ranlib", "RC_COMPILER": "rc"}
    options = [f"-DCMAKE_SYSTEM_NAME={system}", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
    for name, command in commands.items():
        program = folder / f"{command.replace(' -target ', '-')}"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n', "utf-8")
        program.chmod(0o755)
        options.append(f"-DCMAKE_{name}={program}")
    return options


def main() -> None:
    """Build with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=Path("libxlexport_ops.so"))
    parser.add_argument("--compiler", default="g++", help='such as clang++ or "python -m ziglang c++"')
    parser.add_argument("--target", help="architecture, such as aarch64, if the compiler builds for another one")
    parser.add_argument("--flags", default="", help="more flags, such as those of a sanitizer")
    parser.add_argument("--program", type=Path, help="a source with a main function, to link with the kernels")
    parser.add_argument("--objects", type=Path, help="a folder that keeps compiled kernels for a further program")
    given = parser.parse_args()
    compiler, flags = shlex.split(given.compiler), shlex.split(given.flags)
    build(given.output, compiler, "development", given.target, flags, given.program, given.objects)


if __name__ == "__main__":
    main()
