"""Install each file of a release, and play the release's kit there: `python -m tests.conformance.release FOLDER`.

No environment sees the clone. Our packages come from the folder of the release alone, and those of others from a folder
that is filled before. The runner in Python and that for Node are those of the kit's archive; archives for C have one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from filelock import FileLock

from .platforms import rows as machines
from .platforms.__main__ import DOWNLOADS, HEAD, try_all
from .platforms.rows import ARM, HOST, NODES, WINDOWS
from .platforms.runners import Attempt, Broken, Missing, Program, Runner, play
from .platforms.workshop import ROOT, WEB, Workshop, alone

TEXTS = ("*.md", "*.cdx.json", "SHA256SUMS*", "xlexport-conformance-*.tar.gz")
RUNTIME, EXPORTER = "xlruntime[cpu,text]", "xlexport[cpu,convert,text]"
LISTS = ("demo", "installer", "native")  # of requirements/: what environments install, with hashes
PIP: tuple[str, ...] = (sys.executable, "-m", "pip", "--quiet")
# Places of packages that this machine names do not count.
BARE_PIP = ("env", f"PIP_CONFIG_FILE={os.devnull}", *PIP, "--isolated")
FURTHER = ("sentencepiece", "tokenizers")  # of the extra `text`


@dataclass(frozen=True)
class Release:
    """A release, an empty folder outside the clone for what is installed of it, and the kit in it."""

    dist: Path
    work: Path
    workshop: Workshop
    kit: Path

    @alone
    def packages(self) -> Path:
        """Return the folder with packages of others."""
        folder = self.work / "packages"
        if not folder.exists():
            lists = [word for name in LISTS for word in ("-r", ROOT / "requirements" / f"{name}.txt")]
            _run(*PIP, "download", "--dest", folder, *lists, *FURTHER, folder=self.work)
        return folder

    def python(self, file: Path, *requirements: str) -> Program:
        """Return the Python runner in an environment with packages of the release; if it converts, the demo has run."""
        environment = self.work / f"environment-{file.name}"
        venv.create(environment)
        places = ("--no-index", "--find-links", self.dist, "--find-links", self.packages())
        _run(*BARE_PIP, "--python", environment / "bin/python", "install", *places, *requirements, folder=self.work)
        if EXPORTER in requirements:
            _run(environment / "bin/xlexport", "demo", folder=self.work)
        return machines.python_program([environment / "bin/python"], "auto", runner=self.kit.parent)

    def python_on_arm(self, file: Path) -> Program:
        """Return the Python runner on 64-bit ARM, with the wheels of the release that pip chooses for it."""
        target = self.work / file.name
        chosen = ("--platform", "manylinux_2_17_aarch64", "--only-binary=:all:", "--no-deps")
        places = ("--no-index", "--find-links", self.dist, "--target", target)
        _run(*BARE_PIP, "install", *chosen, *places, "xlruntime", "xlexport-ops", folder=self.work)
        return machines.aarch64_python(self.workshop, "auto", [target], self.kit.parent)

    @alone
    def node(self) -> Path:
        """Return the runner for Node, in a project that has the npm package of the release and its peers."""
        project, (package,) = self.work / "node", self.dist.glob("xlruntime-*.tgz")
        if not project.exists():
            shutil.copytree(self.kit.parent / "node", project)
            own = json.loads((WEB / "package.json").read_text("utf-8"))
            peers = [f"{name}@{own['devDependencies'][name]}" for name in own["peerDependencies"]]
            npm = self.workshop.tool("npm", "npm")
            _run(npm, "install", "--ignore-scripts", "--no-audit", package, *peers, folder=project)
        return project / "run.mjs"

    def c(self, file: Path) -> Path:
        """Return the runner of an archive for C."""
        folder = self.work / file.name
        shutil.unpack_archive(file, folder)
        return next(folder.glob("*/bin/xlconformance*"))


def _run(*command: str | Path, folder: Path) -> None:
    """Run a command that prepares something.

    Raises:
        Broken: it fails.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "it prints nothing").splitlines()[-1]
        raise Broken(f"{' '.join(map(str, command[:4]))} fails: {reason}")


