"""Build everything that users install into a new folder, from the last commit: `scripts/release VERSION -o FOLDER`.

The sources are a copy of the commit, so no file that a build has left in the clone gets into a release. Every tool that
knows SOURCE_DATE_EPOCH uses the time of the commit. `scripts/release --check FOLDER` proves what was built.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReleaseError", "Sources", "build", "notes_of", "refuse_unready"]

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"hatchling": "installer", "ziglang": "native", "cyclonedx_py": "release"}  # and their lists in requirements/
PROGRAMS = ("cmake", "git", "make", "npm")
NOTES, SUMS = "RELEASE_NOTES.md", "SHA256SUMS"
# Runners of the conformance kit that are no programs: what the archive of the kit calls each file, and its place here.
RUNNERS = {
    **{f"conformance/{name}.py": f"tests/conformance/{name}.py" for name in ("player", "run")},
    **{f"node/{name}.mjs": f"runtime/js/conformance/{name}.mjs" for name in ("node", "player", "run")},
    "README.md": "tests/conformance/README.md",
    "LICENSE": "LICENSE",
}


class ReleaseError(Exception):
    """Report why a release cannot be built; the message says how to repair it."""


@dataclass(frozen=True)
class Sources:
    """A copy of the commit.

    Attributes:
        folder: where the copy is.
        version: what the release is called.
        time: of the commit, in seconds since 1970.
    """

    folder: Path
    version: str
    time: int

    def run(self, *command: str | Path, place: str = ".") -> None:
        """Run a command in a folder of the copy, which is also where Python finds the packages.

        Raises:
            ReleaseError: the command fails.
        """
        paths = [self.folder, self.folder / "runtime" / "python", self.folder / "training"]
        environment = {
            **os.environ,
            "SOURCE_DATE_EPOCH": str(self.time),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }
        done = subprocess.run(command, cwd=self.folder / place, env=environment, stdout=sys.stderr, check=False)
        if done.returncode:
            raise ReleaseError(f"{' '.join(map(str, command))}: ended with status {done.returncode}.")


def code_version() -> str:
    """Return the version of the code, which all distributions have."""
    text = (ROOT / "runtime/python/xlruntime/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None  # hatchling reads the same line
    return found[1]


def notes_of(version: str, changelog: str) -> str:
    """Return the section of a version in a changelog, without its heading.

    Raises:
        ReleaseError: the changelog has no such section, or it is empty.
    """
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.M
    )
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section [{version}] with a date. Close the changes of this version.")
    return found[1].strip() + "\n"


def refuse_unready(version: str, output: Path) -> None:
    """Check version, clone and tools before anything is built.

    Raises:
        ReleaseError: one of them is not ready.
    """
    if version != code_version():
        raise ReleaseError(
            f"version {version}: the code is {code_version()}. Set it in every file that the tests name."
        )
    if output.exists():
        raise ReleaseError(f"{output} exists. Give a new folder.")
    missing = [
        f"{name} (requirements/{file}.txt)" for name, file in MODULES.items() if not importlib.util.find_spec(name)
    ]
    missing += [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise ReleaseError(f"not installed: {', '.join(missing)}. Install what is missing.")
    notes_of(version, (ROOT / "CHANGELOG.md").read_text("utf-8"))
    if changed := _git("status", "--porcelain").splitlines():
        shown = ", ".join(line[3:] for line in changed[:3])
        raise ReleaseError(f"the clone has {len(changed)} changed or new files: {shown}. Commit or remove them.")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def wheels(sources: Sources, dist: Path) -> None:
    """Build the wheel of xlruntime, and the wheel and the source distribution of xlexport."""
    hatchling = (sys.executable, "-m", "hatchling", "build", "-d", dist)
    sources.run(*hatchling, "-t", "wheel", place="runtime/python")
    sources.run(*hatchling)


def kernels(sources: Sources, dist: Path) -> None:
    """Build the wheels of xlexport-ops for all platforms, and its source distribution."""
    sources.run(sys.executable, "runtime/c/build_wheels.py", "--no-isolation", "-o", dist)


def archives(sources: Sources, dist: Path) -> None:
    """Build the archives of the C library for all platforms."""
    sources.run(sys.executable, "runtime/c/build_archives.py", "-o", dist)


def npm_package(sources: Sources, dist: Path) -> None:
    """Compile the JavaScript runtime, and pack it."""
    sources.run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", place="runtime/js")
    sources.run("npm", "run", "build", place="runtime/js")
    sources.run("npm", "pack", "--ignore-scripts", "--pack-destination", dist, place="runtime/js")


def conformance_kit(sources: Sources, dist: Path) -> None:
    """Write the small kit, and pack it with its runners in Python and for Node; archives for C have their own."""
    name = f"xlexport-conformance-{sources.version}"
    folder = sources.folder / "build" / name
    sources.run(sys.executable, "-m", "tests.conformance.write", "--without-samples", "-o", folder / "kit")
    for file, source in RUNNERS.items():
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(sources.folder / source, folder / file)

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        mode = 0o755 if entry.isdir() else 0o644
        return entry.replace(mtime=sources.time, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)

    with (
        (dist / f"{name}.tar.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, sources.time) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            archive.add(path, f"{name}/{path.relative_to(folder).as_posix()}", recursive=False, filter=plain)


def bill_of_materials(sources: Sources, dist: Path) -> None:
    """Install what README.md's first command installs, with hashes, and the new wheels; list all of it."""
    environment = sources.folder / "build" / "environment"
    venv.create(environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet")
    sources.run(*pip, "-r", "requirements/demo.txt")
    sources.run(*pip, "--no-index", "--no-deps", "--find-links", dist, "xlruntime", "xlexport")
    sources.run("scripts/sbom", dist / f"xlexport-{sources.version}.cdx.json", environment)


def texts(sources: Sources, dist: Path) -> None:
    """Write the notes and the recipe of the signature, and last the digests of all files."""
    changelog = (sources.folder / "CHANGELOG.md").read_text("utf-8")
    (dist / NOTES).write_text(notes_of(sources.version, changelog), "utf-8")
    shutil.copyfile(sources.folder / "docs/signing.md", dist / "SIGNING.md")
    (dist / ".gitignore").unlink(missing_ok=True)  # hatchling writes one
    digests = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / SUMS).write_text("".join(digests), "utf-8")


