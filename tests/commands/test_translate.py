"""The `translate` command, and the refusals of all commands that read documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle

BUNDLE = GOLDEN / "encoder_decoder" / "translator"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"abc\r\n\nz\nno line end")
    return file


def test_one_line_in_and_one_line_out(invoke: Invoke, lines: Path) -> None:
    plain = invoke("translate", BUNDLE, lines, "--threads", 1).succeeded()
    assert len(plain.out.split("\n")) == 5 and plain.err == ""
    objects = invoke("translate", BUNDLE, lines, "--json", "--beams", 3, "--length-penalty", 0.6).succeeded()
    found = [json.loads(line) for line in objects.out.splitlines()]
    assert [sorted(one) for one in found] == [["ended", "ids", "log_prob", "score", "text"]] * 4
    short = invoke("translate", BUNDLE, lines, "--json", "--max-tokens", 2, "--batch-size", 2).succeeded()
    assert all(len(json.loads(line)["ids"]) <= 2 for line in short.out.splitlines())


def test_references_give_bleu_and_equal_lines(invoke: Invoke, lines: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu", reason="the extra bleu is not installed")
    first = invoke("translate", BUNDLE, lines).succeeded().out.split("\n")[:-1]
    references = tmp_path / "references.txt"
    references.write_text("\n".join(["other words", *first[1:]]) + "\n", "utf-8")
    shown = invoke("translate", BUNDLE, lines, "--references", references).succeeded()
    assert "3 of 4 are equal" in shown.err and "|tok:13a|" in shown.err
    references.write_text("one\n", "utf-8")
    assert "1 references for 4 lines of" in invoke("translate", BUNDLE, lines, "--references", references).err


def test_refusals(invoke: Invoke, lines: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((golden_bundle(EMPTY), lines), "a language model, which has no encoder"),
        ((BUNDLE, lines, "--beams", 0), "beams is 0, at least 1 is needed"),
        ((BUNDLE, tmp_path / "absent.txt"), "absent.txt"),
        ((tmp_path / "absent.bundle", lines), "absent.bundle: no such folder"),
    ):
        shown = invoke("translate", *arguments)
        assert shown.code == 1 and message in shown.err and shown.err.count("\n") == 1
    lines.write_text("short\nlonger than the model reads\n")
    shown = invoke("translate", BUNDLE, lines)
    assert shown.code == 1 and "source 2: 27 tokens, but the model reads at most 12" in shown.err


@pytest.mark.parametrize(
    "command",
    [
        ("score", BUNDLE, "lines.txt"),
        ("generate", BUNDLE, "Once"),
        ("bench", BUNDLE),
        ("context", BUNDLE, "lines.txt"),
        ("evaluate", BUNDLE, "lines.txt"),
        ("report", BUNDLE, "lines.txt", "-o", "page.html"),
    ],
    ids=lambda command: str(command[0]),
)
def test_commands_for_documents_refuse_it(
    command: tuple[object, ...], invoke: Invoke, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lines.parent)
    shown = invoke(*command)
    assert shown.code == 1
    assert "an encoder-decoder, which turns one text into another" in shown.err and "xlexport translate" in shown.err
    assert [path.name for path in lines.parent.iterdir()] == ["lines.txt"]


def test_inspect_shows_both_sides(invoke: Invoke) -> None:
    shown = invoke("inspect", BUNDLE, "--device", "cpu").succeeded()
    assert "1 layers of encoder, 2 of decoder" in shown.out and "encode" in shown.out
