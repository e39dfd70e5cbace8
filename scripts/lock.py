"""Write constraints.txt and requirements/*.txt: version and hashes of every package that an installation may need.

    pip install ./runtime/python '.[release]' -c constraints.txt
    python scripts/lock.py                         # packages that are new in pyproject.toml; the other versions stay
    python scripts/lock.py --upgrade-package onnx  # further arguments are those of `uv pip compile`

uv resolves all extras of pyproject.toml together, for each system and each Python from 3.11 on. constraints.txt gets
the versions, and requirements/hashes.txt the same versions with the hashes of all their files on the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
REQUIREMENTS = ROOT / "requirements"
HASHES = REQUIREMENTS / "hashes.txt"
INSTALLER = REQUIREMENTS / "installer.txt"
NATIVE = REQUIREMENTS / "native.txt"
EXTRAS = {
    "demo": ("cpu", "convert"),
    "test": ("cpu", "convert", "train", "dev"),
    "fuzz": ("fuzz",),
    "docs": ("docs",),
    "release": ("release",),
}

# Packages of the extra lm-eval of which the index has no wheels, and our own, which uv takes from its folder
# (tool.uv.sources in pyproject.toml). No file in requirements/ asks for them.
OWN = "xlruntime"
SOURCE_ONLY = ("rouge-score", "sqlitedict", "word2number", OWN)

# PyTorch publishes CPU builds under the same version, outside the package index. Only files whose digest was computed
# from the file itself belong here.
CPU_BUILDS = {
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    )
}

CONSTRAINTS_HEAD = """\
# Written by scripts/lock.py. Exact versions of every package that the extras can install. The figures in the README
# were made with these.
#   pip install ./runtime/python '.[cpu,convert]' -c constraints.txt
# torch is pinned because the ONNX exporter belongs to it and changes with every release: another version may emit other
# graphs. A bundle that has been converted and verified runs on any ONNX Runtime from 1.24.1 on.
# requirements/hashes.txt has the same versions with their hashes: CONTRIBUTING.md, "Install with checked hashes".
"""

HASHES_HEAD = """\
# Written by scripts/lock.py. The versions of constraints.txt with the SHA-256 of their files, for requirements/*.txt:
# pip refuses a package that is not listed, and a file with another digest.
# The hashes are those of the package index. torch has one more, of the CPU build for Python 3.11 on Linux x86-64 that
# the tests run with. The digests of other CPU builds are not listed, and pip refuses them.
"""

INSTALLER_HEAD = "# Written by scripts/lock.py: a pip that takes hashes from constraints, and what builds the wheel.\n"
NATIVE_HEAD = "# Written by scripts/lock.py: what builds xlexport-ops, the kernels in runtime/c.\n"
CPU_HEAD = """\
# Written by scripts/lock.py: as a further constraint it leaves only PyTorch's CPU builds, of an index that offers them.
#   PIP_CONSTRAINT=requirements/torch_cpu.txt pip install -r requirements/demo.txt
# The hash is in hashes.txt: with hashes here, pip would refuse the project itself while PIP_CONSTRAINT is set.
"""


def entries_of(text: str) -> list[str]:
    """Split the text of a lock into entries: a package's pin with its hashes."""
    return [entry for entry in re.split(r"\n(?=\S)", text.strip()) if not entry.startswith("#")]


def pins_of(entries: list[str]) -> list[str]:
    """Return the pins without their hashes."""
    return [entry.partition(" \\\n")[0] for entry in entries]


def compiled(lock: Path, sources: list[str], arguments: list[str]) -> list[str]:
    """Resolve with uv and return the entries. Versions that `lock` already has are kept."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        if lock.exists():  # only the pins: uv would keep hashes that it finds, without reading them again
            output.write_text("\n".join(pins_of(entries_of(lock.read_text("utf-8")))), "utf-8")
        command = ["uv", "pip", "compile", *sources, "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet", "--output-file", str(output)]
        command += [argument for name in SOURCE_ONLY for argument in ("--no-binary", name)]
        command += ["--fork-strategy", "fewest"]  # one version of a package for every Python
        command += ["--no-emit-package", OWN, *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return entries_of(output.read_text("utf-8"))


def locked(arguments: list[str]) -> list[str]:
    """Return the pins and hashes of all extras, with those of CPU builds added."""
    entries = compiled(CONSTRAINTS, ["pyproject.toml", "--all-extras"], arguments)
    torch = next(index for index, entry in enumerate(entries) if entry.startswith("torch=="))
    version = entries[torch].split()[0].removeprefix("torch==")
    builds = "".join(
        f" \\\n    --hash=sha256:{digest}"
        for name, digest in CPU_BUILDS.items()
        if name.startswith(f"torch-{version}+")
    )
    if not builds:
        sys.exit(f"torch is now {version}: add the digest of its CPU build to CPU_BUILDS in scripts/lock.py.")
    entries[torch] += builds
    (REQUIREMENTS / "torch_cpu.txt").write_text(f"{CPU_HEAD}torch=={version}+cpu\n", "utf-8")
    return entries


def write_build_list(lock: Path, head: str, wanted: list[str]) -> None:
    """Write the pins and hashes of what builds a wheel; what the extras need too has their version."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names.in"
        names.write_text("\n".join(wanted), "utf-8")
        entries = compiled(lock, [str(names)], ["--constraints", str(CONSTRAINTS)])
    lock.write_text(head + "--only-binary :all:\n" + "\n".join(entries) + "\n", "utf-8")


def build_requirements(project: Path) -> list[str]:
    """Return what a project file says that builds it."""
    found: list[str] = tomllib.loads(project.read_text("utf-8"))["build-system"]["requires"]
    return found


def requirements(project: dict[str, dict[str, list[str]]], extras: tuple[str, ...]) -> str:
    """Return a requirements file with the packages of some extras; hashes.txt says which versions and files."""
    names = {*project["dependencies"], *(name for extra in extras for name in project["optional-dependencies"][extra])}
    foreign = sorted(name for name in names if not name.startswith(f"{OWN}=="))
    head = f"# Written by scripts/lock.py: the packages of '.[{','.join(extras)}]', without the project.\n"
    return head + "-c hashes.txt\n--only-binary :all:\n" + "\n".join(foreign) + "\n"


def main() -> None:
    """Write the constraints and all lists of hashes."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    entries = locked(sys.argv[1:])
    CONSTRAINTS.write_text(CONSTRAINTS_HEAD + "\n".join(pins_of(entries)) + "\n", "utf-8")
    HASHES.write_text(HASHES_HEAD + "\n".join(entries) + "\n", "utf-8")
    write_build_list(INSTALLER, INSTALLER_HEAD, ["pip>=26.1", *build_requirements(ROOT / "pyproject.toml")])
    write_build_list(NATIVE, NATIVE_HEAD, build_requirements(ROOT / "runtime" / "c" / "pyproject.toml"))
    for name, extras in EXTRAS.items():
        (REQUIREMENTS / f"{name}.txt").write_text(requirements(declared["project"], extras), "utf-8")


if __name__ == "__main__":
    main()
