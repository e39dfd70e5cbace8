"""Rows of JSON lines, CSV, TSV and Parquet files, and files of token ids: what is read, and what is refused."""

from __future__ import annotations

import builtins
import datetime
import decimal
import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from tests.scoring.test_inputs import names
from xlexport.errors import MissingDependencyError
from xlexport.scoring import rows as rows_module
from xlexport.scoring.documents import documents
from xlexport.scoring.inputs import Input, Reading, TextSource
from xlexport.scoring.rows import parquet_rows, rows_of
from xlruntime import TextError
from xlruntime.limits import Limits

FIELD = Reading(field="t")
MIB = 1 << 20


def write(folder: Path, name: str, content: str | bytes | Mapping[str, Any], **options: Any) -> Input:
    """Write a file of rows, which messages call `it`."""
    path = folder / name
    if isinstance(content, Mapping):
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(dict(content)), path, **options)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Input("it", path)


def values(file: Input, reading: Reading = FIELD) -> list[Mapping[str, Any]]:
    """Return the rows of a file, of which none may fail."""
    assert file.path is not None
    found = [row.values for row in rows_of(file, TextSource("it", lambda: file_of(file), True), reading)]
    return [row for row in found if not isinstance(row, Exception)]


def file_of(file: Input) -> Any:
    assert file.path is not None
    return file.path.open("rb")


def outcomes(file: Input, reading: Reading = FIELD) -> Iterator[str]:
    """Yield the name of each document, or the message of one that cannot be read."""
    for document in documents([file], reading, io.BytesIO(), keep=False):
        source: Any = document.source
        try:
            source.read()
            yield document.name
        except (TextError, OSError) as error:
            yield str(error)


def check(file: Input, expected: list[str], reading: Reading = FIELD) -> None:
    """Compare outcomes with names, or with the beginnings of messages."""
    found = list(outcomes(file, reading))
    assert len(found) == len(expected), found
    for outcome, beginning in zip(found, expected, strict=True):
        assert outcome.startswith(beginning) if ": " in beginning else outcome == beginning, found


CSV = {
    't\n"a\nb"\n\nc\n"d\n\n"\ne': ["it:2", "it:5", "it:6", "it:9"],
    "t,n\na,1\nb\nc,1,2\nd,1\n": [
        *(
            "it:2",
            "it:3: 1 cells",
            "it:4: 3 cells, expected 2 as in the first row. Quote cells that contain ','.",
            "it:5",
        )
    ],
    b"t\na\n\xe4\nb\n": ["it:2", "it:3: not UTF-8 at byte 1 of the line (0xe4). Convert it", "it:4"],
    't\na\n"b"c\nd\n': ["it:2", "it:3: not a row (',' expected after '\"').", "it:4"],
    't\na\n"b\nc\n': ["it:2", "it:3: not a row (unexpected end of data). Check that quotes are closed"],
    "n\n1\n": ["it: no column 't', found only 'n'. Check --field. Separate columns by commas"],
    "n,x\n1,2\n": ["it: no column 't', found only 'n', 'x'. Check --field."],
    "n;t\n1;2\n": ["it:2"],
    "n\tt,x\n1\t2\n": ["it: no column 't', found only 'n\\tt', 'x'. Check --field."],
    't,"n;x,y"\n"a;b",2\n': ["it:2"],
    '"n;m";t\r"1";"a,b"\r2;"c\rd"\r': ["it:2", "it:3"],
    "t\na\rb\nc\n": ["it:2: not a row (a carriage return in a cell without quotes). Check that quotes", "it:3"],
    "t,t,n,n\n": ["it: several columns named 'n', 't'. Rename all but one of them."],
    ",".join(["t", *map(str, range(1000))]): ["it: 1,001 columns, expected at most 1,000."],
    b"\xff,t\na,b\n": ["it:1: not UTF-8 at byte 1"],
    '"t\n': ["it:1: not a row (unexpected end of data)."],
    "": [],
    "\n\n": [],
    "t\n": [],
}
JSON = {  # a line, and what is wrong with it
    '{"t": "cut': "not JSON (unterminated string at character 7: '\"cut').",
    "[1, 2]": "a list, expected a JSON object with field 't'.",
    '{"body": "it", "n": 1}': "expected text in field 't', found only 'body', 'n'. Check --field.",
    json.dumps(dict.fromkeys("x" * n for n in range(50, 60))): (
        f"expected text in field 't', found only {', '.join([repr('x' * 40)] * 5)} and 5 more."
    ),
    '{"t": 5}': "expected text in field 't', found a number there. Check --field.",
    '{"t": "\\ud800 half"}': "character 0 is half of a surrogate pair",
    "[" * 100_000: "not JSON (nested too deeply).",
    "It was the best of times": "not JSON (expecting value at character 1: 'It was the best of t').",
    '{"t":': "not JSON (expecting value at its end).",
    '{"t": null}': "expected text in field 't', found null there.",
    "null": "null, expected a JSON object",
    '{"t": ' + "9" * 5000 + "}": "not JSON (a number of too many digits).",
    '{"t": "a", "id": "' + "x" * 5000 + '"}': "a name of 5,000 characters in field 'id', expected at most 1,000",
}


