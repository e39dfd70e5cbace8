"""Read the manifest of a bundle, compare digests, and notice replaced files of an open bundle."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .bundle import DIGEST, MANIFEST, MANIFEST_LIMITS, RUN, Bundle, FileDigest
from .errors import BundleDamagedError, BundleError, BundleFormatError, BundleMismatchError, BundleNotFoundError
from .hub_cache import download_advice, real_folders
from .limits import read_at_most
from .messages import listed, near_path

__all__ = ["BundleFiles", "check_digests", "check_kind", "digest_file", "is_bundle", "read_bundle"]

CHUNK = 1 << 20
KINDS = {
    "language model": ("a language model, which reads tokens", "To score or continue documents", "load"),
    "encoder-decoder": ("an encoder-decoder, which turns one text into another", "To translate", "load_translator"),
    "step model": ("a step model, which maps numbers to numbers", "To run it on arrays", "load_step_model"),
}
"""The kinds of bundles: what each is, what users do with it, and the function of xlruntime that opens it."""

_Stamp = tuple[int, int, int, int, int]


def is_bundle(folder: Path) -> bool:
    """Return whether `folder` looks like a bundle: a folder that holds a manifest."""
    return (folder / MANIFEST).is_file()


def check_kind(folder: Path, bundle: Bundle, kind: str) -> None:
    """Raise BundleFormatError if a bundle is of another kind."""
    own = "step model" if bundle.purpose == RUN else "language model" if bundle.encoder is None else "encoder-decoder"
    if own != kind:
        what, use, function = KINDS[own]
        article = "an" if kind[0] == "e" else "a"
        raise BundleFormatError(
            f"{folder}: {what}; expected {article} {kind}.", hint=f"{use}, open it with xlruntime.{function}."
        )


def read_bundle(
    folder: Path,
    digest: str | None = None,
    check_files: bool = True,
    upgrade: Callable[[bytes], bytes] = lambda raw: raw,
) -> Bundle:
    """Read the manifest of `folder`, and compare it and all files that it lists with their digests.

    Neither ONNX Runtime nor the ONNX checker notices a flipped byte in a weights file; the digests do.

    Args:
        digest: the SHA-256 of `bundle.json` that the caller expects; None: any.
        upgrade: rewrites the manifest of an earlier format.

    Raises:
        BundleNotFoundError: the folder does not exist, or has no manifest.
        BundleFormatError: the manifest is of another format, or not one.
        BundleDamagedError: files are missing or changed; lists all of them.
        BundleMismatchError: the manifest is intact, but not the expected one.
    """
    hint = f"Make a bundle with `xlexport convert CHECKPOINT`.{download_advice(str(folder))}"
    if not folder.is_dir():
        problem = "a file, expected a bundle folder" if folder.exists() else "no such folder"
        raise BundleNotFoundError(f"{folder}: {problem}.", hint=near_path(folder) or hint)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise BundleNotFoundError(f"{folder}: no {MANIFEST} in it, so not a bundle.", hint=hint)
    with manifest.open("rb") as file:
        raw = read_at_most(file, MANIFEST_LIMITS.budget(str(manifest), BundleFormatError))
    sha256, stated = hashlib.sha256(raw).hexdigest(), _stated_digest(folder)
    intact = stated == f"{sha256}  {MANIFEST}\n"
    if stated and not intact:
        raise _manifest_changed(manifest)
    if digest is not None and digest != sha256:
        raise BundleMismatchError(
            f"{manifest}: its SHA-256 is {sha256}, expected {digest[:80]!r}.", hint="Use the bundle with this digest."
        )
    bundle = Bundle.from_json(upgrade(raw), str(manifest))
    if not intact:  # earlier formats have no digest
        raise _manifest_changed(manifest)
    if check_files:
        check_digests(folder, bundle.files)
    return bundle


def _stated_digest(folder: Path) -> str:
    """Return the line that belongs to the manifest; empty without such a file."""
    if not (folder / DIGEST).is_file():  # missing, a folder, or a link to itself
        return ""
    with (folder / DIGEST).open("rb") as file:
        return file.read(1 << 10).decode("utf-8", "replace")


def _manifest_changed(manifest: Path) -> BundleError:
    return BundleDamagedError(
        f"{manifest}: differs from the SHA-256 in {DIGEST}.",
        hint=f"Copy the bundle again; after a change on purpose: sha256sum {MANIFEST} > {DIGEST}",
    )


def check_digests(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Compare files of a bundle with the digests in its manifest.

    Raises:
        BundleDamagedError: files are missing or changed; lists all of them.
    """
    problems = [problem for name, digest in files.items() if (problem := _problem(folder / name, digest))]
    if problems:
        raise BundleDamagedError(
            f"{folder}: {'; '.join(problems)}.", hint="Copy it again, or convert the checkpoint again."
        )


def digest_file(path: Path) -> FileDigest:
    """Return SHA-256 and size of a file, which is read piece by piece."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            sha256.update(piece)
            size += len(piece)
    return FileDigest(sha256.hexdigest(), size)


def _problem(path: Path, digest: FileDigest) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.resolve().parent not in real_folders(path.parent):
        return f"{path.name} is a link that leads out of the folder"
    size = path.stat().st_size
    if size != digest.size:
        return f"{path.name} has {size} bytes, expected {digest.size}"
    sha256 = digest_file(path).sha256
    if sha256 != digest.sha256:
        return f"{path.name} was changed (SHA-256 {sha256[:12]}…, expected {digest.sha256[:12]}…)"
    return None


class BundleFiles:
    """The files that determine the numbers of a bundle, as they were when it was opened.

    Graphs are opened when they are first needed. By then, the folder may hold another bundle.
    """

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        """Record the current state of the files. A missing one is reported when it is used."""
        self._folder, self._digests = folder, bundle.computing_files
        self._stamps = {name: _stamp(folder / name) for name in self._digests}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise unless the files are the same before and after the block.

        Raises:
            BundleDamagedError: a file was replaced by one with other content.
        """
        self._require()
        yield
        self._require()

    def _require(self) -> None:
        with self._lock:
            changed = []
            for name, stamp in self._stamps.items():
                current = _stamp(self._folder / name)
                if current == stamp:
                    continue
                if current is None or digest_file(self._folder / name) != self._digests[name]:
                    changed.append(name)
                else:  # written or copied again, with the same content
                    self._stamps[name] = current
            if changed:
                raise BundleDamagedError(
                    f"{self._folder}: the bundle was replaced while it was open ({listed(changed)} differs).",
                    hint="Load it again.",
                )


def _stamp(path: Path) -> _Stamp | None:
    """Return device, inode, size, and the times of writing and of any change; None if the file is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
