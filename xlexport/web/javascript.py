"""Find the JavaScript that a site needs: the compiled package `xlruntime`, ONNX Runtime, and a tokenizer library."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xlexport.errors import MissingDependencyError
from xlruntime.limits import Limits, read_json
from xlruntime.messages import named

__all__ = ["Package", "find_packages"]

PACKAGE_LIMITS = Limits(bytes=1 << 20)  # of a package.json
CHECKOUT = Path(__file__).parents[2] / "runtime/js"  # exists only in a clone of the repository
INSTALLED = "xlexport_web"  # the Python package that `pip install ./runtime/js` makes
RUNTIME = "xlruntime"
INSTALL = "Install it, in a clone of xlexport: pip install ./runtime/js"
# The files that a page needs of each npm package, and the oldest version that has what the page uses.
NEEDED = {
    "xlruntime": (("browser.js", "model.js", "stream.js", "state.js"), (0, 2, 0)),
    "onnxruntime-web": (
        ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
        (1, 24, 1),
    ),
    "@huggingface/tokenizers": (("tokenizers.min.mjs",), (0, 1, 0)),
}


@dataclass(frozen=True)
class Package:
    """An installed npm package.

    Attributes:
        root: a folder of it.
        files: the files in there that a page needs.
    """

    name: str
    version: str
    root: Path
    files: tuple[Path, ...]


def find_packages(names: tuple[str, ...], folder: Path | None = None) -> list[Package]:
    """Return npm packages.

    Args:
        folder: a folder with `node_modules`, such a folder itself, or the folder of `xlruntime`. None: `runtime/js` of
            a clone of the repository if npm has run there, or else the Python package `xlexport_web`. The current
            folder is not searched: its code could be a stranger's.

    Raises:
        MissingDependencyError: packages are missing, not built, or too old; lists all of them.
    """
    source = _default_folder() if folder is None else folder
    packages: list[Package] = []
    problems: list[str] = []
    for name in names:
        manifests = (place / "package.json" for place in _places(source, name))
        ours = (file for file in manifests if file.is_file() and _fields(file).get("name") == name)
        place = next((file.parent for file in ours), None)
        result = f"{name} is missing" if place is None else _read(place, name)
        if isinstance(result, str):
            problems.append(result)
        else:
            packages.append(result)
    if problems:
        hint = f"{INSTALL}." if folder is None else f"{INSTALL}, and leave out --runtime."
        raise MissingDependencyError(f"no JavaScript for the page in {source}: {'; '.join(problems)}.", hint=hint)
    return packages


def _default_folder() -> Path:
    if (CHECKOUT / "node_modules").is_dir():
        return CHECKOUT
    spec = importlib.util.find_spec(INSTALLED)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    raise MissingDependencyError("the JavaScript of the page is not installed.", hint=f"{INSTALL}.")


def _places(folder: Path, name: str) -> Iterator[Path]:
    """Yield the folders in which a package may be, seen from a folder that was given."""
    yield folder / "node_modules" / name
    yield folder / name
    if name == RUNTIME:
        yield folder


def _fields(manifest: Path) -> dict[str, object]:
    content = read_json(manifest, PACKAGE_LIMITS, MissingDependencyError, "Install the package again.")
    return content if isinstance(content, dict) else {}


def _read(place: Path, name: str) -> Package | str:
    """Return a package, or the problem of it."""
    required, oldest = NEEDED[name]
    version = str(_fields(place / "package.json").get("version"))
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    if numbers is None or tuple(map(int, numbers.groups())) < oldest:
        return f"{name} has version {named(version)}, at least {'.'.join(map(str, oldest))} is needed"
    root = place / "dist"
    missing = [file for file in required if not (root / file).is_file()]
    if missing:
        return f"{root} has no {', '.join(missing)}"
    files = sorted(root.rglob("*.js")) if name == RUNTIME else [root / file for file in required]
    return Package(name, version, root, tuple(files))
