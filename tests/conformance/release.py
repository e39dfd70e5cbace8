"""Install each file of a release, and play the release's kit there: `python -m tests.conformance.release FOLDER`.

No environment sees the clone. Our packages come from the folder of the release alone, and those of others from a folder
that is filled before. The runner in Python and that for Node are those of the kit's archive; archives for C have one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import onnxruntime
from filelock import FileLock

from .platforms.__main__ import DOWNLOADS, HEAD, try_all
from .platforms.rows import (
    ARM,
    HOST,
    NODES,
    WINDOWS,
    arm_emulator,
    arm_packages,
    library_of,
    python_program,
    windows_node,
    wine_program,
)
from .platforms.runners import Attempt, Broken, Missing, Program, Runner, play
from .platforms.workshop import ROOT, WEB, Workshop, alone, pinned

__all__ = ["Release", "main", "rows"]

TEXTS = ("*.md", "*.cdx.json", "SHA256SUMS", "xlexport-conformance-*.tar.gz")
LISTS = ("demo", "installer", "native")  # of requirements/: what environments install, with hashes
RUNTIME, EXPORTER, OPS = "xlruntime[cpu,text]", "xlexport[cpu,convert,text]", "xlexport-ops"
FURTHER = ("sentencepiece", "tokenizers")  # of the extra `text`


@dataclass(frozen=True)
class Release:
    """A release, and an empty folder outside the clone for what is installed of it."""

    dist: Path
    work: Path
    workshop: Workshop

    @alone
    def kit(self) -> Path:
        """Return the unpacked kit; its runners are beside it."""
        (archive,) = self.dist.glob("xlexport-conformance-*.tar.gz")
        folder = self.work / archive.name.removesuffix(".tar.gz")
        if not folder.exists():
            shutil.unpack_archive(archive, self.work, filter="data")
        return folder / "kit"

    @alone
    def packages(self) -> Path:
        """Return the folder with packages of others."""
        folder = self.work / "packages"
        if not folder.exists():
            lists = [word for name in LISTS for word in ("-r", ROOT / "requirements" / f"{name}.txt")]
            _pip("download", "--dest", folder, *lists, *FURTHER)
        return folder

    def python(self, file: Path, *requirements: str, demo: bool = False) -> Program:
        """Return the Python runner in an environment with packages of the release, in which the demo has run."""
        environment = self.work / f"environment-{file.name}"
        venv.create(environment)
        programs = environment / "bin"
        places = ("--no-index", "--find-links", self.dist, "--find-links", self.packages())
        _pip("--python", programs / "python", "install", *places, *requirements, bare=True)
        if demo and subprocess.run([programs / "xlexport", "demo"], cwd=environment, check=False).returncode:
            raise Broken("xlexport demo fails")
        return self._runner(programs / "python")

    def python_on_arm(self) -> Program:
        """Return the Python runner on 64-bit ARM, with the wheels of the release that pip chooses for it."""
        emulator, root = arm_emulator(self.workshop)
        target = self.work / "aarch64"
        chosen = ("--platform", "manylinux_2_17_aarch64", "--only-binary=:all:", "--no-deps", "--no-index")
        _pip("install", "--target", target, *chosen, "--find-links", self.dist, "xlruntime", "xlexport-ops", bare=True)
        paths = (target, arm_packages(self.workshop))
        return self._runner(*emulator, root / "usr" / "bin" / "python3.11", paths=paths)

    def _runner(self, *python: str | Path, paths: tuple[Path, ...] = ()) -> Program:
        environment = python_program(python, "auto").environment
        places = os.pathsep.join(map(str, (self.kit().parent, *paths)))
        return Program((*python, "-m", "conformance.run"), {**environment, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"})

    @alone
    def node(self) -> Path:
        """Return the runner for Node, in a project that has the npm package of the release and its peers."""
        project, (package,) = self.work / "node", self.dist.glob("xlruntime-*.tgz")
        if not project.exists():
            shutil.copytree(self.kit().parent / "node", project)
            own = json.loads((WEB / "package.json").read_text("utf-8"))
            peers = [f"{name}@{own['devDependencies'][name]}" for name in own["peerDependencies"]]
            command = [
                self.workshop.tool("npm", "npm"),
                "install",
                "--ignore-scripts",
                "--no-audit",
                str(package),
                *peers,
            ]
            if subprocess.run(command, cwd=project, stdout=subprocess.DEVNULL, check=False).returncode:
                raise Broken("npm install fails")
        return project / "run.mjs"

    def c(self, file: Path) -> Program:
        """Return the runner of an archive for C; ONNX Runtime's library is that of a Python package."""
        folder = self.work / re.sub(r"\.(tar\.gz|zip)$", "", file.name)
        if not folder.exists():
            shutil.unpack_archive(file, self.work)
        if "windows" in file.name:
            wine = wine_program(self.workshop)
            packages = self.workshop.wheels(["win_amd64"], "3.11", pinned("onnxruntime"))
            library = wine.path(packages / "onnxruntime" / "capi" / "onnxruntime.dll")
            command = (*wine.command, folder / "bin" / "xlconformance.exe")
            return Program(command, {**wine.environment, "XLRUNTIME_ONNXRUNTIME": library}, wine.path)
        arm = "aarch64" in file.name
        emulator = arm_emulator(self.workshop)[0] if arm else []
        packages = arm_packages(self.workshop) if arm else Path(onnxruntime.__file__).parents[1]
        environment = {"XLRUNTIME_ONNXRUNTIME": str(library_of(packages))}
        return Program((*emulator, folder / "bin" / "xlconformance"), environment)

    def nowhere(self, file: Path) -> Program:
        """Refuse a file for a system that nothing here emulates."""
        raise Missing("nothing here runs it")


