"""Processors that this machine does not have, by qemu's emulation of single programs."""

from __future__ import annotations

import sys
from pathlib import Path

from .linux import PACKAGES, built_alone, c_runner, host_program, library_of, python_program
from .runners import Program, Runner
from .workshop import Workshop, pinned

__all__ = ["ARM", "aarch64", "aarch64_program", "aarch64_python", "x86"]

ARM = "aarch64 (Neoverse N1), qemu"
DEBIAN = ("bookworm", "arm64", "python3.11", "libstdc++6")
MANYLINUX = tuple(f"manylinux_2_{number}_aarch64" for number in (28, 27, 17))
# ONNX Runtime reads which processor it runs on, and would otherwise read that of this machine.
CORE = """processor\t: {}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


def x86(processor: str, instructions: str, kernels: str, workshop: Workshop) -> list[Runner]:
    """Return Python and C on an x86-64 processor that qemu knows."""
    name = f"{processor} ({instructions}), qemu"

    def emulated() -> list[str]:
        return [workshop.tool("qemu-x86_64", "qemu-user"), "-cpu", processor]

    def c_program() -> Program:
        program = host_program(workshop, "xlconformance")
        return Program((*emulated(), *program.command), program.environment)

    def python(ops: str | Path) -> Program:
        return python_program([*emulated(), sys.executable], ops)

    return [
        Runner(name, "Python", kernels, lambda: python(workshop.kernels("linux-x86_64"))),
        Runner(name, "Python", "none", lambda: python("none")),
        *c_runner(name, kernels, c_program),
    ]


def aarch64(workshop: Workshop) -> list[Runner]:
    """Return Python and C on 64-bit ARM."""
    return [
        Runner(ARM, "Python", "base", lambda: aarch64_python(workshop, workshop.kernels("linux-aarch64"))),
        Runner(ARM, "Python", "none", lambda: aarch64_python(workshop, "none")),
        *c_runner(ARM, "base", lambda: aarch64_program(workshop, "xlconformance")),
    ]


def aarch64_python(workshop: Workshop, ops: str | Path) -> Program:
    """Return the Python runner on 64-bit ARM."""
    emulator, root = _emulator(workshop)
    return python_program([*emulator, root / "usr" / "bin" / "python3.11"], ops, [_packages(workshop)])


def aarch64_program(workshop: Workshop, name: str) -> Program:
    """Return a program of the C library for 64-bit ARM."""
    emulator, _ = _emulator(workshop)
    built = workshop.programs("aarch64-linux-gnu", processor="aarch64", only=built_alone(name))
    return Program((*emulator, built / name), {"XLRUNTIME_ONNXRUNTIME": str(library_of(_packages(workshop)))})


def _emulator(workshop: Workshop) -> tuple[list[str | Path], Path]:
    """Return the command before a program for 64-bit ARM, and the folder with its system."""
    root = workshop.debian(*DEBIAN)
    cores = root / "sys" / "devices" / "system" / "cpu"
    texts = {root / "proc" / "cpuinfo": "".join(map(CORE.format, (0, 1)))}
    texts |= {cores / name: "0-1\n" for name in ("possible", "present")}
    for file, text in texts.items():
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    return [workshop.tool("qemu-aarch64", "qemu-user"), "-cpu", "neoverse-n1", "-L", root], root


def _packages(workshop: Workshop) -> Path:
    return workshop.wheels(MANYLINUX, "3.11", pinned(*PACKAGES))
