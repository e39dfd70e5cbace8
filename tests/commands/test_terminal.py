"""No control character of a file reaches a terminal; files and pipes get unchanged texts and records."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import click
import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.commands import execute
from xlexport.terminal import (
    Interrupted,
    drawing,
    escaped_json,
    print_json,
    print_line,
    print_table,
    print_text,
    tell_problem,
)

HOSTILE = "\x1b]0;PWN\x07\x1b[2J\x9b31m\x85\u202e\u2066\x7f\ud800"
BYTES = GOLDEN / "post_lnorm_same_length_empty" / "bundle"


class Stream(io.TextIOWrapper):
    """A terminal, or a file."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), "utf-8", newline="")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def shown(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode("utf-8")


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setenv("TERM", "dumb")  # no bar
    return Stream(request.param)


def run_into(out: Stream, *arguments: str | Path) -> str:
    """Run a command that succeeds, and return its output."""
    with contextlib.redirect_stdout(out):
        assert execute([*map(str, arguments), "--threads", "1"]) == 0
    return out.shown()


def is_clean(text: str) -> bool:
    return all(line.replace("\t", "").isprintable() for line in text.split("\n"))


def test_tables_and_lines_show_no_control_character(out: Stream) -> None:
    with contextlib.redirect_stdout(out):
        print_table([("a", HOSTILE), (HOSTILE, "b\nc")])
        print_line(f"x{HOSTILE}")
    lines = out.shown().split("\n")
    assert len(lines) == 4 and all(line.isprintable() for line in lines)
    assert r"\x1b]0;PWN\x07\x1b[2J\x9b31m\x85\u202e\u2066\x7f\ud800" in lines[0]


def test_terminal_wraps_the_second_column(out: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "x" * 50  # to copy, so never torn
    with contextlib.redirect_stdout(out):
        print_table([("a name", "some words that are too many for one line"), ("b", path)])
    lines = out.shown().splitlines()
    words = ["a name  some words that are too many for", "        one line"]
    assert lines == [*(words if out.is_terminal else [" ".join(map(str.strip, words))]), f"b       {path}"]


@pytest.mark.parametrize("plain", ["NO_COLOR", None])
def test_verdicts_are_coloured_on_a_terminal(plain: str | None, out: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain is not None:
        monkeypatch.setenv(plain, "")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        print_table([("ok", "yes"), ("equal", "NO")])
        tell_problem("Error: no.")
    shown = out.shown()
    assert click.unstyle(shown) == "ok     yes\nequal  NO\nError: no.\n"
    assert re.findall(r"\x1b\[(3\d)m", shown) == (["32", "32", "31", "31"] if out.is_terminal and not plain else [])


def test_pictures_say_what_ctrl_c_leaves_and_what_they_replace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "a.png"
    message = r"^interrupted before .*a.png was drawn. The results are printed.$"
    with pytest.raises(Interrupted, match=message), drawing(picture, "The results are printed."):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
    for word in ("wrote", "replaced"):
        with drawing(picture, ""):
            picture.touch()
        assert capsys.readouterr().err == f"{word} {picture}\n"


def test_json_is_the_same_value_escaped(out: Stream) -> None:
    value = {HOSTILE: ["é 日本 \U0001f642", "\U000e0001"]}
    with contextlib.redirect_stdout(out):
        print_json(value)
    text = out.shown()
    assert json.loads(text) == value
    assert "é 日本 \U0001f642" in text
    assert is_clean(text)
    assert escaped_json("\U000e0001") == r"\udb40\udc01"


def test_text_is_exact_in_a_file(out: Stream) -> None:
    text = "one\n\ttwo \x1b[31mred\x1b[0m\x9b\r\n"
    with contextlib.redirect_stdout(out):
        print_text(text)
    assert out.shown() == ("one\n\ttwo \\x1b[31mred\\x1b[0m\\x9b\\r\n\n" if out.is_terminal else text + "\n")


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_evaluate_of_a_file_with_a_hostile_name(
    options: list[str], out: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{HOSTILE[:-1]}\udcff"
    path.write_text("some text of a few words " * 4)
    monkeypatch.setenv("COLUMNS", "300")
    text = run_into(out, "evaluate", BYTES, path, "--protocol", "document", *options)
    assert "PWN" in text
    assert is_clean(text)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("per", ["document", "word", "token"])
def test_records_of_a_hostile_text(per: str, kind: str, out: Stream, tmp_path: Path) -> None:
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps({"text": "x \x9b31mred\x1b[2J\x7f y", "id": HOSTILE[:-1]}) + "\n")
    arguments = ["--field", "text", "--id-field", "id", "--per", per, "--format", kind]
    text = run_into(out, "score", BYTES, path, *arguments)
    assert is_clean(text) == out.is_terminal
    if kind == "jsonl":
        assert {json.loads(line)["document"] for line in text.split("\n")[:-1]} == {HOSTILE[:-1]}


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_words_are_a_table_on_a_terminal_and_json_elsewhere(options: list[str], out: Stream, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one two\x1b[2J three")
    lines = run_into(out, "score", BYTES, path, "--per", "word", *options).splitlines()
    if options or not out.is_terminal:
        assert [json.loads(line)["word"] for line in lines] == ["one", "two\x1b[2J", "three"]
        return
    name, head, *rows = lines
    assert (name, head, rows[0]) == (f"{path}:", "      bits  word", "         –  one")
    assert re.findall(r"^ +\d+\.\d\d  (.+)$", "\n".join(rows), re.M) == [r"two\x1b[2J", "three"]


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_generate_from_a_hostile_prompt(options: list[str], out: Stream) -> None:
    prompt = "one\n\ttwo \x1b[31mred\x9b"
    text = run_into(out, "generate", BYTES, prompt, "-n", "9", "--seed", "1", *options)
    if not options and not out.is_terminal:
        assert text.startswith(prompt)
    if out.is_terminal:
        assert is_clean(text)
        assert text.startswith("one\n\ttwo \\x1b" if not options else '{"prompt": "one\\n\\ttwo \\u001b')


def test_wrong_usage_shows_no_control_character(invoke: Invoke) -> None:
    assert r"Got unexpected extra argument (a\x07b)" in invoke("generate", "bundle", "prompt", "a\x07b").err