def _pip(*arguments: str | Path, bare: bool = False) -> None:
    """Run pip; `bare` without the settings of this machine, which may name further places of packages.

    Raises:
        Broken: pip fails.
    """
    environment = {name: value for name, value in os.environ.items() if not (bare and name.startswith("PIP_"))}
    environment |= {"PYTHONPATH": ""} | ({"PIP_CONFIG_FILE": os.devnull} if bare else {})
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"pip fails: {(done.stderr.strip() or 'it prints nothing').splitlines()[-1]}")


def rows(release: Release) -> list[Attempt]:
    """Return an attempt for each file and each place that runs it.

    Raises:
        Broken: a file differs from its digest, or nothing tries such a file.
    """
    installed, c, nowhere = release.python, release.c, release.nowhere
    # Files, where and in which language they run, which kernels must run, and what prepares the runner.
    table: tuple[tuple[str, str, str, str, Callable[[Path], Program]], ...] = (
        ("xlruntime-*.whl", HOST, "Python", "none", lambda file: installed(file, RUNTIME)),
        ("xlexport-*.whl", HOST, "Python", "none", lambda file: installed(file, EXPORTER, demo=True)),
        ("xlexport-*.tar.gz", HOST, "Python", "none", lambda file: installed(file, f"{file}[cpu,text]")),
        ("xlexport_ops-*.tar.gz", HOST, "Python", "xlexport-ops", lambda file: installed(file, RUNTIME, str(file))),
        ("xlexport_ops-*linux*x86_64.whl", HOST, "Python", "xlexport-ops", lambda file: installed(file, RUNTIME, OPS)),
        ("xlexport_ops-*aarch64.whl", ARM, "Python", "xlexport-ops", lambda file: release.python_on_arm()),
        ("xlexport_ops-*win*.whl", "Windows", "Python", "", nowhere),
        ("xlexport_ops-*macosx*.whl", "macOS", "Python", "", nowhere),
        ("xlruntime-*.tgz", HOST, "Node", "", lambda file: Program(("node", release.node()))),
        ("xlruntime-*.tgz", WINDOWS, "Node", "", lambda file: windows_node(release.workshop, NODES[0], release.node())),
        ("xlruntime-c-*-linux-x86_64.*", HOST, "C", "", c),
        ("xlruntime-c-*-linux-aarch64.*", ARM, "C", "", c),
        ("xlruntime-c-*-windows-*", WINDOWS, "C", "", c),
        ("xlruntime-c-*-macos-*", "macOS", "C", "", nowhere),
    )
    digests = {line[66:]: line[:64] for line in (release.dist / "SHA256SUMS").read_text("utf-8").splitlines()}
    tries = []
    for file in sorted(release.dist.iterdir()):
        if file.name != "SHA256SUMS" and digests.get(file.name) != hashlib.sha256(file.read_bytes()).hexdigest():
            raise Broken(f"{file.name} is not the file of SHA256SUMS.")
        if any(fnmatch(file.name, pattern) for pattern in TEXTS):
            continue
        fitting = [_attempt(release, file, *row[1:]) for row in table if fnmatch(file.name, row[0])]
        if not fitting:
            raise Broken(f"{file.name}: nothing tries such a file.")
        tries += fitting
    return tries


def _attempt(
    release: Release, file: Path, place: str, runtime: str, kernels: str, prepare: Callable[[Path], Program]
) -> Attempt:
    runner = Runner(f"{file.name} | {file.stat().st_size:,} | {place}", runtime, kernels, lambda: prepare(file))
    return Attempt(runner.platform, runtime, kernels, lambda: play(runner, release.kit))


def main(arguments: list[str] | None = None) -> None:
    """Try a release from the command line; the exit code is 1 if a file falls short."""
    parser = argparse.ArgumentParser(prog="scripts/release --check", description="Try every file of a release.")
    parser.add_argument("dist", type=Path, help="the folder of the release")
    parser.add_argument("--only", default="", help="try the files with this text in their names")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows to try at once (default: 1)")
    given = parser.parse_args(arguments)
    workshop = Workshop(DOWNLOADS, offline=False)
    workshop.built.mkdir(parents=True, exist_ok=True)
    with FileLock(workshop.built / "lock"), tempfile.TemporaryDirectory() as work:
        tries = rows(Release(given.dist.resolve(), Path(work), workshop))
        try_all([one for one in tries if given.only in one.platform], given.jobs, ("artefact", "bytes", *HEAD))


if __name__ == "__main__":
    main()
