"""The files and names in the tables of docs/runtimes.md exist in each runtime."""

from __future__ import annotations

import re

import pytest

from tests.helpers.paths import ROOT

FOLDERS = {  # in the order of the columns
    "Python": (ROOT / "runtime/python/xlruntime", "py"),
    "C": (ROOT / "runtime/c/src", "h"),
    "JavaScript": (ROOT / "runtime/js/src", "ts"),
}
PAGE = (ROOT / "docs/runtimes.md").read_text("utf-8").partition("## Differences")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("language", FOLDERS)
def test_names_exist(language: str) -> None:
    (folder, ending), column = FOLDERS[language], [*FOLDERS].index(language) - len(FOLDERS)
    missing, names = [], 0
    for row in ROWS:
        file = re.fullmatch(r"`(\w+)(/?)`", row[0])  # rows of the second table are about any file
        files = "**/*" if file is None else f"{file[1]}/*" if file[2] else file[1]
        text = "\n".join(path.read_text("utf-8") for path in folder.glob(f"{files}.{ending}"))
        for name in re.findall(r"`(?:\w+(?:\.|::))?(\w+)`", row[column]):
            names += 1
            missing += [name] if re.search(rf"\b{name}\b", text) is None else []
    assert names > 20
    assert missing == []
