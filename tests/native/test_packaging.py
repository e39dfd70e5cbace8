"""The distribution xlexport-ops: its versions, its wheel, and its source distribution."""

from __future__ import annotations

import base64
import csv
import ctypes
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import xlexport
from tests.helpers.native import NATIVE, compiler
from tests.helpers.paths import ROOT

PROJECT = tomllib.loads((NATIVE / "pyproject.toml").read_text("utf-8"))
BUILD = PROJECT["build-system"]["requires"]
INFO = f"xlexport_ops-{xlexport.__version__}.dist-info"
builds = pytest.mark.skipif(
    find_spec("hatchling") is None or find_spec("ziglang") is None,
    reason="hatchling or ziglang is not installed: requirements/native.txt",
)


def build(folder: Path, *arguments: str, umask: int = 0o022, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run hatchling in a folder that has the sources of the distribution."""
    command = [sys.executable, "-m", "hatchling", "build", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, umask=umask, check=False, capture_output=True, text=True, timeout=900
    )


def copied(folder: Path, second: int) -> Path:
    """Copy the sources, with this time of change."""
    shutil.copytree(NATIVE, folder, ignore=shutil.ignore_patterns("dist", "__pycache__"))
    for path in folder.rglob("*"):
        os.utime(path, (second, second))
    return folder


def only(folder: Path, ending: str) -> Path:
    (found,) = folder.glob(f"*{ending}")
    return found


def test_version_license_and_backend_are_those_of_xlexport() -> None:
    assert PROJECT["project"]["version"] == xlexport.__version__
    assert (NATIVE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert set(backend) < set(BUILD)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("example", ["stream.c", "stream.cpp", "xlscore.c"])
@pytest.mark.full
def test_headers_fit_the_examples(example: str) -> None:
    language = ["-x", "c"] if example.endswith(".c") else ["-std=c++17"]
    warnings = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command = [*str(compiler()).split(), *language, *warnings, "-Iinclude", f"examples/{example}"]
    subprocess.run(command, cwd=NATIVE, check=True, timeout=100)


@pytest.mark.native
@builds
def test_wheel_and_sdist_are_the_same_bytes_wherever_they_are_built(tmp_path: Path) -> None:
    one, two = copied(tmp_path / "one", 1_000_000_000), copied(tmp_path / "another folder", 1_700_000_000)
    for folder, umask in ((one, 0o022), (two, 0o077)):
        made = build(folder, umask=umask)
        assert made.returncode == 0, made.stderr
    for ending in (".whl", ".tar.gz"):
        assert only(one / "dist", ending).name == only(two / "dist", ending).name
        assert only(one / "dist", ending).read_bytes() == only(two / "dist", ending).read_bytes()

    wheel = zipfile.ZipFile(only(one / "dist", ".whl"))
    (library,) = (name for name in wheel.namelist() if Path(name).stem == "libxlexport_ops")
    others = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    assert set(wheel.namelist()) == {library, "xlexport_ops/__init__.py", *others}
    record = {name: digest for name, digest, _ in csv.reader(io.StringIO(wheel.read(f"{INFO}/RECORD").decode()))}
    for name in set(wheel.namelist()) - {f"{INFO}/RECORD"}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
        assert record[name] == f"sha256={digest}"

    loaded = ctypes.CDLL(wheel.extract(library, tmp_path))
    loaded.xlexport_ops_version.restype = ctypes.c_char_p
    assert loaded.xlexport_ops_version() == xlexport.__version__.encode()


@pytest.mark.native
@builds
def test_wheel_is_built_from_the_sdist(tmp_path: Path) -> None:
    sources = copied(tmp_path / "sources", 1_000_000_000)
    assert build(sources, "-t", "sdist").returncode == 0
    with tarfile.open(only(sources / "dist", ".tar.gz")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    for folder in (sources, unpacked):
        made = build(folder, "-t", "wheel")
        assert made.returncode == 0, made.stderr
    assert only(unpacked / "dist", ".whl").read_bytes() == only(sources / "dist", ".whl").read_bytes()


@pytest.mark.native
@builds
def test_one_command_builds_for_other_platforms(tmp_path: Path) -> None:
    command = [sys.executable, str(NATIVE / "build_wheels.py"), "-o", str(tmp_path), "--no-isolation"]
    command += ["--platform", "linux-aarch64", "--platform", "macos-arm64"]  # Windows takes minutes for the first time
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    begin = {"linux_2_17_aarch64": b"\x7fELF", "macosx_11_0_arm64": b"\xcf\xfa\xed\xfe"}
    for tag, magic in begin.items():
        wheel = zipfile.ZipFile(only(tmp_path, f"{tag}.whl"))
        (library,) = (name for name in wheel.namelist() if Path(name).stem == "libxlexport_ops")
        assert wheel.read(library).startswith(magic)
    assert only(tmp_path, ".tar.gz").is_file()


@pytest.mark.native
@builds
def test_unknown_platform_is_refused(tmp_path: Path) -> None:
    made = build(copied(tmp_path / "sources", 1_000_000_000), "-t", "wheel", XLEXPORT_OPS_PLATFORM="amiga-m68k")
    assert made.returncode != 0
    assert "XLEXPORT_OPS_PLATFORM: no library can be built for amiga-m68k, only for linux-x86_64" in made.stderr


@pytest.mark.native
@pytest.mark.skipif(find_spec("xlexport_ops") is None, reason="xlexport-ops is not installed")
def test_installed_package_is_found_and_of_this_version() -> None:
    show = "from xlruntime.kernels import *; from xlruntime.devices import Device; "
    show += "print(find_kernels('auto', Device('cpu')))"
    done = subprocess.run([sys.executable, "-c", show], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"xlexport-ops {xlexport.__version__} (")
