"""Experimental items for `score`: tables and JSON lines with a context, and columns that records repeat."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from xlexport.scoring.records import own_columns
from xlruntime import load
from xlruntime.tokenizers.vocabulary import Vocabulary

ITEMS = [
    {"item": "1", "condition": "same", "preamble": "Der Koch rührte.", "sentence": "Die Suppe, süß!"},
    {"item": "1", "condition": "other", "preamble": "Es war Nacht. ", "sentence": "Die Suppe, süß!"},
    {"item": "2", "condition": "none", "preamble": "", "sentence": 'A|B "C"'},
]
READ = ("--field", "sentence", "--context-field", "preamble")
COLUMNS = ("item", "condition")


def table(items: list[dict[str, Any]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(items[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(items)
    return file.getvalue()


def write(folder: Path, name: str, items: list[dict[str, Any]] = ITEMS) -> Path:
    """Write items in the format of a file's name."""
    path = folder / name
    if name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(items), path)
        return path
    if "json" in name:
        raw = "".join(json.dumps(item) + "\n" for item in items).encode()
    else:
        raw = table(items, "\t" if ".tsv" in name.lower() else ",").encode("utf-8-sig" if "mark" in name else "utf-8")
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("name", "per"),
    [
        *(
            (name, "word")
            for name in ("mark.csv", "i.csv.gz", "i.TSV", "i.tsv.gz", "i.jsonl", "i.jsonl.gz", "i.parquet")
        ),
        *(("i.csv", per) for per in ("document", "line", "word", "token")),
    ],
)
def test_sums_of_items_are_those_of_continuations(
    name: str, per: str, score: Score, bundle: Path, tmp_path: Path
) -> None:
    """Compare with `score_continuation`, and with log P(sentence | preamble) by minicons, from the whole text."""
    path = write(tmp_path, name)
    records = csv_rows(score(path, *READ, "--per", per, "--format", "csv").succeeded().out)
    assert list(records[0])[:3] == ["document", *COLUMNS]
    model = load(bundle, threads=1)
    for number, item in enumerate(ITEMS):
        own = [row for row in records if (row["item"], row["condition"]) == (item["item"], item["condition"])]
        bits = sum(float(row["bits" if per != "token" else "surprisal_bits"] or 0) for row in own)
        context = item["preamble"] + (" " if number == 0 else "")
        stream = model.stream()
        if context:
            stream.feed(context)
        continuation = stream.score_continuation(item["sentence"])
        before = len(context.encode()) + sum(int(row["bytes"]) for row in own if row.get("complete") == "false")
        if before == len(context.encode()):
            assert bits == pytest.approx(-continuation.log_probs.sum(dtype=float) / math.log(2), abs=1e-4)
        whole = score("-", "--per", "token", stdin=(context + item["sentence"]).encode()).succeeded().objects
        expected = sum(token["surprisal_bits"] or 0 for token in whole if token["start"] >= before)
        assert bits == pytest.approx(expected, abs=1e-6)
        if per != "document" and (context or per != "token"):  # a first token without score has no record
            assert (own[0]["start"], own[-1]["end"]) == ("0", str(len(item["sentence"].encode())))


def test_columns_come_after_the_name_in_all_formats(score: Score, tmp_path: Path) -> None:
    items = [
        {"item": 1, "sentence": "one two", "list": [1, "ü"], "ok": True, "none": None, "rate": 0.5, "a,b": 'say "x"'},
        {"item": 2, "sentence": "three", "list": {}, "ok": False, "none": None, "rate": 1e300, "a,b": ""},
    ]
    path = write(tmp_path, "i.jsonl", items)
    names = ["document", "item", "list", "ok", "none", "rate", "a,b"]
    expected = [[1, '[1, "ü"]', True, None, 0.5, 'say "x"'], [2, "{}", False, None, 1e300, ""]]
    for per in ("document", "line", "word", "token"):
        for record in score(path, "--field", "sentence", "--per", per, "--json").succeeded().objects:
            assert list(record)[: len(names)] == names
            assert [record[name] for name in names[1:]] == expected[record["item"] - 1]
        rows = csv_rows(score(path, "--field", "sentence", "--per", per, "--format", "csv").succeeded().out)
        assert list(rows[0])[: len(names)] == names
        texts = ["1", '[1, "ü"]', "true", "", "0.5", 'say "x"']
        assert [rows[0][name] for name in names[1:]] == texts


def test_table_without_a_field_is_a_text(score: Score, tmp_path: Path) -> None:
    path = write(tmp_path, "i.csv")
    shown = score(path, "--json").succeeded()
    assert [record["bytes"] for record in shown.objects] == [path.stat().st_size]
    expected = f"{path}: read as text. For a document in each row, name its column with --field."
    assert shown.err.splitlines()[:-1] == [expected]  # and a line about its line ends


def test_keep_chooses_columns(score: Score, tmp_path: Path) -> None:
    path = write(tmp_path, "i.csv")
    for keep, names in (("condition", ["condition"]), ("sentence, item", ["sentence", "item"]), ("", [])):
        (first, *_) = score(path, *READ, "--keep", keep, "--json").succeeded().objects
        assert list(first)[: len(names) + 2] == ["document", *names, "tokens"]
    (first, *_) = score(path, *READ, "--id-field", "item", "--json").succeeded().objects
    assert list(first)[:4] == ["document", "item", "condition", "tokens"] and first["document"] == "1"
    ids = write(tmp_path, "ids.jsonl", [{"id": 7, "sentence": "one"}])  # tokens have a column `id` of their own
    (first, *_) = score(ids, "--field", "sentence", "--id-field", "id", "--per", "token", "--json").succeeded().objects
    assert (first["document"], first["id"]) == ("7", ord("n"))
    assert "no column 'itm', found only 'item', " in score(path, *READ, "--keep", "itm").err


@pytest.mark.parametrize("batch_size", ["1", "3"])
@pytest.mark.parametrize("per", ["document", "word"])
def test_columns_are_those_of_their_own_row(batch_size: str, per: str, score: Score, tmp_path: Path) -> None:
    """Compare in batches, in which short documents end before long ones, and with a row that fails."""
    items = [{"n": n, "sentence": "a b " * (10 - n) if n != 2 else ""} for n in range(6)]
    path = write(tmp_path, "i.jsonl", items)
    shown = score(path, "--field", "sentence", "--per", per, "--batch-size", batch_size, "--format", "jsonl")
    assert shown.code == 1
    assert {(record["document"], record["n"]) for record in shown.objects} == {
        (f"{path}:{n + 1}", n) for n in range(6) if n != 2
    }


@pytest.mark.parametrize("name", ["i.csv", "i.jsonl"])
@pytest.mark.parametrize("into", [(), ("-o", "out.csv")], ids=["stdout", "file"])
def test_columns_with_names_of_the_records_are_refused_at_the_start(
    name: str, into: tuple[str, ...], score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    items = [{"id": "1", "word": "x", "bits": "2", "sentence": "one two", "list": "a"}]
    write(tmp_path, name, items)
    line = score(name, "--field", "sentence", "--per", "word", *into).error
    row = 2 if name == "i.csv" else 1
    what = "columns of the records have these names"
    hint = "Rename in the input, or leave out: --keep id,list"
    assert line == f"Error: {name}:{row}: 'word', 'bits': {what}. {hint}"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    line = score(name, "--field", "sentence", "--per", "word", "--keep", "word", *into).error
    expected = "'word': a column of the records has this name. Rename in the input, or leave out: --keep ''"
    assert line == f"Error: --keep: {expected}"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    first, *_ = score(name, "--field", "sentence", "--per", "word", "--keep", "id,list", "--json").succeeded().objects
    assert (first["id"], first["list"], first["word"]) == ("1", "a", "one")
    assert own_columns("token", ()) >= {"token", "id"} and "id" not in own_columns("word", ())


@pytest.mark.parametrize("options", [("--per", "word"), ("--per", "word", "--json"), ("-o", "out.csv")], ids=" ".join)
def test_rows_get_one_line_together(
    options: tuple[str, ...], words_bundle: Callable[..., Path], score: Score, tmp_path: Path, monkeypatch: Any
) -> None:
    """Print neither a total nor a note for each row, but for all of them."""
    monkeypatch.chdir(tmp_path)
    vocabulary = Vocabulary("words", ("<eos>", "<unk>", "one", "two"), unk="<unk>", line_end="<eos>")
    Path("i.jsonl").write_text('{"t": "one two three"}\n{"t": "four five"}\n')
    bundle = words_bundle(vocabulary)
    summary, loss, *notes = score("i.jsonl", "--field", "t", *options, bundle=bundle).succeeded().err.splitlines()[1:]
    assert summary.startswith("i.jsonl: 2 documents, 7 tokens: ") and summary.endswith(" tokens/s")
    assert loss.startswith("3 of 7 tokens replace text that the vocabulary lacks")
    assert len(notes) == ("--per" in options)  # about first words


def test_rows_with_other_columns(score: Score, tmp_path: Path) -> None:
    """Repeat the columns of the first row; say once for each file that a row has further ones."""
    first = write(
        tmp_path, "a.jsonl", [{"text": "one two", "x": 1}, {"text": "three"}, {"text": "four", "y": 1, "z": 2}]
    )
    second = write(tmp_path, "b.csv", [{"text": "five", "z": "2", "x": "3"}, {"text": "six", "z": "2", "x": "3"}])
    shown = score(first, second, "--field", "text", "--json").succeeded()
    assert [record["x"] for record in shown.objects] == [1, None, None, "3", "3"]
    assert not any({"y", "z"} & record.keys() for record in shown.objects)
    notes = [line for line in shown.err.splitlines() if "without" in line]
    assert notes == [
        f"{first}:3: without 'y', 'z', which {first}:1 lacks. Choose columns with --keep.",
        f"{second}:2: without 'z', which {first}:1 lacks. Choose columns with --keep.",
    ]
    shown = score(first, second, "--field", "text", "--keep", "z", "--format", "jsonl")
    assert [record["z"] for record in shown.objects] == [None, None, 2, "2", "2"]
    assert "without" not in shown.err


def test_columns_of_a_row_have_a_limit(score: Score, tmp_path: Path) -> None:
    path = write(tmp_path, "i.jsonl", [{"text": "one two", "x": "a" * 10_000}, {"text": "one two", "x": "a" * 10_001}])
    shown = score(path, "--field", "text", "--format", "jsonl")
    assert len(shown.objects) == 1
    expected = "10,001 characters in the columns that each record repeats, expected at most 10,000. Choose columns with"
    assert f"Error: {path}:2: {expected} --keep.\n" in shown.err
    path = write(tmp_path, "i.jsonl", [{"text": "one two", **{f"c{n}": 0 for n in range(1001)}}])
    assert f"{path}:1: 1,001 columns, expected at most 1,000." in score(path, "--field", "text").error
    score(path, "--field", "text", "--keep", "c3").succeeded()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"sentence": "it"}, "expected text in field 'preamble', found only 'sentence'. Check --context-field."),
        ({"sentence": "it", "preamble": 3}, "expected text in field 'preamble', found a number there."),
        ({"sentence": "it", "preamble": "\ud800"}, "in its context: character 0 is half of a surrogate pair"),
    ],
)
def test_context_that_is_none(row: dict[str, Any], what: str, score: Score, tmp_path: Path) -> None:
    path = write(tmp_path, "i.jsonl", [row, {"sentence": "fine", "preamble": None}])
    shown = score(path, *READ, "--format", "jsonl")
    assert (shown.code, len(shown.objects)) == (1, 1)
    assert f"Error: {path}:1" in shown.err and what in shown.err


def test_separator_between_context_and_document(score: Score, tmp_path: Path) -> None:
    def bits(preamble: str, sentence: str, *options: str) -> float:
        path = write(tmp_path, "i.jsonl", [{"sentence": sentence, "preamble": preamble}])
        (record,) = score(path, *READ, *options, "--json").succeeded().objects
        assert record["bytes"] == record["scored_bytes"] == len(sentence)
        return float(record["bits"])

    assert bits("One.", "Two.") == bits("One. ", "Two.") == bits("One.", "Two.", "--set", "separator= ")
    assert bits("One.", "Two.", "--set", r"separator=\n") == bits("One.\n", "Two.", "--set", "separator=x")
    assert bits("One.", "Two.", "--set", "separator=") != bits("One.", "Two.")
    assert bits("One.", " Two.") == bits("One.", " Two.", "--set", "separator=") != bits("One. ", " Two.")


def test_ids_in_tables(score: Score, tmp_path: Path) -> None:
    text = table(
        [{"ids": " ".join(map(str, b"Suppe")), "before": " ".join(map(str, b"Die "))}, {"ids": "x", "before": ""}]
    )
    (tmp_path / "i.csv").write_text(text)
    shown = score(tmp_path / "i.csv", "--ids", "--field", "ids", "--context-field", "before", "--format", "jsonl")
    path = write(tmp_path, "i.jsonl", [{"text": "Suppe", "before": "Die "}])
    (expected,) = score(path, "--field", "text", "--context-field", "before", "--json").succeeded().objects
    assert [record["bits"] for record in shown.objects] == [expected["bits"]]
    assert f"{tmp_path / 'i.csv'}:3: not token ids separated by white space (found 'x')." in shown.err


def test_folder_gives_all_kinds_of_rows(score: Score, tmp_path: Path) -> None:
    for name in ("a.csv", "b.tsv.gz", "c.jsonl", "d.txt"):
        write(tmp_path, name)
    shown = score(tmp_path, *READ, "--json").succeeded()
    assert [record["document"].split("/")[-1] for record in shown.objects] == [
        f"{name}:{line}"
        for name, first in (("a.csv", 2), ("b.tsv.gz", 2), ("c.jsonl", 1))
        for line in range(first, first + 3)
    ]


def test_items_continue(score: Score, bundle: Path, tmp_path: Path) -> None:
    """Read memory, separator, context and document in this order."""
    path = write(tmp_path, "i.csv", [ITEMS[0], ITEMS[1]])
    _, second = score(path, *READ, "--continuous", "--json").succeeded().objects
    stream = load(bundle, threads=1).stream()
    stream.feed("Der Koch rührte. Die Suppe, süß!\nEs war Nacht. ")
    expected = stream.score_continuation(ITEMS[1]["sentence"])
    assert second["nats"] == pytest.approx(-float(expected.log_probs.sum(dtype=float)), abs=1e-4)
