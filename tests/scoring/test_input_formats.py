"""`xlexport score` on documents in JSON lines and on files of token ids."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest

from tests.scoring.conftest import Score
from tests.scoring.test_inputs import names
from xlexport.scoring.documents import documents
from xlexport.scoring.inputs import Input, Reading, TextSource


def test_json_lines(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    lines = [{"text": "first text", "id": "one"}, {"text": "second text\n"}, {"text": "third – text", "id": 3}]
    path.write_text("\n\n".join(map(json.dumps, lines)), "utf-8-sig")
    expected = [f"{path}:1", f"{path}:3", f"{path}:5"]
    shown = score(path, "--field", "text", "--json").succeeded()
    assert [record["document"] for record in shown.records] == expected
    assert [record["chars"] for record in shown.records] == [10, 12, 12]
    assert names(score, path, "--field", "text", "--id-field", "id") == ["one", expected[1], "3"]
    other = json.dumps({"text": "its id is an object", "id": {"ü": True}}, ensure_ascii=False).encode()
    assert names(score, "-", "--field", "text", "--id-field", "id", stdin=other) == ['{"ü": true}']
    assert names(score, "-", "--field", "text", stdin=path.read_bytes())[1] == "standard input:3"
    packed = tmp_path / "docs.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "other.txt").write_text("not taken")
    assert names(score, tmp_path, "--field", "text") == [*expected, *(f"{packed}:{n}" for n in (1, 3, 5))]


@pytest.mark.full
def test_json_lines_are_not_held(tmp_path: Path) -> None:
    """Keep only a document's own text, until its lines or words are done."""
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "some text"}\n' * 100_000)
    held = 0
    tracemalloc.start()
    for number, document in enumerate(documents([Input("it", path)], Reading(field="text"), io.BytesIO(), keep=True)):
        assert isinstance(document.source, TextSource)
        assert document.source.read() == document.source.kept == b"some text"
        if number % 10_000 == 9_999:
            held = max(held, tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held < path.stat().st_size


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "cut', "not JSON (unterminated string at character 10: '\"cut')."),
        ("[1, 2]", "a list, expected a JSON object with field 'text'."),
        ('{"body": "it", "n": 1}', "expected text in field 'text', found only 'body', 'n'. Check --field."),
        (
            json.dumps(dict.fromkeys("x" * n for n in range(50, 60))),
            f"only {', '.join([repr('x' * 40)] * 5)} and 5 more.",
        ),
        ('{"text": 5}', "expected text in field 'text', found a number there. Check --field."),
        ('{"text": "x"}', "1 of at least 2 tokens, so nothing to score."),
        ('{"text": "\\ud800 half"}', "character 0 is half of a surrogate pair"),
        ("[" * 100_000, "not JSON (nested too deeply)."),
        ("It was the best of times", "not JSON (expecting value at character 1: 'It was the best of t')."),
        ('{"text":', "not JSON (expecting value at its end)."),
        ('{"text": null}', "found null there."),
        ("null", "null, expected a JSON object"),
        ('{"text": ' + "9" * 5000 + "}", "not JSON (a number of too many digits)."),
    ],
)
def test_json_line_that_is_none_leaves_the_others(line: str, what: str, score: Score, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n{{"text": "fine, too"}}\n')
    shown = score(path, "--field", "text", "--format", "jsonl")
    assert shown.code == 1
    assert [record["document"] for record in shown.records] == [f"{path}:1", f"{path}:3"]
    error, _, failed = shown.err.splitlines()
    assert error.startswith(f"Error: {path}:2") and what in error
    assert failed == "1 of 3 documents could not be scored"


def test_errors_of_a_file_without_json_lines_are_not_all_printed(score: Score, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("six.txt", "fine.jsonl", "seven.txt")]
    for path, content in zip(paths, ("text\n" * 6, '{"text": "fine"}\n' + "{}\n" * 5, "text\n" * 7), strict=True):
        path.write_text(content)
    shown = score(*paths, "--field", "text", "--format", "jsonl", "--batch-size", "2")
    assert [record["document"] for record in shown.records] == [f"{paths[1]}:1"]
    lines = shown.err.splitlines()
    for path in paths:
        assert sum(line.startswith(f"Error: {path}:") for line in lines) == 5
    assert lines[-4:-2] == [f"{paths[0]}: … and 1 more error", f"{paths[2]}: … and 2 more errors"]
    assert lines[-1] == "18 of 19 documents could not be scored"


def test_ids_in_files_and_json_lines(score: Score, texts: list[Path], tmp_path: Path) -> None:
    ids = list(texts[3].read_bytes())
    (wanted,) = score(texts[3], "--json").succeeded().records
    path, lines = tmp_path / "ids", tmp_path / "ids.jsonl"
    path.write_text("\n ".join(map(str, ids)) + "\n")
    lines.write_text(json.dumps({"ids": ids}) + '\n{"ids": [1.5, 2]}\n{"ids": "1 2"}\n')
    (found,) = score(path, "--ids", "--json").succeeded().records
    shown = score(lines, "--ids", "--field", "ids", "--json")
    assert found["nats"] == shown.records[0]["nats"] == wanted["nats"]
    assert len(shown.records) == 1
    assert "token ids must be whole numbers" in shown.err
    assert "expected token ids in a list in field 'ids', found a string there" in shown.err


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"1 2 x\xff3 4", r"'x\\xff3'"),
        (b"1 99999999999999999999", "'99999999999999999999'"),
        (b"1 " + b"y" * 50, f"'{'y' * 40}'…"),
        (b"7" * (5 << 20), "1,048,579 bytes without white space"),  # and the rest is not read
    ],
)
def test_ids_that_are_none_are_shown(content: bytes, found: str, score: Score, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(content)
    expected = f"Error: {path}: not token ids separated by white space (found {found}). Leave out --ids for text.\n"
    assert score(path, "--ids").err == expected


def test_ids_are_read_piece_by_piece(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.scoring.inputs.CHUNK", 7)
    path = tmp_path / "ids"
    path.write_text("\ufeff" + "12\t130 7\r\n" * 20 + "255")
    (found,) = score(path, "--ids", "--per", "token", "--json").succeeded().records[-1:]
    assert (found["index"], found["id"]) == (60, 255)
