"""Records as TSV and Parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pages import python_of
from tests.helpers.tiers import thinned
from tests.scoring.conftest import Score
from xlexport.scoring.output_formats import write_parquet

OPTIONS = {"document": (), "line": ("--top", "0"), "word": ("--bos", " "), "token": ("--top", "2")}


@pytest.mark.parametrize("level", thinned(OPTIONS, ["word", "document"]))
def test_all_formats_say_what_json_lines_say(level: str, score: Score, texts: list[Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    odd = tmp_path / 'an, "odd"\tname.txt'
    odd.write_text('tabs\tand, "quotes"\nnew lines \r – 時代')
    for ending in ("jsonl", "csv", "tsv", "parquet"):
        score(*texts, odd, "-o", tmp_path / f"x.{ending}", "--per", level, *OPTIONS[level]).succeeded()
    expected = []
    for line in (tmp_path / "x.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        assert json.dumps(record, ensure_ascii=False) == line
        for k, entry in enumerate(record.pop("top", []), start=1):
            record |= {f"top_{k}_{name}": value for name, value in entry.items()}
        expected.append(record)
    assert len(expected) > 5
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == expected
    texts_of = [{name: in_csv(value) for name, value in record.items()} for record in expected]
    for ending, delimiter in (("csv", ","), ("tsv", "\t")):
        with (tmp_path / f"x.{ending}").open(newline="", encoding="utf-8") as file:
            assert list(csv.DictReader(file, delimiter=delimiter)) == texts_of
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def in_csv(value: object) -> str:
    """Return a JSON value as CSV writes it: numbers as Python does, booleans as JSON does."""
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def test_columns_have_one_type(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    records: list[dict[str, Any]] = [
        {"a": 1, "b": True, "c": None, "d": "x", "e": 2, "f": [1]},
        {"a": 2.5, "b": None, "c": None, "d": 3, "e": 2**80, "g": 1},
    ]
    lines, output = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_parquet(lines, output)
    table = parquet.read_table(output)
    assert {field.name: str(field.type) for field in table.schema} == {
        **{"a": "double", "b": "bool", "c": "double", "d": "string", "e": "string", "f": "string", "g": "int64"}
    }
    assert table.to_pylist() == [
        {"a": 1.0, "b": True, "c": None, "d": "x", "e": "2", "f": "[1]", "g": None},
        {"a": 2.5, "b": None, "c": None, "d": "3", "e": str(2**80), "f": None, "g": 1},
    ]


def test_parquet_needs_its_package(score: Score, texts: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("xlexport.extras.packages_of", lambda extra: ["no-such-package"])
    shown = score(texts[0], "-o", tmp_path / "x.parquet")
    assert shown.code == 1 and "no-such-package not installed" in shown.err
    assert not list(tmp_path.glob("x.*"))


def test_pandas_reads_words_as_they_are(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the recipe of docs/scoring.md on words that pandas would read as missing."""
    pytest.importorskip("pandas", reason="needs pandas")
    (tmp_path / "a.txt").write_text('I said "NA" to null, None and nan')
    (tmp_path / "b.txt").write_text("He saw")
    monkeypatch.chdir(tmp_path)
    score("a.txt", "b.txt", "--per", "word", "-o", "words.csv").succeeded()
    found: dict[str, Any] = {}
    exec(compile(python_of("docs/scoring.md"), "docs/scoring.md", "exec"), found)
    words, means = found["words"], found["means"]
    assert words["word"].tolist() == ["I", "said", '"NA"', "to", "null,", "None", "and", "nan", "He", "saw"]
    assert words["bits"].isna().tolist() == (~words["complete"]).tolist()
    assert words["complete"].tolist() == [False] + [True] * 7 + [False, True]
    assert means.to_dict() == {"a.txt": pytest.approx(words["bits"][1:8].mean()), "b.txt": words["bits"][9]}
