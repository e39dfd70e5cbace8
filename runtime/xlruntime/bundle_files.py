"""Notice that the files of an open bundle were replaced."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from .bundle import digest_file
from .errors import BundleError
from .messages import listed
from .spec import Bundle

__all__ = ["BundleFiles"]

_Stamp = tuple[int, int, int, int, int]


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
            BundleError: a file was replaced by one with other content.
        """
        self._require()
        yield
        self._require()

    def _require(self) -> None:
        with self._lock:
            changed = []
            for name, stamp in self._stamps.items():
                found = _stamp(self._folder / name)
                if found == stamp:
                    continue
                if found is None or digest_file(self._folder / name) != self._digests[name]:
                    changed.append(name)
                else:  # written or copied again, with the same content
                    self._stamps[name] = found
            if changed:
                raise BundleError(
                    f"{self._folder}: the bundle was replaced while it was open ({listed(changed)} differs).",
                    repair="Load it again.",
                )


def _stamp(path: Path) -> _Stamp | None:
    """Return device, inode, size, and the times of writing and of any change; None if the file is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
