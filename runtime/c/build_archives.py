"""Build the archives of the C library for all platforms on one machine. It needs CMake, make and the package ziglang.

python build_archives.py -o dist
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from pathlib import Path

from build_library import cmake_options
from platforms import PLATFORMS

__all__ = ["build_archive"]

ROOT = Path(__file__).resolve().parent
PAGE = ROOT.parents[1] / "docs" / "c_interface.md"
OPTIONS = (
    *("-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DXLRUNTIME_TESTS=ON"),
    "-DXLRUNTIME_STATIC=OFF",  # it would need zig's C++ library, which the shared one contains
    *(f"-DCMAKE_{language}_FLAGS=-fno-sanitize=undefined" for language in ("C", "CXX")),
    *(f"-DCMAKE_{kind}_LINKER_FLAGS=-s" for kind in ("SHARED", "EXE")),
)
TARGETS = ("xlruntime_shared", "xlscore", "xlconformance")
# What zig compiles in, and where its package has the licence. MinGW's start of programs is for Windows alone.
LICENCES = {"llvm": "lib/libcxx/LICENSE.TXT", "zig": "LICENSE"}
MINGW = {"mingw-w64": "lib/libc/mingw/COPYING"}


def build_archive(name: str, output: Path) -> Path:
    """Write the archive for a platform of platforms.py into the folder `output`, and return its path.

    Raises:
        subprocess.CalledProcessError: the library does not compile.
    """
    platform = PLATFORMS[name]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    windows = platform.system == "Windows"
    archive = output / f"xlruntime-c-{version}-{name}{'.zip' if windows else '.tar.gz'}"
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        build, folder = Path(scratch, "build"), Path(scratch, f"xlruntime-c-{version}-{name}")
        beside = "@loader_path" if platform.system == "Darwin" else "$ORIGIN"
        options = cmake_options(Path(scratch, "zig"), platform.target, platform.system, platform.processor)
        options += [*OPTIONS, f"-DCMAKE_INSTALL_RPATH={beside}/../lib"]
        subprocess.run(["cmake", "-S", ROOT, "-B", build, *options], check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", build, "--parallel", jobs, "--target", *TARGETS], check=True)
        for part in ([], ["--component", "programs"]):
            subprocess.run(["cmake", "--install", build, "--prefix", folder, *part], check=True)
        _add_texts(folder, LICENCES | (MINGW if windows else {}))
        making = Path(scratch, archive.name)
        (_zip if windows else _tar)(folder, making)
        shutil.move(making, archive)
    return archive


def _add_texts(folder: Path, licences: dict[str, str]) -> None:
    """Add the README, the example, whose program is that of the documentation, and licences of zig's package."""
    shutil.copytree(ROOT / "archive", folder, dirs_exist_ok=True)
    program = PAGE.read_text("utf-8").split("```c\n")[1].split("```\n")[0]
    (folder / "example" / "program.c").write_text(program, "utf-8")
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None and spec.origin is not None  # it has compiled the library
    for name, text in licences.items():
        shutil.copyfile(Path(spec.origin).parent / text, folder / f"share/licenses/xlruntime/LICENSE.{name}")


def _tar(folder: Path, archive: Path) -> None:
    plain = ("--sort=name", "--mtime=1980-01-01Z", "--owner=0", "--group=0", "--numeric-owner", "--mode=a+rX,go-w")
    subprocess.run(["tar", *plain, "-I", "gzip -9n", "-C", folder.parent, "-cf", archive, folder.name], check=True)


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix())
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> None:
    """Build with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="default: all")
    arguments = parser.parse_args()
    for name in arguments.platform or PLATFORMS:
        archive = build_archive(name, arguments.output)
        print(f"{archive.name}: {archive.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
