"""Functions for tests that change manifests on purpose."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlruntime.bundle import DIGEST, MANIFEST
from xlruntime.bundle_files import digest_file
from xlruntime.known_answers import ANSWERS_FILE
from xlruntime.tokenizers.vocabulary import Vocabulary


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the manifest of a bundle, and write its digest."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    change(manifest)
    seal(folder, json.dumps(manifest).encode())


def write_answers(folder: Path, answers: Any, change: Callable[[dict[str, Any]], object]) -> None:
    """Write known answers, changed, into a bundle, and their digest into its manifest."""
    fields = json.loads(json.dumps(dataclasses.asdict(answers)))
    change(fields)
    (folder / ANSWERS_FILE).write_text(json.dumps(fields), "utf-8")
    digest = dataclasses.asdict(digest_file(folder / ANSWERS_FILE))
    edit_manifest(folder, lambda manifest: manifest["files"].update({ANSWERS_FILE: digest}))


def seal(folder: Path, manifest: bytes) -> None:
    """Write the manifest of a bundle, and its digest."""
    (folder / MANIFEST).write_bytes(manifest)
    (folder / DIGEST).write_text(f"{digest_file(folder / MANIFEST).sha256}  {MANIFEST}\n", "utf-8")


def give_tokenizer(folder: Path, kind: str, name: str, bpe: str | None = None, **others: object) -> None:
    """Change a bundle to read text with the tokenizer in its file `name`, or in C with that in its file `bpe`."""
    digests = {each: digest_file(folder / each) for each in (name, bpe) if each is not None}

    def change(manifest: dict[str, Any]) -> None:
        for each, digest in digests.items():
            manifest["files"][each] = {"sha256": digest.sha256, "size": digest.size}
        manifest["tokenizer"] = {"kind": kind, "file": name, "first_id": 0, "bpe": bpe, **others}

    edit_manifest(folder, change)


def with_tokenizer(bundle: Path, folder: Path, file: Path | None = None, **tokenizer: object) -> Path:
    """Copy a bundle to `folder`, where it reads text with this tokenizer, whose file becomes part of it."""
    shutil.copytree(bundle, folder)
    if file is None:
        edit_manifest(folder, lambda manifest: manifest["tokenizer"].update(tokenizer))
    else:
        shutil.copyfile(file, folder / file.name)
        give_tokenizer(folder, str(tokenizer.pop("kind")), file.name, **tokenizer)  # type: ignore[arg-type]
    return folder


def with_vocabulary(bundle: Path, folder: Path, vocabulary: Vocabulary) -> Path:
    """Copy a bundle to `folder`, where it reads text with this vocabulary."""
    shutil.copytree(bundle, folder)
    (folder / "vocabulary.json").write_text(vocabulary.to_json(), "utf-8")
    give_tokenizer(folder, "vocabulary", "vocabulary.json")
    return folder


def without_fused_graphs(bundle: Path, folder: Path) -> Path:
    """Copy a bundle to `folder`, where no step prefers a graph that needs kernels."""

    def change(manifest: dict[str, Any]) -> None:
        for choices in manifest["steps"].values():
            choices[:] = [choice for choice in choices if not choice["kernels"]]

    shutil.copytree(bundle, folder)
    edit_manifest(folder, change)
    return folder
