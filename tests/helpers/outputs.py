"""Bundles that differ by a word, for tests of how outputs appear."""

from __future__ import annotations

from pathlib import Path

from xlexport.bundles import publishing
from xlruntime.bundle import MANIFEST


def write_bundle(folder: Path, word: str) -> None:
    """Write a folder that passes for a bundle, and whose files hold `word`."""
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(word)
    (folder / "score.onnx").write_text(word * 1000)


def is_whole(folder: Path, word: str) -> bool:
    files = sorted(path.name for path in folder.iterdir())
    return files == [MANIFEST, "score.onnx"] and (folder / "score.onnx").read_text() == word * 1000


def neighbours(output: Path) -> list[str]:
    """Return the other names in the folder of `output`."""
    return sorted(path.name for path in output.parent.iterdir() if path != output)


def publish(output: Path, word: str) -> None:
    with publishing(output, force=True) as folder:
        write_bundle(folder, word)
