"""Source files stay short enough for one sitting."""

from __future__ import annotations

from tests.helpers.paths import ROOT

MOST_LINES = 600
ENDINGS = (".py", ".c", ".cc", ".h", ".hpp", ".inc")
FOLDERS = (
    "xlexport",
    "runtime/python/xlruntime",
    "runtime/c",
    "training/xltraining",
    "tests",
    "benchmarks",
    "experiments",
)


def test_modules_are_short() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in ENDINGS]
    assert len(files) > 300
    assert [file for file in files if len(file.read_text("utf-8").splitlines()) > MOST_LINES] == []
