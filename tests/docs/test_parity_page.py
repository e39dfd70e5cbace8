"""docs/parity_tests.md: its suite runs as a user copies it, and its tables have all fields of a report."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.invoking import write_checkpoint
from tests.helpers.pages import blocks_of, put_program, run_in_shell
from tests.helpers.paths import ROOT
from xlexport import ParityReport
from xlexport.verification.differences import LSHDifference, RoundingErrors, SegmentDifference
from xlexport.verification.tolerances import Tolerance

PAGE = "docs/parity_tests.md"


@pytest.mark.release
def test_suite_runs_in_an_empty_folder(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint.pt")
    for block in blocks_of(PAGE):
        if block.language == "python":
            name, _, code = block.text.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(code, "utf-8")
    # float16 takes as long again, because `quantize` measures its cost on 16,384 tokens.
    line = f"{sys.executable} -m pytest -q -p no:cacheprovider --rootdir . -k float32"
    assert run_in_shell(line, tmp_path, put_program(tmp_path)).splitlines()[-1].startswith("5 passed")


def test_tables_have_all_fields() -> None:
    tables = (ROOT / PAGE).read_text("utf-8").partition("## All fields of the report")[2].split("\n\n")
    report, segment = (table for table in tables if table.startswith("| field"))
    for table, kind in ((report, ParityReport), (segment, SegmentDifference)):
        first = [line.split(" | ")[0] for line in table.splitlines()[2:]]
        listed = re.findall(r"`(\w+)`", "\n".join(first))
        assert sorted(listed) == sorted(field.name for field in dataclasses.fields(kind))
    inner = [field.name for kind in (Tolerance, RoundingErrors) for field in dataclasses.fields(kind)]
    assert all(f"`{name}`" in report for name in inner)
    assert all(f"`{field.name}`" in segment for field in dataclasses.fields(LSHDifference))
