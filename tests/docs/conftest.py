"""Fixtures for the tests of pages: the bundle of the sample checkpoint, and folders in which commands run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from tests.helpers.pages import put_program, run_in_shell
from tests.helpers.paths import ROOT, SHARED_DATA
from tests.helpers.shared import shared_folder

SAMPLE = ROOT / "samples/transformer_xl_bytes/checkpoint.pt"
RIVER = "The old man walked slowly down to the river.\n"
WATER = "The old man walked. Slowly, the water rose.\n"
ALICE = SHARED_DATA / "alice29.txt"
CONVERT = "xlexport convert checkpoint.pt -o bundle"
CONVERTED_IN_README = "xlexport convert samples/transformer_xl_bytes/checkpoint.pt -o bundle"  # the same checkpoint
ITEMS = """item,condition,preamble,sentence
1,related,The kitchen was full of steam.,The cook stirred the pot.
1,unrelated,The road was full of dust.,The cook stirred the pot.
2,related,It was a dark night.,The moon was high.
2,unrelated,It was a loud party.,The moon was high.
"""


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder with the sample's bundle, and what `convert` printed; tests must not change it."""

    def make(folder: Path) -> str:
        (folder / "checkpoint.pt").symlink_to(SAMPLE)
        return run_in_shell(CONVERT, folder, put_program(folder))

    return shared_folder(tmp_path_factory, "sample_of_pages", make)


@pytest.fixture
def page_folder(converted: tuple[Path, str], tmp_path: Path) -> Path:
    """Return a folder with the files that the pages name: the sample, its bundle, and small texts."""
    folder = tmp_path / "page"
    folder.mkdir()
    made, _ = converted
    (folder / "checkpoint.pt").symlink_to(SAMPLE)
    (folder / "samples").symlink_to(ROOT / "samples")
    for name in ("bundle", "transformer_xl.bundle"):
        (folder / name).symlink_to(made / "bundle")
    if ALICE.is_file():
        (folder / ALICE.name).symlink_to(ALICE)
    texts = {"book.txt": topics["assignment"], "valid.txt": RIVER, "train.txt": (RIVER + WATER) * 8}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "books").mkdir()
    (folder / "books/one.txt").write_text(RIVER, "utf-8")
    (folder / "books/two.txt").write_text(WATER, "utf-8")
    (folder / "items.csv").write_text(ITEMS, "utf-8")
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in (RIVER, WATER))
    return folder


@pytest.fixture
def run_command(converted: tuple[Path, str], page_folder: Path) -> Callable[[str], str]:
    """Run a command of a page in the page's folder. The conversion that made the bundle is not run again."""
    made, printed = converted
    return lambda line: printed if line in (CONVERT, CONVERTED_IN_README) else run_in_shell(line, page_folder, made)
