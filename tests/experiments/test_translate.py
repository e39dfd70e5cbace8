"""`python -m experiments.translate`: lines, BLEU and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.translate import main
from tests.helpers.invoking import Finished
from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle

BUNDLE = GOLDEN / "encoder_decoder" / "translator"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"abc\r\n\nz\nno line end")
    return file


def translate(*arguments: object) -> Finished:
    done = CliRunner().invoke(main, [*map(str, arguments), "--threads", "1"])
    return Finished(done.exit_code, done.stdout, done.stderr)


def test_one_line_in_and_one_line_out(lines: Path) -> None:
    plain = translate(BUNDLE, lines).succeeded()
    assert len(plain.out.split("\n")) == 5 and plain.err == ""
    objects = translate(BUNDLE, lines, "--json", "--beams", 3, "--length-penalty", 0.6).succeeded()
    found = [json.loads(line) for line in objects.out.splitlines()]
    assert [sorted(one) for one in found] == [["ended", "ids", "log_prob", "score", "text"]] * 4
    short = translate(BUNDLE, lines, "--json", "--max-tokens", 2, "--batch-size", 2).succeeded()
    assert all(len(json.loads(line)["ids"]) <= 2 for line in short.out.splitlines())


def test_references_give_bleu_and_equal_lines(lines: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu", reason="the extra bleu is not installed")
    first = translate(BUNDLE, lines).succeeded().out.split("\n")[:-1]
    references = tmp_path / "references.txt"
    references.write_text("\n".join(["other words", *first[1:]]) + "\n", "utf-8")
    shown = translate(BUNDLE, lines, "--references", references).succeeded()
    assert "3 of 4 are equal" in shown.err and "|tok:13a|" in shown.err
    references.write_text("one\n", "utf-8")
    assert "1 references for 4 lines of" in translate(BUNDLE, lines, "--references", references).err


def test_refusals(lines: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((golden_bundle(EMPTY), lines), "a language model, which reads tokens"),
        ((BUNDLE, lines, "--beams", 0), "beams is 0, at least 1 is needed"),
        ((tmp_path / "absent.bundle", lines), "absent.bundle: no such folder"),
    ):
        shown = translate(*arguments)
        assert shown.code == 1 and message in shown.err and shown.err.count("\n") == 1
    assert "absent.txt' does not exist" in translate(BUNDLE, tmp_path / "absent.txt").err
    lines.write_text("short\nlonger than the model reads\n")
    shown = translate(BUNDLE, lines)
    assert shown.code == 1 and "source 2: 27 tokens, but the model reads at most 12" in shown.err
