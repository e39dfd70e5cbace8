"""The functions of `xlexport` do what commands of their names do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import xlexport
from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.errors import XlexportError
from xlexport.sample import sample_checkpoint
from xlruntime import OptionError
from xlruntime.errors import XlruntimeError

BUNDLE = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
TEXT = "Call me Ishmael. Some years ago, never mind how long precisely.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def test_score_returns_or_writes_the_records_of_the_command(text: Path, invoke: Invoke, tmp_path: Path) -> None:
    lines = invoke("score", BUNDLE, text, "--per", "word", "--json").succeeded().out.splitlines()
    assert xlexport.score(BUNDLE, text, per="word") == [json.loads(line) for line in lines]
    output = tmp_path / "words.jsonl"
    totals = xlexport.score(BUNDLE, [text], output, per="word", threads=1)
    assert output.read_text("utf-8").splitlines() == lines
    assert totals is not None
    assert totals.bytes == len(TEXT)
    assert xlexport.score(BUNDLE, text, output, per="word", resume=True) is None


def test_score_refuses_what_the_command_refuses(text: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.txt"):
        xlexport.score(BUNDLE, tmp_path / "missing.txt")
    told: list[str] = []
    assert xlexport.score(BUNDLE, [text, tmp_path / "missing.txt"], strict=False, tell=told.append)
    assert any("missing.txt" in line for line in told)
    with pytest.raises(OptionError, match="needs a record for each part"):
        xlexport.score(BUNDLE, text, top=3)
    with pytest.raises(OptionError, match="also an input"):
        xlexport.score(BUNDLE, text, text, kind="jsonl", force=True)


def test_configure_writes_the_bundle_of_the_command(invoke: Invoke, tmp_path: Path) -> None:
    invoke("configure", BUNDLE, "-o", tmp_path / "command", "--mem-len", "5").succeeded()
    manifest = xlexport.configure(BUNDLE, tmp_path / "verb", mem_len=5)
    assert manifest.settings.values["mem_len"] == 5
    first, second = ((tmp_path / name / "bundle.json").read_bytes() for name in ("command", "verb"))
    assert first == second
    with pytest.raises(OptionError, match="nothing to change"):
        xlexport.configure(BUNDLE, tmp_path / "same")


def test_errors_of_names_and_old_arguments(tmp_path: Path) -> None:
    with pytest.raises(XlexportError, match="no such file or folder"):
        xlexport.read(tmp_path / "missing.pt")
    with pytest.raises(XlruntimeError, match="for a model that is read by its name"):
        xlexport.convert(object(), tmp_path / "bundle", config={})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"verify_segments: no longer an option of a conversion. Write segments."):
        xlexport.convert(sample_checkpoint(), tmp_path / "bundle", verify_segments=3)


def test_import_is_light() -> None:
    check = "import sys, xlexport; xlexport.score; sys.exit(sum(map(sys.modules.__contains__, ('torch', 'onnx'))))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
