"""What a checkpoint is once it has been read, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlruntime.bundle import digest_file
from xlruntime.spec import FileDigest

__all__ = ["SourceCheckpoint", "digest_files"]


@dataclass(frozen=True)
class SourceCheckpoint:
    """A trained model and where it came from.

    Attributes:
        architecture: `transformer_xl`.
        format: name of the format that read it.
        config: hyper-parameters as plain values, under the field's names.
        tokenizer: kind of tokenizer, `bytes`.
        files: the files that were read, with SHA-256 and size when they were, for the bundle's provenance.
        build_model: makes the eager model, float32, in evaluation mode.
    """

    architecture: str
    format: str
    config: Mapping[str, Any]
    tokenizer: str
    files: Mapping[Path, FileDigest]
    build_model: Callable[[], Any] = field(repr=False)


def digest_files(*paths: Path) -> dict[Path, FileDigest]:
    """SHA-256 and size of each file."""
    return {path: digest_file(path) for path in paths}
