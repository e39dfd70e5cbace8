"""Measure what each runtime needs on a device: installed size, time to the first scored segment, memory.

    python -m benchmarks.footprint BUNDLE [--xlscore FILE] [--rounds 5]

docs/ship.md says what is measured. BUNDLE reads bytes. Figures are medians, after a run that does not count. A MB has
10^6 bytes. Needs Linux; for C `xlscore`, which CMake builds in runtime/c; for Node and browser `npm ci && npm run
build` in runtime/js. A runtime that is missing gets a row that says so.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import click
import numpy as np
from packaging.requirements import Requirement

import xlruntime
from benchmarks.javascript import Child
from xlexport.errors import MissingDependencyError
from xlexport.web.javascript import find_packages

__all__ = ["main"]

JAVASCRIPT = Path(__file__).parents[1] / "runtime/js"
TEXT = ("The old man walked down to the river. " * 4)[:129]  # 128 scored tokens: one segment of the sample
PYTHON = "import sys, xlruntime; print(next(xlruntime.load(sys.argv[1], threads=1).score([sys.argv[2]])).bits)"
# Linux counts the memory of the process that forks as the new one's, so a small process starts each runtime.
LAUNCHER = """
import resource, subprocess, sys, time
started = time.perf_counter()
printed = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True).stdout
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, printed)
"""
NODE = """
const [module, bundle, text] = process.argv.slice(1);
const { load } = await import(module);
for await (const score of (await load(bundle, { threads: 1 })).score([text])) console.log(score.bits);
"""
Figures = tuple[float, ...]  # MB of the runtime, MB with dependencies, seconds, MB of memory, bits of the segment


def whole_process(command: list[str], rounds: int) -> Figures:
    """Run a command that prints bits; return the medians of seconds and peak MB, and the bits."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    runs = []
    for _ in range(rounds + 1):
        launch = [sys.executable, "-S", "-c", LAUNCHER, *command]
        done = subprocess.run(launch, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{command[0]} failed; its output is above.")
        seconds, kilobytes, printed = done.stdout.split(maxsplit=2)
        bits = float(printed.partition("bits ")[2].partition(",")[0] or printed)
        runs.append((float(seconds), int(kilobytes) * 1024 / 1e6, bits))
    return tuple(map(statistics.median, zip(*runs[1:], strict=True)))


def size(files: Iterable[Path]) -> float:
    """Return the size of files together in MB, without compiled Python, which is made on use."""
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc") / 1e6


def installed(name: str) -> set[Path]:
    """Return the files of an installed distribution, and of all that it requires without extras."""
    files = {Path(str(file.locate())) for file in metadata.distribution(name).files or []}
    needed = [Requirement(line) for line in metadata.requires(name) or []]
    return files.union(*(installed(one.name) for one in needed if not one.marker or one.marker.evaluate({"extra": ""})))


def python(bundle: Path, rounds: int, program: Path) -> Figures:
    """Return the footprint of the package `xlruntime`."""
    ours = size(Path(xlruntime.__file__).parent.rglob("*"))
    dependencies = set().union(*map(installed, ("numpy", "onnxruntime", "safetensors")))
    figures = whole_process([sys.executable, "-c", PYTHON, str(bundle), TEXT], rounds)
    return (ours, ours + size(dependencies), *figures)


def onnxruntime_library() -> Path:
    """Return the library in the Python package of ONNX Runtime."""
    return next(file for file in installed("onnxruntime") if file.name.startswith("libonnxruntime.so."))


def c(bundle: Path, rounds: int, program: Path) -> Figures:
    """Return the footprint of the C library, with the ONNX Runtime of the Python package."""
    program, library = program.resolve(strict=True), onnxruntime_library()
    build = program.parent
    ours = size({place.resolve() for place in (build / "libxlruntime.so", build.parent / "lib" / "libxlruntime.so")})
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(TEXT)
        text.flush()
        variable = f"XLRUNTIME_ONNXRUNTIME={library}"
        command = ["env", variable, str(program), str(bundle), text.name, "--threads", "1"]
        return (ours, ours + size([library]), *whole_process(command, rounds))


def node(bundle: Path, rounds: int, program: Path) -> Figures:
    """Return the footprint of the npm package in Node."""
    find_packages(("xlruntime",), JAVASCRIPT)
    machine, package = {"x86_64": "x64", "aarch64": "arm64"}, JAVASCRIPT / "node_modules/onnxruntime-node"
    binaries = [*package.glob(f"bin/*/linux/{machine[platform.machine()]}/*"), *package.glob("dist/*.js")]
    ours, module = size((JAVASCRIPT / "dist").rglob("*.js")), (JAVASCRIPT / "dist/node.js").as_uri()
    command = ["node", "--input-type=module", "-e", NODE, module, str(bundle), TEXT]
    return (ours, ours + size(binaries), *whole_process(command, rounds))


def browser(bundle: Path, rounds: int, program: Path) -> Figures:
    """Return the footprint of the npm package in a page of headless Chromium, on WebAssembly."""
    packages = find_packages(("xlruntime", "onnxruntime-web"), JAVASCRIPT)
    ids, runs = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64), []
    for _ in range(rounds + 1):
        child = Child("wasm", bundle, 1, {})
        started = time.perf_counter()
        bits = -float(child.feed(ids).sum()) / math.log(2)
        runs.append((child.load_seconds + time.perf_counter() - started, child.resident_mb(), bits))
        child.close()
    ours, onnxruntime = (size(package.root / file for file in package.files) for package in packages)
    return (ours, ours + onnxruntime, *map(statistics.median, zip(*runs[1:], strict=True)))


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--xlscore", default="build/xlscore", show_default=True, type=click.Path(path_type=Path))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
def main(bundle: Path, xlscore: Path, rounds: int) -> None:
    """Print a row for each runtime."""
    print(f"bundle: {size(bundle.iterdir()):.1f} MB; {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    print("| runtime | ours, MB | with dependencies, MB | seconds | memory, MB |\n|---|---|---|---|---|")
    bits = []
    for name, side in {"Python": python, "C": c, "Node": node, "browser": browser}.items():
        try:
            ours, together, seconds, memory, one = side(bundle.resolve(), rounds, xlscore)
        except (MissingDependencyError, FileNotFoundError) as error:
            print(f"| {name} | not measured: {error} |")
            continue
        print(f"| {name} | {ours:.2f} | {together:.1f} | {seconds:.2f} | {memory:.0f} |")
        bits.append(one)
    if bits and max(bits) - min(bits) > 1e-3:
        raise click.ClickException(f"the runtimes give different bits: {bits}.")


if __name__ == "__main__":
    main()
