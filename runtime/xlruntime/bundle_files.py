"""The files of an open bundle: whether they are still the ones that it was opened with."""

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
    """The files that decide which numbers a bundle computes, as they were when it was opened.

    Graphs are opened when they are first needed. Another bundle may lie in the folder by then.
    """

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        """Note what the files are now. A missing one is noticed when it is used."""
        self._folder, self._digests = folder, bundle.computing_files
        self._stamps = {name: _stamp(folder / name) for name in self._digests}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Insist that the files are the same before and after what is done with them.

        Raises:
            BundleError: a file was replaced by one of other content.
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
    """What changes with a file: device, inode, size, and times of writing and of any change; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
