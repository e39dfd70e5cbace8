"""Make a bundle's manifest, and write it as `bundle.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xlexport.bundles import DESCRIPTIONS, WEIGHTS_FILE
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.meanings import meanings_of
from xlruntime.bundle import DIGEST, FIRST_MEMORY_FILE, MANIFEST, Bundle, FileDigest, Graph, Requirements
from xlruntime.bundle_files import digest_file

__all__ = ["digests", "fingerprint", "new_manifest", "requirements", "write_manifest"]

ONNXRUNTIME = "1.24.1"  # the oldest that runs all graphs


def new_manifest(folder: Path, source: SourceCheckpoint, graphs: Mapping[str, Graph], **fields: Any) -> Bundle:
    """Return the manifest of a float32 bundle, whose files are in `folder`.

    Args:
        fields: further ones of `Bundle`, such as its tokenizer and its memory.
    """
    files = digests(folder)
    return Bundle(
        architecture=source.architecture,
        config=dict(source.config),
        vocab_size=source.config["n_token"],
        precision="float32",
        graphs=graphs,
        meaning=meanings_of(graphs.values(), fields["memory"]),
        files=files,
        fingerprint=fingerprint(files, graphs.values()),
        requires=requirements(folder, graphs.values()),
        **fields,
    )


def digests(folder: Path) -> dict[str, FileDigest]:
    """Return SHA-256 and size of every file of `folder` that a runtime opens."""
    others = (MANIFEST, DIGEST, *DESCRIPTIONS)
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in others)
    return {path.name: digest_file(path) for path in files}


def fingerprint(files: Mapping[str, FileDigest], graphs: Iterable[Graph]) -> str:
    """Return the identity of a bundle's numbers: a digest of its graphs, weights and first values."""
    used = {graph.file for graph in graphs} | {WEIGHTS_FILE, FIRST_MEMORY_FILE}
    lines = (f"{files[name].sha256}  {name}\n" for name in sorted(used & files.keys(), key=str.encode))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def requirements(folder: Path, graphs: Iterable[Graph]) -> Requirements:
    """Return what a runtime needs for these graphs in `folder`."""
    import onnx_ir as ir

    versions: dict[str, int] = {}
    for file in sorted({graph.file for graph in graphs if graph.format == "onnx"}):
        for domain, version in ir.load(folder / file).opset_imports.items():
            versions[domain] = max(version, versions.get(domain, 0))
    return Requirements(ONNXRUNTIME, versions.pop(""), versions) if versions else Requirements()


def write_manifest(folder: Path, bundle: Bundle) -> None:
    """Write `bundle.json`, and its digest."""
    raw = bundle.to_json().encode()
    (folder / MANIFEST).write_bytes(raw)
    (folder / DIGEST).write_bytes(f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode())