@pytest.mark.parametrize("text", CSV, ids=lambda text: repr(text)[:30])
def test_rows_of_tables_that_fail(text: str | bytes, tmp_path: Path) -> None:
    check(write(tmp_path, "i.csv", text), CSV[text])


def test_header_that_csv_cannot_read_is_told_as_a_row(tmp_path: Path) -> None:
    entry = write(tmp_path, "i.csv", "n,\rtext,\r1\nof it\n")
    with pytest.raises(TextError, match=r"not a row \(a carriage return"):
        next(iter(documents([entry], Reading(field="text"), io.BytesIO(), keep=False))).source.read()


@pytest.mark.parametrize("line", JSON, ids=lambda line: repr(line)[:30])
def test_json_lines_that_fail(line: str, tmp_path: Path) -> None:
    file = write(tmp_path, "i.jsonl", f'{{"t": "fine"}}\n{line}\n{{"t": "fine, too"}}\n')
    check(file, ["it:1", f"it:2: {JSON[line]}", "it:3"], Reading(field="t", id_field="id"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "i.csv",
            f"n,t\n1,{'a' * 97}\n2,{'b' * 101}\n3,c\n",
            ["it:2", "it:3: a row of more than 100 bytes. Check the file, or allow longer ones: --set max_d", "it:4"],
        ),
        (
            "i.csv",
            't\n"{0}"\n"{0}\n{0}"\n"d"\n'.format("\n".join(["x" * 30] * 3)),
            [
                "it:2",
                "it:5: a row of more than 100 bytes in several lines. The rest is not read. Check that quotes are",
            ],
        ),
        ("i.csv", f"{'b' * 101},t\n1,one\n", ["it:1: a row of more than 100 bytes."]),
        (
            "i.jsonl",
            "".join(f'{{"t": "{"a" * n}"}}\n' for n in (91, 92)) + f'{{"t": "{"a" * 91}"}}',
            ["it:1", "it:2: a line of more than 100 bytes. Check the file, or allow longer ones: --set max_d", "it:3"],
        ),
        (
            "i.parquet",
            {"t": ["a" * 101, "b"]},
            ["it:1: a row of more than 100 bytes. Check the file, or allow", "it:2"],
        ),
    ],
)
def test_rows_have_a_limit(name: str, content: Any, expected: list[str], tmp_path: Path) -> None:
    check(write(tmp_path, name, content), expected, Reading(field="t", line_limits=Limits(bytes=100)))


def bomb(before: bytes, after: bytes) -> bytes:
    """Return packed data: 64 members of one MiB of `a`, with other data before and after them."""
    return gzip.compress(before) + gzip.compress(b"a" * MIB) * 64 + gzip.compress(after)


