"""Build everything that users install into a new folder, from the last commit: `scripts/release VERSION -o FOLDER`.

The sources are a copy of the commit, so nothing that a build has left in the clone gets into a release. Every tool that
knows SOURCE_DATE_EPOCH uses the time of the commit. `scripts/release --check FOLDER` tries what was built.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.util import find_spec
from pathlib import Path

from xlruntime import __version__

__all__ = ["Build", "git", "notes_of", "refuse_unready", "release"]

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"hatchling": "installer", "ziglang": "native", "cyclonedx_py": "release"}  # and their lists in requirements/
PROGRAMS = ("cmake", "git", "make", "npm", "tar")
# What the archive of the conformance kit has beside the kit: runners that are no programs.
BESIDE_KIT = {
    "conformance": ("tests/conformance/player.py", "tests/conformance/run.py"),
    "node": tuple(f"runtime/js/conformance/{name}.mjs" for name in ("node", "player", "run")),
    ".": ("LICENSE", "tests/conformance/README.md"),
}


def git(*arguments: str) -> str:
    """Return what a command of git prints about the clone."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def notes_of(version: str, changelog: str) -> str:
    """Return the section of a version in a changelog, without its heading.

    Raises:
        SystemExit: the changelog has no such section, or it is empty.
    """
    section = re.search(rf"^## \[{re.escape(version)}\] - [\d-]{{10}}\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.M)
    if section is None or not section[1].strip():
        raise SystemExit(f"Error: CHANGELOG.md has no section [{version}] with a date. Close this version's changes.")
    return section[1].strip() + "\n"


def refuse_unready(version: str, output: Path) -> None:
    """Raise SystemExit if version, folder, tools or clone are not ready."""
    if version != __version__:
        raise SystemExit(
            f"Error: version {version}: the code is {__version__}, by runtime/python/xlruntime/__init__.py."
        )
    notes_of(version, (ROOT / "CHANGELOG.md").read_text("utf-8"))
    if output.exists():
        raise SystemExit(f"Error: {output} exists. Give a new folder.")
    missing = [f"{name} (requirements/{lists}.txt)" for name, lists in MODULES.items() if find_spec(name) is None]
    missing += [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"Error: not installed: {', '.join(missing)}. Install what is missing.")
    if changes := git("status", "--porcelain").splitlines():
        shown = ", ".join(line.split(maxsplit=1)[1] for line in changes[:3])
        raise SystemExit(f"Error: the clone has {len(changes)} changed or new files: {shown}. Commit or remove them.")


class Build:
    """A release while it is built: each step adds files to `dist`, from a copy of the commit in `sources`."""

    def __init__(self, sources: Path, dist: Path) -> None:
        self._sources, self._dist, self._time = sources, dist, git("log", "-1", "--format=%ct")
        paths = (sources, sources / "runtime" / "python", sources / "training")
        self._environment = {"SOURCE_DATE_EPOCH": self._time, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def _run(self, *command: str | Path, folder: str = ".") -> None:
        environment = os.environ | self._environment
        done = subprocess.run(command, cwd=self._sources / folder, env=environment, stdout=sys.stderr, check=False)
        if done.returncode:
            raise SystemExit(f"Error: {' '.join(map(str, command))}: ended with status {done.returncode}.")

    def packages(self) -> None:
        """Build xlruntime and xlexport, kernels and C archives for all platforms, and the npm package."""
        hatchling = (sys.executable, "-m", "hatchling", "build", "-d", self._dist)
        self._run(*hatchling, "-t", "wheel", folder="runtime/python")
        self._run(*hatchling)
        self._run(sys.executable, "runtime/c/build_wheels.py", "--no-isolation", "-o", self._dist)
        self._run(sys.executable, "runtime/c/build_archives.py", "-o", self._dist)
        self._run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder="runtime/js")
        self._run("npm", "run", "build", folder="runtime/js")
        self._run("npm", "pack", "--ignore-scripts", "--pack-destination", self._dist, folder="runtime/js")

    def conformance_kit(self) -> None:
        """Write the small kit, and pack it with its runners."""
        name = f"xlexport-conformance-{__version__}"
        folder = self._sources / "build" / name
        self._run(sys.executable, "-m", "tests.conformance.write", "--without-samples", "-o", folder / "kit")
        for place, files in BESIDE_KIT.items():
            (folder / place).mkdir(exist_ok=True)
            for file in files:
                shutil.copy(self._sources / file, folder / place)
        plain = ("--sort=name", f"--mtime=@{self._time}", "--owner=root:0", "--group=root:0", "--mode=a+rX,go-w")
        self._run("tar", *plain, "-I", "gzip -9n", "-C", folder.parent, "-cf", self._dist / f"{name}.tar.gz", name)

    def bill_of_materials(self) -> None:
        """Install what README.md's first command installs, with hashes, and the new wheels; list all of it."""
        environment = self._sources / "build" / "environment"
        venv.create(environment)
        pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet")
        self._run(*pip, "-r", "requirements/demo.txt")
        self._run(*pip, "--no-index", "--no-deps", "--find-links", self._dist, "xlruntime", "xlexport")
        self._run("scripts/sbom", self._dist / f"xlexport-{__version__}.cdx.json", environment)

    def texts(self) -> None:
        """Write the notes and the recipe of signatures, and last the digests of all files."""
        changelog = (self._sources / "CHANGELOG.md").read_text("utf-8")
        (self._dist / "RELEASE_NOTES.md").write_text(notes_of(__version__, changelog), "utf-8")
        _, title, signing = (self._sources / "docs/ship.md").read_text("utf-8").partition("## Signing a bundle\n")
        (self._dist / "SIGNING.md").write_text(title.removeprefix("#") + signing, "utf-8")
        files = sorted(self._dist.iterdir())
        digests = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (self._dist / "SHA256SUMS").write_text("".join(digests), "utf-8")


def release(version: str, output: Path) -> None:
    """Build a release; `output` appears when all of it is there.

    Raises:
        SystemExit: the release is not ready, or a step fails.
    """
    refuse_unready(version, output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy, tempfile.TemporaryDirectory(dir=output.parent, prefix=".dist-") as work:
        sources, dist = Path(copy, "sources"), Path(work, "dist")
        dist.mkdir()
        git("archive", "--format=tar", "--output", f"{copy}/sources.tar", "HEAD")
        sources.mkdir()
        subprocess.run(["tar", "-x", "-f", f"{copy}/sources.tar", "-C", sources], check=True)
        build = Build(sources, dist)
        build.packages()
        build.conformance_kit()
        build.bill_of_materials()
        build.texts()
        dist.rename(output)


def main() -> None:
    """Build a release with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="that of the code")
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"), help="new folder (default: dist)")
    given = parser.parse_args()
    release(given.version, given.output.resolve())


if __name__ == "__main__":
    main()
