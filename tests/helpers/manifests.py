"""Functions for tests that change manifests on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlruntime.bundle import digest_file

__all__ = ["edit_manifest", "give_tokenizer", "with_tokenizer"]


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the manifest of a bundle, and remove the digest of its old content."""
    file = folder / "bundle.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest.pop("manifest_sha256", None)
    change(manifest)
    file.write_text(json.dumps(manifest), "utf-8")


def give_tokenizer(folder: Path, kind: str, name: str) -> None:
    """Change a bundle to read text with the tokenizer in its file `name`."""
    digest = digest_file(folder / name)

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"sha256": digest.sha256, "size": digest.size}
        manifest["tokenizer"] = {"kind": kind, "file": name}

    edit_manifest(folder, change)


def with_tokenizer(bundle: Path, folder: Path, file: Path | None = None, **tokenizer: object) -> Path:
    """Copy a bundle to `folder`, where it reads text with this tokenizer, whose file becomes part of it."""
    shutil.copytree(bundle, folder)
    if file is None:
        edit_manifest(folder, lambda manifest: manifest.update(tokenizer=tokenizer))
    else:
        shutil.copyfile(file, folder / file.name)
        give_tokenizer(folder, str(tokenizer["kind"]), file.name)
    return folder
