"""Bundles that are told from each other by a word, for tests of how outputs appear."""

from __future__ import annotations

from pathlib import Path

from xlexport.bundles import publishing
from xlruntime.bundle import MANIFEST

__all__ = ["beside", "is_whole", "publish", "write_bundle"]


def write_bundle(folder: Path, word: str) -> None:
    """Something that is taken for a bundle, told from others by `word`."""
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(word)
    (folder / "score.onnx").write_text(word * 1000)


def is_whole(folder: Path, word: str) -> bool:
    files = sorted(path.name for path in folder.iterdir())
    return files == [MANIFEST, "score.onnx"] and (folder / "score.onnx").read_text() == word * 1000


def beside(output: Path) -> list[str]:
    """What stands in the folder of `output` other than it."""
    return sorted(path.name for path in output.parent.iterdir() if path != output)


def publish(output: Path, word: str) -> None:
    with publishing(output, force=True) as folder:
        write_bundle(folder, word)
