"""The documentation site, the tables of docs/start_without_python.md, and the Python of pages."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.conftest import ITEMS
from tests.helpers.pages import PAGES, blocks_of, python_of
from tests.helpers.paths import EMPTY, ROOT, golden_bundle, is_moved
from tests.helpers.tiers import thinned
from xlexport.commands import execute

SPHINX = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo"))


def test_reference_has_every_module_of_xltraining() -> None:
    listed = re.findall(
        r"automodule:: xltraining\.([\w.]+)", (ROOT / "docs/reference/xltraining.md").read_text("utf-8")
    )
    package = ROOT / "training/xltraining"
    files = {path.relative_to(package).with_suffix("") for path in package.rglob("*.py") if not is_moved(path)}
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files} - {"__init__"}
    assert listed == sorted(modules)


def check_for_screen_readers(page: Path) -> None:
    """Require what a screen reader needs: a language, headings in order, texts for pictures, names of columns."""
    html = page.read_text("utf-8")
    assert 'lang="en"' in html[:200], page
    if 'http-equiv="refresh"' in html:
        return
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", html)]
    assert levels.count(1) == 1 and levels[0] == 1, page
    assert all(after <= before + 1 for before, after in pairwise(levels)), page
    assert not re.search(r'<img\b(?![^>]*\balt="[^"]+")', html), page
    assert not re.search(r"<th[^>]*>(<p></p>)?</th>", html), page
    assert html.count('role="heading"') == html.count('role="heading" aria-level="2"'), page


@pytest.mark.full
@pytest.mark.skipif(not SPHINX, reason="the extra docs is not installed")
def test_pages_and_docstrings_have_no_warnings(tmp_path: Path) -> None:
    """Read them as `scripts/docs` does, and write nothing."""
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-c", "docs", "-d", str(tmp_path / "doctrees")]
    subprocess.run([sys.executable, "-m", "sphinx", *options, "-b", "dummy", ".", str(tmp_path)], cwd=ROOT, check=True)


@pytest.mark.release
@pytest.mark.skipif(not SPHINX, reason="the extra docs is not installed")
def test_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run([ROOT / "scripts/docs", tmp_path], env={**os.environ, "PATH": path}, check=True)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {f"{Path(page).with_suffix('.html')}" for page in PAGES} <= {
        page.relative_to(tmp_path / "site").as_posix() for page in pages
    }
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]*)"', page.read_text("utf-8"))
        assert loaded == [], page
        if "_downloads" not in page.parts:  # a sample
            check_for_screen_readers(page)
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?https?:", sheet.read_text("utf-8")), sheet
    reference = (tmp_path / "site/docs/reference/xlruntime.html").read_text("utf-8")
    assert 'id="xlruntime.Model.score"' in reference


# The tables of docs/start_without_python.md.


FOLDERS = {  # in the order of the columns
    "Python": (ROOT / "runtime/python/xlruntime", "py"),
    "C": (ROOT / "runtime/c/src", "h"),
    "JavaScript": (ROOT / "runtime/js/src", "ts"),
}
PAGE = (ROOT / "docs/start_without_python.md").read_text("utf-8").partition("## Differences")[0]
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


# Python blocks that tests/runtime/test_api_page.py and tests/export do not run.


HERE = [
    "docs/hardware.md",
    "docs/own_models.md",
    "docs/protocols.md",
    "docs/start_reading_experiments.md",
]
ELSEWHERE = {
    "README.md": "tests/runtime/test_api_page.py",
    "docs/api.md": "tests/runtime/test_api_page.py",
    "docs/checkpoints.md": "tests/families/transformer_xl/test_huggingface.py",
    "docs/parity_tests.md": "tests/docs/test_parity_page.py",
    "docs/scoring.md": "tests/scoring/test_output_tables.py",
    "docs/serving.md": "tests/serve/test_http.py",
    "docs/torch_formats.md": "tests/export/test_torch_formats.py",
}


def test_each_page_with_python_is_run() -> None:
    with_python = {page for page in PAGES if any(block.language == "python" for block in blocks_of(page))}
    assert with_python == {*HERE, *ELSEWHERE}


@pytest.mark.parametrize("page", thinned(HERE, [page for page in HERE if page != "docs/own_models.md"]))
def test_python_of_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bundle").symlink_to(golden_bundle(EMPTY))
    if page == "docs/start_reading_experiments.md":
        pytest.importorskip("pandas", reason="needs pandas")
        Path("items.csv").write_text(ITEMS, "utf-8")
        options = ["--field", "sentence", "--context-field", "preamble", "--per", "word", "-o", "words.csv"]
        assert execute(["score", "bundle", "items.csv", *options]) == 0
    Path("test.txt").write_text("It was the best of times, it was the worst of times.\n" * 40, "utf-8")
    exec(compile(python_of(page), page, "exec"), {})
