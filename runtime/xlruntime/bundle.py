"""Open a bundle folder: read its manifest and check every file against it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from .errors import BundleError, BundleNotFoundError
from .limits import read_at_most
from .spec import MANIFEST_LIMITS, Bundle, FileDigest

__all__ = ["MANIFEST", "changed_descriptions", "check_digests", "digest_file", "is_bundle", "read_bundle"]

MANIFEST = "bundle.json"
CHUNK = 1 << 20


def is_bundle(folder: Path) -> bool:
    """Return whether `folder` looks like a bundle: a folder that holds a manifest."""
    return (folder / MANIFEST).is_file()


def digest_file(path: Path) -> FileDigest:
    """Return SHA-256 and size of a file, which is read piece by piece."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            sha256.update(piece)
            size += len(piece)
    return FileDigest(sha256.hexdigest(), size)


def read_bundle(folder: Path, check_files: bool = True) -> Bundle:
    """Read the manifest of `folder` and check the files it lists, except descriptions for people.

    Neither ONNX Runtime nor the ONNX checker notices a flipped byte in a weights file; the digests do.

    Raises:
        BundleNotFoundError: the folder does not exist, or has no manifest.
        BundleError: the manifest is broken or newer, or files are missing or changed; lists all of them.
    """
    if not folder.exists():
        raise BundleNotFoundError(
            f"{folder}: no such folder.", repair="Make a bundle with `xlexport convert CHECKPOINT`."
        )
    if not folder.is_dir():
        raise BundleNotFoundError(
            f"{folder}: a file, expected a bundle folder.", repair="Make a bundle with `xlexport convert CHECKPOINT`."
        )
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise BundleNotFoundError(
            f"{folder}: no {MANIFEST} in it, so not a bundle.", repair="Make one with `xlexport convert CHECKPOINT`."
        )
    with manifest.open("rb") as file:
        raw = read_at_most(file, MANIFEST_LIMITS.budget(str(manifest), BundleError))
    bundle = Bundle.from_json(raw, str(manifest))
    if check_files:
        check_digests(folder, bundle.guarded_files)
    return bundle


def check_digests(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Compare files of a bundle with the digests in its manifest.

    Raises:
        BundleError: files are missing or changed; lists all of them.
    """
    problems = [problem for name, wanted in files.items() if (problem := _problem(folder / name, wanted))]
    if problems:
        raise BundleError(f"{folder}: {'; '.join(problems)}.", repair="Copy it again, or convert the checkpoint again.")


def changed_descriptions(folder: Path, bundle: Bundle) -> dict[str, str]:
    """Return the descriptions of a bundle that are not as they were written, by name, with the difference."""
    found = {name: _problem(folder / name, bundle.files[name]) for name in bundle.files.keys() - bundle.guarded_files}
    return {name: problem for name, problem in sorted(found.items()) if problem is not None}


def _problem(path: Path, wanted: FileDigest) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != wanted.size:
        return f"{path.name} has {size} bytes, expected {wanted.size}"
    found = digest_file(path).sha256
    return (
        None
        if found == wanted.sha256
        else f"{path.name} was changed (SHA-256 {found[:12]}…, expected {wanted.sha256[:12]}…)"
    )