@pytest.mark.parametrize(
    ("name", "content", "expected", "mebibytes"),
    [
        (
            "i.jsonl.gz",
            bomb(b'{"t": "first"}\n{"t": "', b'"}\n\n{"t": "last"}\n'),
            ["it:1", "it:2: a line of more than 1,048,576 bytes.", "it:4"],
            8,
        ),
        ("i.csv.gz", bomb(b't\n"', b"\nlast\n"), ["it:2: a row of more than 1,048,576 bytes", "it:3"], 16),
        (
            "i.jsonl",
            b'{"t": ' + b"[" + b"[]," * 300_000 + b"0]}\n" + b'{"t": "fine"}\n',
            ["it:1: reading it would take more than 16,777,216 bytes of memory", "it:2"],
            16,
        ),
        (
            "i.csv",
            b"t\n" + b"ab," * (MIB // 4) + b"\nfine\n",
            ["it:2: reading it would take more than 100,000 operations", "it:3"],
            16,
        ),
    ],
)
def test_rows_that_grow_take_little_memory(
    name: str, content: bytes, expected: list[str], mebibytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MOST_DELIMITERS", 100_000)
    file = write(tmp_path, name, content)
    tracemalloc.start()
    check(file, expected, Reading(field="t", line_limits=Limits(bytes=MIB)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < mebibytes * MIB


@pytest.mark.release
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


def test_json_lines(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    lines = [{"text": "first text", "id": "one"}, {"text": "second text\n"}, {"text": "third – text", "id": 3}]
    path.write_text("\n\n".join(map(json.dumps, lines)), "utf-8-sig")
    expected = [f"{path}:1", f"{path}:3", f"{path}:5"]
    shown = score(path, "--field", "text", "--json").succeeded()
    assert [record["document"] for record in shown.objects] == expected
    assert [record["chars"] for record in shown.objects] == [10, 12, 12]
    assert names(score, path, "--field", "text", "--id-field", "id") == ["one", expected[1], "3"]
    other = json.dumps({"text": "its id is an object", "id": {"ü": True}}, ensure_ascii=False).encode()
    assert names(score, "-", "--field", "text", "--id-field", "id", stdin=other) == ['{"ü": true}']
    assert names(score, "-", "--field", "text", stdin=path.read_bytes())[1] == "standard input:3"
    packed = tmp_path / "docs.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "other.txt").write_text("not taken")
    assert names(score, tmp_path, "--field", "text") == [*expected, *(f"{packed}:{n}" for n in (1, 3, 5))]


@pytest.mark.parametrize(
    ("option", "reading"),
    [
        ("--context-field", Reading(field="t", context_field="c")),
        ("--id-field", Reading(field="t", id_field="c")),
        ("--keep", Reading(field="t", keep=("t", "c"))),
    ],
)
def test_columns_that_options_name_must_be_there(option: str, reading: Reading, tmp_path: Path) -> None:
    file = write(tmp_path, "i.csv", "n,t\n1,one\n")
    assert list(outcomes(file, reading)) == [f"it: no column 'c', found only 'n', 't'. Check {option}."]


def test_table_rows_that_fail_leave_the_others(score: Score, tmp_path: Path) -> None:
    path, wrong, packed = (tmp_path / name for name in ("i.csv", "wrong.csv", "packed.csv.gz"))
    path.write_text("t,n\none two,1\nthree\nfour,2\n")
    wrong.write_text("x\n1\n")
    packed.write_bytes(gzip.compress(b"t\none two\n" + bytes(range(1, 128)) * 999)[:-20])
    out = score(wrong, packed, tmp_path / "no.csv", path, "--field", "t", "--keep", "", "--format", "jsonl")
    assert (out.code, [record["document"] for record in out.objects[-2:]]) == (1, [f"{path}:2", f"{path}:4"])
    for problem in (
        f"Error: {wrong}: no column 't', found only 'x'.",
        f"{packed}: broken gzip data",
        f"Error: {tmp_path / 'no.csv'}: No such file",
        f"Error: {path}:3: 1 cells, expected 2 as in the first row. Quote cells that contain ','.",
    ):
        assert problem in out.err
    stopped = score(path, "--field", "t", "--format", "jsonl", "--set=strict=true")
    assert (stopped.code, len(stopped.objects)) == (1, 1)


def test_errors_of_a_file_without_json_lines_are_not_all_printed(score: Score, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("six.txt", "fine.jsonl", "seven.txt")]
    for path, content in zip(paths, ("text\n" * 6, '{"text": "fine"}\n' + "{}\n" * 5, "text\n" * 7), strict=True):
        path.write_text(content)
    shown = score(*paths, "--field", "text", "--format", "jsonl", "--batch-size", "2")
    assert [record["document"] for record in shown.objects] == [f"{paths[1]}:1"]
    lines = shown.err.splitlines()
    for path in paths:
        assert sum(line.startswith(f"Error: {path}:") for line in lines) == 5
    assert lines[-4:-2] == [f"{paths[0]}: … and 1 more error", f"{paths[2]}: … and 2 more errors"]
    assert lines[-1] == "18 of 19 documents could not be scored"


def test_ids_in_files_and_json_lines(score: Score, texts: list[Path], tmp_path: Path) -> None:
    ids = list(texts[3].read_bytes())
    (wanted,) = score(texts[3], "--json").succeeded().objects
    path, lines = tmp_path / "ids", tmp_path / "ids.jsonl"
    path.write_text("\n ".join(map(str, ids)) + "\n")
    lines.write_text(json.dumps({"ids": ids}) + '\n{"ids": [1.5, 2]}\n{"ids": "1 2"}\n')
    (found,) = score(path, "--ids", "--json").succeeded().objects
    shown = score(lines, "--ids", "--field", "ids", "--json")
    assert found["nats"] == shown.objects[0]["nats"] == wanted["nats"]
    assert len(shown.objects) == 1
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
    (found,) = score(path, "--ids", "--per", "token", "--json").succeeded().objects[-1:]
    assert (found["index"], found["id"]) == (60, 255)


def test_parquet_without_pyarrow(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    path = tmp_path / "i.parquet"
    path.touch()
    line = score(path, "--field", "t", "-o", tmp_path / "out.csv").error
    assert line == f"Error: {path}: Parquet needs the pyarrow package, which is not installed. pip install pyarrow"
    assert [found.name for found in tmp_path.iterdir()] == ["i.parquet"]
    with pytest.raises(MissingDependencyError):
        next(parquet_rows(Input("it", path), FIELD))


def test_values_of_parquet(score: Score, tmp_path: Path) -> None:
    given = {
        "t": ["one two", "three four"],
        "int": [1, None],
        "rate": [0.5, float("nan")],
        "ok": [True, False],
        "day": [datetime.date(2026, 1, 2)] * 2,
        "cost": [decimal.Decimal("1.50")] * 2,
        "list": [[1, 2], []],
        "raw": [b"a\xff"] * 2,
    }
    write(tmp_path, "i.parquet", given)
    first, second = score(tmp_path / "i.parquet", "--field", "t", "--json").succeeded().objects
    assert first["document"] == f"{tmp_path / 'i.parquet'}:1"
    names = list(given)[1:]
    assert [first[name] for name in names] == [1, 0.5, True, "2026-01-02", "1.50", "[1, 2]", "a\\xff"]
    assert [second[name] for name in names] == [None, None, False, "2026-01-02", "1.50", "[]", "a\\xff"]


def test_rows_of_parquet_come_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "i.parquet", {"t": [str(n) for n in range(300)], "n": range(300)}, row_group_size=90)
    assert list(outcomes(file)) == [f"it:{n}" for n in range(1, 301)]
    assert values(file, Reading(field="t", keep=("n",))) == [{"t": str(n), "n": n} for n in range(300)]
    assert values(file, Reading(field="t", keep=())) == [{"t": str(n)} for n in range(300)]
    check(file, ["it: no column 'text', found only 't', 'n'. Check --field."], Reading(field="text"))
    wide = write(tmp_path, "w.parquet", {f"c{n}": [1] for n in range(1001)})
    check(wide, ["it: 1,001 columns, expected at most 1,000."])
    monkeypatch.setattr(rows_module, "LARGEST_GROUP", 10)
    check(file, ["it: a row group of "])


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "body"])
def test_parquet_that_is_damaged(damage: str, tmp_path: Path) -> None:
    file = write(tmp_path, "i.parquet", {"t": ["one two"] * 500}, compression="zstd")
    assert file.path is not None
    raw = file.path.read_bytes()
    file.path.write_bytes(
        {"cut": raw[:-9], "text": b"t\none", "empty": b"", "body": raw[:4] + b"\xff" * 40 + raw[44:]}[damage]
    )
    (problem,) = outcomes(file)
    assert problem.startswith("it: not Parquet that can be read (") and problem.endswith("again, or as CSV.")
    file.path.unlink()
    (problem,) = outcomes(file)
    assert "No such file" in problem


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("i.xlsx", b"PK\x03\x04\x14\0", "a file of another program, not a text. Save it as CSV in UTF-8."),
        ("i.xls", b"\xd0\xcf\x11\xe0\0", "a file of another program, not a text. Save it as CSV in UTF-8."),
        ("i.docx", b"PK\x03\x04\x14\0", "a file of another program, not a text. Save it as plain text in UTF-8."),
        ("i.zip", b"PK\x03\x04\x14\0", "packed by ZIP. Unpack it first: only gzip is unpacked here."),
        ("i.csv", b"\x28\xb5\x2f\xfd\x24", "packed by Zstandard. Unpack it first: only gzip is unpacked here."),
        ("i.txt", b"t,n\na,1\n", "Tables end in .csv, .tsv or .parquet, or need --set delimiter."),
    ],
)
def test_files_that_are_no_rows_say_what_to_do(
    name: str, content: bytes, expected: str, score: Score, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in score(path, "--field", "t").err


@pytest.mark.parametrize(("option", "mark"), [(",", ","), ("tab", "\t"), (r"\t", "\t"), ("|", "|")])
def test_delimiter_makes_a_table_of_any_file(option: str, mark: str, score: Score, tmp_path: Path) -> None:
    content = f'n{mark}t\n1{mark}"two;{mark} words"\n'
    path = tmp_path / "i.tok"
    path.write_text(content)
    for file, stdin in ((path, b""), ("-", content.encode())):
        options = ("--field", "t", "--set", f"delimiter={option}", "--per", "word", "--json")
        records = score(file, *options, stdin=stdin).succeeded().objects
        assert [(record["n"], record["word"]) for record in records] == [
            ("1", word) for word in f"two;{mark} words".split()
        ]
