"""Write constraints.txt and requirements/*.txt: version and hashes of every package that an installation may need.

    pip install -r requirements/release.txt
    python scripts/lock.py                         # packages that are new in pyproject.toml; the other versions stay
    python scripts/lock.py --upgrade-package onnx  # further arguments are those of `uv pip compile`

uv resolves all extras of pyproject.toml together, for each system and each Python from 3.11 on. It takes the hashes of
all files of a version from the package index, so that one list serves every platform.
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
INSTALLER = "requirements/installer.in"  # names only
EXTRAS = {"demo": ("cpu", "convert"), "test": ("cpu", "convert", "train", "dev"), "release": ("release",)}

# PyTorch publishes CPU builds under the same version, outside the package index. Only files whose digest was computed
# from the file itself belong here.
CPU_BUILDS = {
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    )
}

CONSTRAINTS_HEAD = """\
# Written by scripts/lock.py. The version and the SHA-256 of every package that the files in requirements/ can install:
# pip refuses a package that is not listed, and a file with another digest. The README's figures were made with these.
# torch is pinned because the ONNX exporter belongs to it and changes with every release: another version may emit other
# graphs. A bundle that has been converted and verified runs on any ONNX Runtime from 1.24.1 on.
# The hashes are those of the package index. torch has one more, of the CPU build for Python 3.11 on Linux x86-64 that
# the tests run with. The digests of other CPU builds are not listed, and pip refuses them.
"""

INSTALLER_HEAD = "# Written by scripts/lock.py: a pip that takes hashes from constraints, and what builds the wheel.\n"
CPU_HEAD = """\
# Written by scripts/lock.py: as a further constraint it leaves only PyTorch's CPU builds, of an index that offers them.
#   PIP_CONSTRAINT=requirements/torch_cpu.txt pip install -r requirements/demo.txt
# The hash is in constraints.txt: with hashes here, pip would refuse the project itself while PIP_CONSTRAINT is set.
"""


def entries_of(text: str) -> list[str]:
    """Split the text of a lock into entries: a package's pin with its hashes."""
    return [entry for entry in re.split(r"\n(?=\S)", text.strip()) if not entry.startswith("#")]


def compiled(output: Path, arguments: list[str]) -> list[str]:
    """Resolve with uv and return the entries. Versions that `output` already has are kept."""
    command = ["uv", "pip", "compile", *arguments, "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet", "--output-file", str(output)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return entries_of(output.read_text("utf-8"))


def locked(output: Path, arguments: list[str]) -> list[str]:
    """Return the pins and hashes of all extras, with those of CPU builds added."""
    if CONSTRAINTS.exists():  # only the pins: uv would keep hashes that it finds, without reading them again
        pins = [entry.partition(" \\\n")[0] for entry in entries_of(CONSTRAINTS.read_text("utf-8"))]
        output.write_text("\n".join(pins), "utf-8")
    entries = compiled(output, ["pyproject.toml", INSTALLER, "--all-extras", *arguments])
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


def requirements(project: dict[str, dict[str, list[str]]], extras: tuple[str, ...]) -> str:
    """Return a requirements file with the packages of some extras; the constraints say which versions."""
    names = {*project["dependencies"], *(name for extra in extras for name in project["optional-dependencies"][extra])}
    head = f"# Written by scripts/lock.py: the packages of '.[{','.join(extras)}]', without the project.\n"
    return head + "-c ../constraints.txt\n--only-binary :all:\n" + "\n".join(sorted(names)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        entries = locked(Path(folder) / "constraints.txt", sys.argv[1:])
        CONSTRAINTS.write_text(CONSTRAINTS_HEAD + "\n".join(entries) + "\n", "utf-8")
        installer = compiled(Path(folder) / "installer.txt", [INSTALLER, "--constraints", str(CONSTRAINTS)])
    head = INSTALLER_HEAD + "--only-binary :all:\n"
    (REQUIREMENTS / "installer.txt").write_text(head + "\n".join(installer) + "\n", "utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name, extras in EXTRAS.items():
        (REQUIREMENTS / f"{name}.txt").write_text(requirements(project, extras), "utf-8")


if __name__ == "__main__":
    main()
