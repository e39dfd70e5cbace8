"""Write a site: a page, a bundle and the JavaScript that runs it. It needs a file server and nothing else."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import xlruntime
from xlexport import atomic_output
from xlexport.bundles import check_graphs
from xlexport.page.assemble import COLOUR_LEVELS, bundle_note, ceilings, page_pieces, page_title
from xlexport.scoring.totals import caveats
from xlexport.web.javascript import Package, find_packages
from xlruntime import BundleDamagedError, BundleFormatError, __version__
from xlruntime.bundle import DIGEST, MANIFEST, RUN, Bundle
from xlruntime.bundle_files import check_kind, read_bundle
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import make_tokenizer

__all__ = ["POLICY", "SITE_FILE", "check_output", "write_site"]

SITE_FILE = "site.json"  # says what a site was made from, and shows that a folder is a site
TITLE = "Surprise as you write"
TOP = 5  # likeliest tokens on a card
# What the page may load besides its own script and style: its worker, and icons that it draws itself.
POLICY = "; worker-src 'self'; connect-src 'self'; img-src data:"
LIBRARY = "@huggingface/tokenizers"
FOLDERS = {"xlruntime": "xlruntime", "onnxruntime-web": "onnxruntime", LIBRARY: "tokenizers"}


def check_output(output: Path, force: bool) -> None:
    """Refuse an output folder that must not be replaced, before any work is done.

    Raises:
        OutputExistsError: it exists and is not a site, or is a link, or is a site and `force` is off.
        OutputFolderError: its parent folder does not exist.
    """
    atomic_output.check_own_folder(output, force, lambda path: (path / SITE_FILE).is_file(), "a site")


def write_site(
    folder: Path, output: Path, *, runtime: Path | None = None, title: str | None = None, force: bool = False
) -> dict[str, int]:
    """Write the site of a bundle, whole or not at all.

    Args:
        folder: the bundle.
        runtime: where the npm packages are, see `find_packages`.
        title: the page's title.
        force: replace a site at `output`.

    Returns:
        The size in bytes of each part of the site.

    Raises:
        BundleError: the bundle is broken or changed, or a browser cannot run it.
        MissingDependencyError: npm packages are missing.
        OutputExistsError, OutputFolderError: as `check_output`.
    """
    check_output(output, force)
    bundle = read_bundle(folder)
    _check_runnable(bundle, folder)
    check_graphs(folder, bundle)  # JavaScript does not
    tokenizer = make_tokenizer(bundle.tokenizer, folder)
    library = (LIBRARY,) if bundle.tokenizer.kind == "tokenizers" else ()
    packages = find_packages(("xlruntime", "onnxruntime-web", *library), runtime)
    with atomic_output.folder(output, lambda: check_output(output, force)) as site:
        _copy_bundle(bundle, folder, site / "bundle")
        for package in packages:
            _copy_package(package, site / FOLDERS[package.name])
        with as_file(files("xlexport.web").joinpath("worker")) as worker:
            shutil.copytree(worker, site / "worker", ignore=shutil.ignore_patterns("__pycache__"))
        about = _about(bundle, folder, tokenizer, page_title(title or TITLE))
        page = page_pieces("live", about, policy=POLICY)
        (site / "index.html").write_text("".join(page), "utf-8", newline="\n")
        versions = {"xlexport": __version__, "packages": {package.name: package.version for package in packages}}
        (site / SITE_FILE).write_text(json.dumps(versions, indent=2) + "\n", "utf-8")
        return {part.name: _size(part) for part in sorted(site.iterdir())}


def _check_runnable(bundle: Bundle, folder: Path) -> None:
    """Refuse bundles that no browser can run, or whose text it cannot read."""
    if bundle.purpose == RUN:
        check_kind(folder, bundle, "language model")
    others = sorted({graph.format for graph in bundle.graphs.values()} - {"onnx"})
    if others:
        raise BundleFormatError(
            f"{folder}: its graphs are {', '.join(others)}, which browsers cannot run.",
            hint="Convert the checkpoint with --to onnx.",
        )
    if bundle.tokenizer.kind == "sentencepiece":
        raise BundleFormatError(
            f"{folder}: has a SentencePiece tokenizer, whose library does not run in the page's worker.",
            hint="Use a bundle with a tokenizer.json, a vocabulary or bytes.",
        )


def _copy_bundle(bundle: Bundle, folder: Path, output: Path) -> None:
    """Copy the files that a runtime opens, and check the copies."""
    output.mkdir()
    for name in (*bundle.files, MANIFEST, DIGEST):
        shutil.copyfile(folder / name, output / name)
    if read_bundle(output) != bundle:
        raise BundleDamagedError(f"{folder}: was replaced while it was copied.", hint="Run the command again.")


def _copy_package(package: Package, output: Path) -> None:
    for file in package.files:
        target = output / file.relative_to(package.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _about(bundle: Bundle, folder: Path, tokenizer: Tokenizer, title: str) -> dict[str, Any]:
    """Return what the page's script and its worker need to know before the bundle is loaded."""
    settings = bundle.settings
    kind, detail = bundle.tokenizer.kind, bundle.graphs.get("detail")
    offsets = {"tokenizers": "none", "none": "ids"}.get(kind, "bytes" if tokenizer.offsets_in_bytes else "characters")
    return {
        "title": title,
        "top": 0 if detail is None else min(TOP, int(detail.outputs["top_ids"].shape[-1])),
        "vocabSize": bundle.vocab_size,
        "levels": COLOUR_LEVELS,
        "ceiling": ceilings(bundle.vocab_size),
        "hasBytes": kind != "none",
        "unit": "byte" if kind == "bytes" else "token",
        "sides": [["", bundle_note(bundle, folder, settings)]],
        "notes": caveats(settings, tokenizer),
        "offsets": offsets,
        "graphs": sorted(bundle.graphs),
        "bundleBytes": sum(digest.size for digest in bundle.files.values()),
        "runtimeVersion": xlruntime.__version__,
    }


def _size(path: Path) -> int:
    paths = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in paths if file.is_file())
