"""A cache of Hugging Face's hub, as its client `huggingface_hub` writes it."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

__all__ = ["COMMIT", "put_into_cache"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_into_cache(folder: Path, cache: Path, name: str, pattern: str = "*") -> Path:
    """Put files of `folder` into a cache as blobs, with links in a snapshot; return the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for path in (repository / "blobs", repository / "refs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in folder.glob(pattern):
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot
