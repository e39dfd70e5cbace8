"""Rows of CSV, TSV and Parquet files: what is read, and what is refused."""

from __future__ import annotations

import builtins
import csv
import gzip
import io
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from xlexport.errors import MissingDependencyError
from xlexport.scoring import rows as rows_module
from xlexport.scoring.documents import documents
from xlexport.scoring.inputs import Input, Reading, TextSource
from xlexport.scoring.rows import Row, parquet_rows, table_rows
from xlruntime.limits import Limits

FIELD = Reading(field="t")
MIB = 1 << 20


def rows(raw: bytes | str, reading: Reading = FIELD, delimiter: str = ",") -> list[Row]:
    content = raw.encode() if isinstance(raw, str) else raw
    return list(table_rows(TextSource("it", lambda: io.BytesIO(content), True), reading, delimiter))


def values(found: list[Row]) -> list[Mapping[str, Any]]:
    assert not [row.values for row in found if isinstance(row.values, Exception)]
    return [row.values for row in found if not isinstance(row.values, Exception)]


def shown(found: list[Row]) -> list[str]:
    """Return the name of each row, or its error."""
    return [str(row.values) if isinstance(row.values, Exception) else row.name for row in found]


@pytest.mark.parametrize(
    "text",
    [
        "n,t\n1,one\n2,two\n",
        "n,t\r\n1,one\r\n2,two",
        '\ufeff"n","t"\n"1","one, ""two""\nthree"\n2,\n',
        "n,t\n1,5\" disk\n2,' \" '\n",
        "n,t\n\n1, one \n\n\n2,\u2028\x00\n",
    ],
)
def test_rows_are_those_of_the_csv_module(text: str) -> None:
    expected = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    assert values(rows(text)) == expected
    if '"' not in text:
        assert values(rows(text.replace(",", "\t"), delimiter="\t")) == expected


def test_rows_are_named_by_their_first_line() -> None:
    assert shown(rows('t\n"a\nb"\n\nc\n"d\n\n"\ne')) == ["it:2", "it:5", "it:6", "it:9"]


def test_column_without_a_name_is_left_out() -> None:
    assert values(rows(",t\n1,one\n")) == [{"t": "one"}]
    assert values(rows("t,,\none,2,3\n")) == [{"t": "one"}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "t,n\na,1\nb\nc,1,2\nd,1\n",
            ["it:2", "it:3: 1 cells", "it:4: 3 cells, expected 2 as in the first row.", "it:5"],
        ),
        (b"t\na\n\xe4\nb\n", ["it:2", "it:3: not UTF-8 at byte 1 of the line (0xe4). Convert the file", "it:4"]),
        ('t\na\n"b"c\nd\n', ["it:2", "it:3: not a row (',' expected after '\"').", "it:4"]),
        ('t\na\n"b\nc\n', ["it:2", "it:3: not a row (unexpected end of data). Check that quotes are closed"]),
        ("n\n1\n", ["it: no column 't', found only 'n'. Check --field. Separate columns by commas"]),
        ("n,x\n1,2\n", ["it: no column 't', found only 'n', 'x'. Check --field."]),
        ("n;t\n1;2\n", ["it: no column 't', found only 'n;t'. Check --field. Separate columns by commas"]),
        ("t,t,n,n\n", ["it: several columns named 'n', 't'. Rename all but one of them."]),
        (",".join(["t", *map(str, range(1000))]), ["it: 1,001 columns, expected at most 1,000."]),
        (b"\xff,t\na,b\n", ["it:1: not UTF-8 at byte 1"]),
        ('"t\n', ["it:1: not a row (unexpected end of data)."]),
        ("", []),
        ("\n\n", []),
        ("t\n", []),
    ],
)
def test_rows_that_are_none(text: str | bytes, found: list[str]) -> None:
    names = shown(rows(text))
    assert len(names) == len(found)
    assert all(name.startswith(start) for name, start in zip(names, found, strict=True)), names


@pytest.mark.parametrize(
    ("option", "reading"),
    [
        ("--context-field", Reading(field="t", context_field="c")),
        ("--id-field", Reading(field="t", id_field="c")),
        ("--keep", Reading(field="t", keep=("t", "c"))),
    ],
)
def test_columns_that_options_name_must_be_there(option: str, reading: Reading) -> None:
    assert shown(rows("n,t\n1,one\n", reading)) == [f"it: no column 'c', found only 'n', 't'. Check {option}."]


SMALL = Reading(field="t", line_limits=Limits(bytes=100))


def test_rows_have_a_limit() -> None:
    fits, long = "a" * 97, "b" * 101
    assert shown(rows(f"n,t\n1,{fits}\n2,{long}\n3,c\n", SMALL))[1:] == [
        "it:3: a row of more than 100 bytes. Check the file, or allow longer ones: --set max_document_bytes=N.",
        "it:4",
    ]
    lines = "\n".join(["x" * 30] * 3)
    assert shown(rows(f't\n"{lines}"\n"{lines}\n{lines}"\n"d"\n', SMALL)) == [
        "it:2",
        "it:5: a row of more than 100 bytes in several lines. The rest is not read. Check that quotes are closed, and "
        "doubled within a cell. Or allow longer rows: --set max_document_bytes=N.",
    ]
    assert shown(rows(f"{long},t\n1,one\n", SMALL))[0].startswith("it:1: a row of more than 100 bytes.")


def test_quote_without_end_and_endless_line_take_little_memory(tmp_path: Path) -> None:
    reading = Reading(field="t", line_limits=Limits(bytes=MIB))
    path = tmp_path / "b.csv.gz"
    line = gzip.compress(b"a" * MIB)
    path.write_bytes(gzip.compress(b't\n"') + line * 64 + gzip.compress(b"\nlast\n"))
    tracemalloc.start()
    found = list(documents([Input("b", path)], reading, io.BytesIO(), keep=False))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [document.name for document in found] == ["b:2", "b:3"]
    assert peak < 16 * MIB


def test_row_of_many_cells_is_refused_before_they_are_made() -> None:
    raw = b"t\n" + b"ab," * (3 * MIB) + b"\nfine\n"
    tracemalloc.start()
    refused, fine = shown(rows(raw))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.startswith("it:2: reading it would take more than 2,000,000 operations.")
    assert fine == "it:3"
    assert peak < 64 * MIB


def test_table_rows_that_fail_leave_the_others(score: Score, tmp_path: Path) -> None:
    path, wrong, packed = (tmp_path / name for name in ("i.csv", "wrong.csv", "packed.csv.gz"))
    path.write_text("t,n\none two,1\nthree\nfour,2\n")
    wrong.write_text("x\n1\n")
    packed.write_bytes(gzip.compress(b"t\none two\n" + bytes(range(1, 128)) * 999)[:-20])
    out = score(wrong, packed, tmp_path / "no.csv", path, "--field", "t", "--keep", "", "--format", "jsonl")
    assert (out.code, [record["document"] for record in out.records[-2:]]) == (1, [f"{path}:2", f"{path}:4"])
    for problem in (
        f"Error: {wrong}: no column 't', found only 'x'.",
        f"{packed}: broken gzip data",
        f"Error: {tmp_path / 'no.csv'}: No such file",
        f"Error: {path}:3: 1 cells, expected 2 as in the first row. Quote cells that contain ','.",
    ):
        assert problem in out.err
    stopped = score(path, "--field", "t", "--format", "jsonl", "--strict")
    assert (stopped.code, len(stopped.records)) == (1, 1)


def test_parquet_without_pyarrow(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    path = tmp_path / "i.parquet"
    path.touch()
    line = score(path, "--field", "t", "-o", tmp_path / "out.csv").refusal
    assert line == f"Error: {path}: Parquet needs the pyarrow package, which is not installed. pip install pyarrow"
    assert [found.name for found in tmp_path.iterdir()] == ["i.parquet"]
    with pytest.raises(MissingDependencyError):
        next(parquet_rows(Input("it", path), FIELD))


def parquet(path: Path, columns: Mapping[str, Any], **options: Any) -> Input:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(dict(columns)), path, **options)
    return Input("it", path)


def test_values_of_parquet(score: Score, tmp_path: Path) -> None:
    import datetime
    import decimal

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
    parquet(tmp_path / "i.parquet", given)
    first, second = score(tmp_path / "i.parquet", "--field", "t", "--json").succeeded().records
    assert first["document"] == f"{tmp_path / 'i.parquet'}:1"
    names = list(given)[1:]
    assert [first[name] for name in names] == [1, 0.5, True, "2026-01-02", "1.50", "[1, 2]", "a\\xff"]
    assert [second[name] for name in names] == [None, None, False, "2026-01-02", "1.50", "[]", "a\\xff"]


def test_rows_of_parquet_come_in_batches(tmp_path: Path) -> None:
    given = parquet(tmp_path / "i.parquet", {"t": [str(n) for n in range(300)], "n": range(300)}, row_group_size=90)
    found = list(parquet_rows(given, Reading(field="t", keep=("n",))))
    assert [row.name for row in found] == [f"it:{n}" for n in range(1, 301)]
    assert values(found) == [{"t": str(n), "n": n} for n in range(300)]
    assert values(list(parquet_rows(given, Reading(field="t", keep=())))) == [{"t": str(n)} for n in range(300)]
    (refused,) = shown(list(parquet_rows(given, Reading(field="text"))))
    assert refused == "it: no column 'text', found only 't', 'n'. Check --field."


def test_parquet_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = parquet(tmp_path / "i.parquet", {"t": ["a" * 101, "b"]})
    assert shown(list(parquet_rows(given, SMALL))) == [
        "it:1: a row of more than 100 bytes. Check the file, or allow longer ones: --set max_document_bytes=N.",
        "it:2",
    ]
    monkeypatch.setattr(rows_module, "LARGEST_GROUP", 10)
    (refused,) = shown(list(parquet_rows(given, FIELD)))
    assert refused.startswith("it: a row group of ") and "expected at most 10." in refused
    wide = parquet(tmp_path / "w.parquet", {f"c{n}": [1] for n in range(1001)})
    assert shown(list(parquet_rows(wide, FIELD))) == ["it: 1,001 columns, expected at most 1,000."]


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "body"])
def test_parquet_that_is_damaged(damage: str, score: Score, tmp_path: Path) -> None:
    path = tmp_path / "i.parquet"
    parquet(path, {"t": ["one two"] * 500}, compression="zstd")
    raw = path.read_bytes()
    path.write_bytes(
        {"cut": raw[:-9], "text": b"t\none", "empty": b"", "body": raw[:4] + b"\xff" * 40 + raw[44:]}[damage]
    )
    out = score(path, "--field", "t")
    assert out.code == 1
    assert out.err.startswith(f"Error: {path}: not Parquet that can be read (")
    assert out.err.splitlines()[0].endswith("). Write the file again, or as CSV.")
    (tmp_path / "no.parquet").unlink(missing_ok=True)
    assert f"{tmp_path / 'no.parquet'}: No such file" in score(tmp_path / "no.parquet", "--field", "t").err
