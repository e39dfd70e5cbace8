"""The pages together: their number, their length, and what README.md says."""

from __future__ import annotations

import io
import re
import subprocess
import zipfile

import pytest

from tests.helpers.paths import ROOT

MOST_PAGES, MOST_WORDS, MOST_WORDS_OF_README, MOST_WORDS_OF_BENCHMARKS = 40, 54_000, 650, 1_500


def words(page: str) -> list[str]:
    return (ROOT / page).read_text("utf-8").split()


def test_pages_stay_few_and_short() -> None:
    command = ["git", "ls-files", "*.md", ":!CHANGELOG.md", ":!tests/golden"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a clone of git")
    pages = listing.stdout.split()
    assert 30 < len(pages) <= MOST_PAGES
    assert sum(len(words(page)) for page in pages) <= MOST_WORDS
    assert len(words("BENCHMARKS.md")) <= MOST_WORDS_OF_BENCHMARKS


def test_readme_is_short() -> None:
    text = re.sub(r"^```.*?^```$|^\|.*?$", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert 200 < len(text.split()) <= MOST_WORDS_OF_README


def test_figures_of_readme_are_those_of_the_benchmarks() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("| segment / memory |")[2].partition("\n\n")[0]
    figures = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    assert len(figures) >= 2
    assert set(figures) <= set((ROOT / "BENCHMARKS.md").read_text("utf-8").splitlines())


def test_readme_states_sizes_that_hold() -> None:
    readme, package, archive = (ROOT / "README.md").read_text("utf-8"), ROOT / "runtime/python/xlruntime", io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in package.rglob("*"):
            if file.suffix in (".py", ".typed"):
                wheel.write(file, file.relative_to(package.parent))
    (wheel_kb,) = re.findall(r"a wheel of (\d+) kB", readme)
    assert 0.9 < len(archive.getvalue()) / 1000 / int(wheel_kb) < 1.1
    (limit,) = re.findall(r"MOST = ([\d_]+)", (ROOT / "runtime/js/scripts/size.mjs").read_text("utf-8"))
    assert f"JavaScript of at most\n{int(limit) // 1000} kB" in readme
