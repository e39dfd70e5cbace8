"""Bundles that a test has changed on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlruntime.bundle import digest_file

__all__ = ["edit_manifest", "with_tokenizer"]


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's manifest, and remove its digest of itself, which the change would break."""
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest.pop("manifest_sha256", None)
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")


def with_tokenizer(bundle: Path, folder: Path, file: Path | None = None, **tokenizer: object) -> Path:
    """Copy a bundle to `folder`, where it reads text with this tokenizer, whose file becomes part of it."""
    shutil.copytree(bundle, folder)

    def change(manifest: dict[str, Any]) -> None:
        manifest["tokenizer"] = tokenizer
        if file is not None:
            shutil.copyfile(file, folder / file.name)
            digest = digest_file(folder / file.name)
            manifest["files"][file.name] = {"sha256": digest.sha256, "size": digest.size}
            manifest["tokenizer"]["file"] = file.name

    edit_manifest(folder, change)
    return folder
