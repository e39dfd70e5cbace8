"""The documentation site: a page for each kind of user, a reference for each module, nothing from the network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pages import PAGES
from tests.helpers.paths import ROOT
from xlexport import __version__

INDEX = (ROOT / "docs/index.md").read_text("utf-8")
PERSONS = [page for page in PAGES if page.startswith("docs/start_")]
SPHINX = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo"))


def test_index_lists_a_page_for_each_person() -> None:
    assert len(PERSONS) == 6
    for page in PERSONS:
        assert f"]({Path(page).name})" in INDEX


def test_reference_has_every_module_of_xltraining() -> None:
    listed = re.findall(
        r"automodule:: xltraining\.([\w.]+)", (ROOT / "docs/reference/xltraining.md").read_text("utf-8")
    )
    package = ROOT / "training/xltraining"
    files = {path.relative_to(package).with_suffix("") for path in package.rglob("*.py")}
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files} - {"__init__"}
    assert listed == sorted(modules)


def test_citation_has_the_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    assert f"version: {__version__}" in lines
    assert "  - name: The xlexport authors" in lines


@pytest.mark.full
@pytest.mark.skipif(not SPHINX, reason="the extra docs is not installed")
def test_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--quiet",
        "-c",
        "docs",
        "-d",
        str(tmp_path / "trees"),
    ]
    subprocess.run([*command, ".", str(tmp_path / "site")], cwd=ROOT, check=True)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {f"{Path(page).with_suffix('.html')}" for page in PAGES} <= {
        page.relative_to(tmp_path / "site").as_posix() for page in pages
    }
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]*)"', page.read_text("utf-8"))
        assert loaded == [], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?https?:", sheet.read_text("utf-8")), sheet
    reference = (tmp_path / "site/docs/reference/xlruntime.html").read_text("utf-8")
    assert 'id="xlruntime.Model.score"' in reference