def nowhere(file: Path) -> Program:
    """Refuse a file for a system that nothing here emulates."""
    raise Missing("nothing here runs it")


def rows(release: Release) -> Iterator[Attempt]:
    """Yield an attempt for each file and each place that runs it.

    Raises:
        Broken: a file differs from its digest, or nothing tries such a file.
    """
    python, workshop = release.python, release.workshop
    # Files, where they run, which kernels must run, and what prepares the runner.
    table: tuple[tuple[str, str, str, Callable[[Path], Program]], ...] = (
        ("xlruntime-*.whl", HOST, "none", lambda file: python(file, RUNTIME)),
        ("xlexport-*.whl", HOST, "none", lambda file: python(file, EXPORTER)),
        ("xlexport-[0-9]*.tar.gz", HOST, "none", lambda file: python(file, f"{file}[cpu,text]")),
        ("xlexport_ops-*.tar.gz", HOST, "xlexport-ops", lambda file: python(file, RUNTIME, str(file))),
        ("xlexport_ops-*linux*x86_64.whl", HOST, "xlexport-ops", lambda file: python(file, RUNTIME, str(file))),
        ("xlexport_ops-*aarch64.whl", ARM, "xlexport-ops", release.python_on_arm),
        ("xlexport_ops-*win*.whl", "Windows", "", nowhere),
        ("xlexport_ops-*macosx*.whl", "macOS", "", nowhere),
        ("xlruntime-*.tgz", HOST, "", lambda file: Program(("node", release.node()))),
        ("xlruntime-*.tgz", WINDOWS, "", lambda file: machines.windows_node(workshop, NODES[0], release.node())),
        ("xlruntime-c-*-linux-x86_64.*", HOST, "", lambda file: machines.host_program(workshop, release.c(file))),
        ("xlruntime-c-*-linux-aarch64.*", ARM, "", lambda file: machines.aarch64_program(workshop, release.c(file))),
        ("xlruntime-c-*-windows-*", WINDOWS, "", lambda file: machines.windows_c(workshop, runner=release.c(file))),
        ("xlruntime-c-*-macos-*", "macOS", "", nowhere),
    )
    digests = {line[66:]: line[:64] for line in (release.dist / "SHA256SUMS").read_text("utf-8").splitlines()}
    for file in sorted(release.dist.iterdir()):
        if digests.get(file.name) != hashlib.sha256(file.read_bytes()).hexdigest() and "SHA256SUMS" not in file.name:
            raise Broken(f"{file.name} is not the file of SHA256SUMS.")
        places = [row[1:] for row in table if fnmatch(file.name, row[0])]
        if not places and not any(fnmatch(file.name, pattern) for pattern in TEXTS):
            raise Broken(f"{file.name}: nothing tries such a file.")
        for place, kernels, prepare in places:
            runner = Runner(f"{file.name} | {file.stat().st_size:,} | {place}", "kit", kernels, partial(prepare, file))
            yield Attempt(runner.platform, runner.runtime, kernels, partial(play, runner, lambda: release.kit))


def main(arguments: list[str] | None = None) -> None:
    """Try a release from the command line; the exit code is 1 if a file falls short."""
    parser = argparse.ArgumentParser(prog="scripts/release --check", description="Try every file of a release.")
    parser.add_argument("dist", type=Path, help="the folder of the release")
    parser.add_argument("--only", default="", help="try the files with this text in their names")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows to try at once (default: 1)")
    given = parser.parse_args(arguments)
    os.environ.pop("PYTHONPATH", None)  # it may lead to the clone
    workshop = Workshop(DOWNLOADS, offline=False)
    workshop.built.mkdir(parents=True, exist_ok=True)
    with FileLock(workshop.built / "lock"), tempfile.TemporaryDirectory() as work:
        (kit,) = given.dist.glob("xlexport-conformance-*.tar.gz")
        shutil.unpack_archive(kit, work, filter="data")
        release = Release(given.dist.resolve(), Path(work), workshop, next(Path(work).glob("*/kit")))
        tries = [one for one in rows(release) if given.only in one.platform]
        try_all(tries, given.jobs, ("artefact", "bytes", *HEAD))


if __name__ == "__main__":
    main()
