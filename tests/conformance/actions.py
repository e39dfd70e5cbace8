"""Actions of cases, and the files of a kit that take the place of files of a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MANIFEST, DIGEST = "bundle.json", "bundle.json.sha256"

Case = dict[str, Any]  # also an action
Edit = Callable[[dict[str, Any]], object]


def opening(bundle: str, files: Mapping[str, str | None] | None = None) -> Case:
    """Return an action that opens a bundle, with some of its files replaced."""
    return {"do": "open", "bundle": bundle} | ({"files": dict(files)} if files else {})


def refused(action: Case, code: str) -> Case:
    """Return an action that must fail."""
    return {**action, "error": {"code": code}}


def manifest_files(manifest: bytes | Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of `bundle.json` and of its digest."""
    raw = manifest if isinstance(manifest, bytes) else (json.dumps(manifest, ensure_ascii=False) + "\n").encode()
    return {MANIFEST: raw, DIGEST: f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()}


class Files:
    """The folder `files` of a kit."""

    def __init__(self, kit: Path) -> None:
        self.kit, self._folder = kit, kit / "files"
        self._folder.mkdir(exist_ok=True)

    def add(self, name: str, content: bytes) -> str:
        """Write a file, and return its path in the kit."""
        (self._folder / name).write_bytes(content)
        return f"files/{name}"

    def manifest(self, name: str, manifest: bytes | Mapping[str, Any]) -> dict[str, str | None]:
        """Write a manifest and its digest, and return them as `files` of an action."""
        return {file: self.add(f"{name}.{file}", content) for file, content in manifest_files(manifest).items()}

    def edited(self, bundle: str, name: str, change: Edit) -> dict[str, str | None]:
        """Write the manifest of a bundle after a change, and return it as `files` of an action."""
        manifest = json.loads((self.kit / "bundles" / bundle / MANIFEST).read_text("utf-8"))
        change(manifest)
        return self.manifest(name, manifest)