STEPS: tuple[Callable[[Sources, Path], None], ...] = (
    *(wheels, npm_package, conformance_kit, bill_of_materials),
    *(kernels, archives, texts),
)


def build(version: str, output: Path) -> None:
    """Build a release; `output` appears when all of it is there.

    Raises:
        ReleaseError: the release is not ready, or a build fails.
    """
    refuse_unready(version, output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy, tempfile.TemporaryDirectory(dir=output.parent, prefix=".dist-") as part:
        commit = subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
        with commit, tarfile.open(fileobj=commit.stdout, mode="r|") as archive:
            archive.extractall(copy, filter="data")
        sources, dist = Sources(Path(copy), version, int(_git("log", "-1", "--format=%ct"))), Path(part, "dist")
        dist.mkdir()
        for step in STEPS:
            print(f"{step.__name__} …", file=sys.stderr, flush=True)
            step(sources, dist)
        dist.rename(output)


def main() -> None:
    """Build or check a release from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", nargs="?", help="that of the code")
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"), help="new folder (default: dist)")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="install each file of a release, and try the kit")
    given = parser.parse_args()
    if (given.version is None) == (given.check is None):
        parser.error("give a version to build, or --check FOLDER")
    if given.check is not None:
        command = [sys.executable, "-m", "tests.conformance.release", str(given.check.resolve())]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
    try:
        build(given.version, given.output.resolve())
    except ReleaseError as error:
        sys.exit(f"Error: {error}")
    for path in sorted(given.output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")


if __name__ == "__main__":
    main()
