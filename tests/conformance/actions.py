"""Actions of cases, and the files of a kit that take the place of files of a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xlruntime.known_answers import ANSWERS_FILE

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


def answer_actions(name: str, changes: Callable[[Any], tuple[Any, Any]], files: Files) -> Iterator[Case]:
    """Yield actions that compare known answers: the bundle's own, one that is wrong, and one that breaks a rule.

    Args:
        changes: returns the answers with one that is wrong, and answers that break a rule.
    """
    answers = json.loads((files.kit / "bundles" / name / ANSWERS_FILE).read_text("utf-8"))
    wrong, invalid = changes(answers)
    count = answers["steps"] if "steps" in answers else len(answers["log_probs"])
    yield {"do": "check", "expect": {"passed": True, "tokens": count}}
    yield _with_answers(name, "wrong", wrong, files)
    yield {"do": "check", "expect": {"passed": False}}
    yield _with_answers(name, "invalid", invalid, files)
    yield refused({"do": "check"}, "bundle_format")


def _with_answers(name: str, kind: str, answers: Mapping[str, Any], files: Files) -> Case:
    """Return an action that opens a bundle with other known answers."""
    raw = json.dumps(answers).encode()
    digest = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    changed = files.edited(name, f"{name}_{kind}", lambda manifest: manifest["files"].update({ANSWERS_FILE: digest}))
    return opening(name, {**changed, ANSWERS_FILE: files.add(f"{name}_{kind}.{ANSWERS_FILE}", raw)})
