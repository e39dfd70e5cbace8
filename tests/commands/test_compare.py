"""`xlexport compare`: pairs of records of two tables, their differences, and tables that do not match."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.paths import golden_bundle

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]

BUNDLES = [golden_bundle(name) for name in ("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros")]


@pytest.fixture
def scored(invoke: Invoke, tmp_path: Path) -> Callable[..., Path]:
    """Return `scored(name, bundle, options…)`, which scores two documents into a file of this name."""
    for name, text in {"a.txt": "I saw the dog", "b.txt": 'The "NA", null\n'}.items():
        (tmp_path / name).write_text(text)

    def run(name: str, bundle: Path, *options: str) -> Path:
        texts = (tmp_path / "a.txt", tmp_path / "b.txt")
        invoke("score", bundle, *texts, "-o", tmp_path / name, "--threads", "1", *options).succeeded()
        return tmp_path / name

    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_two_bundles_by_word(invoke: Invoke, scored: Callable[..., Path], tmp_path: Path) -> None:
    a, b = (scored(f"{n}.csv", bundle, "--per", "word") for n, bundle in enumerate(BUNDLES))
    shown = invoke("compare", a, b).succeeded()
    records = [json.loads(line) for line in shown.out.splitlines()]
    expected = []
    for one, other in zip(rows(a), rows(b), strict=True):
        values = [float(row["bits"]) if row["bits"] else None for row in (one, other)]
        expected.append({"document": one["document"], "index": one["index"], "word": one["word"], "bits_a": values[0]})
        expected[-1] |= {"bits_b": values[1]}
        expected[-1] |= {"difference": None if None in values else values[0] - values[1]}
    assert records == expected
    known = [record["difference"] for record in records if record["difference"] is not None]
    assert len(known) == len(records) - 1  # the first word of a.txt is a byte without a score
    mean = sum(known) / len(known)
    error = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1) / len(known))
    (line,) = shown.err.splitlines()
    assert line.startswith("7 records, 1 of them without a value in one of the tables: bits A ")
    assert line.endswith(f", A − B {mean:.4f} ± {error:.4f} (mean and standard error over records)")
    summary = invoke("compare", a, b, "--json").succeeded().object
    assert (summary["records"], summary["compared"]) == (7, 6)
    assert (summary["mean_difference"], summary["standard_error"]) == pytest.approx((mean, error))
    assert summary["mean_a"] - summary["mean_b"] == pytest.approx(mean)
    output = tmp_path / "out.tsv"
    invoke("compare", a, b, "-o", output).succeeded()
    with output.open(newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t"))
    assert [row["difference"] for row in found] == [
        "" if r["difference"] is None else str(r["difference"]) for r in records
    ]
    assert "a file is there already" in invoke("compare", a, b, "-o", output).error
    invoke("compare", a, b, "-o", output, "--force").succeeded()


@pytest.mark.parametrize("level", ["document", "line", "word", "token"])
def test_formats_may_differ(level: str, invoke: Invoke, scored: Callable[..., Path]) -> None:
    tables = [scored(f"x.{ending}", BUNDLES[0], "--per", level) for ending in ("csv", "tsv", "jsonl")]
    for table in tables[1:]:
        records = [json.loads(line) for line in invoke("compare", tables[0], table).succeeded().out.splitlines()]
        assert {record["difference"] for record in records} <= {0.0, None}
        assert next(iter(records[0])) == "document" and "difference" in records[0]


def test_parquet(invoke: Invoke, scored: Callable[..., Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    a, b = scored("a.parquet", BUNDLES[0], "--per", "word"), scored("b.csv", BUNDLES[1], "--per", "word")
    invoke("compare", a, b, "-o", tmp_path / "out.parquet").succeeded()
    printed = [json.loads(line) for line in invoke("compare", a, b).succeeded().out.splitlines()]
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == printed


def test_two_contexts_of_items(invoke: Invoke, tmp_path: Path) -> None:
    """Compare the same sentence after two contexts, row by row of the items."""
    items = tmp_path / "items.csv"
    items.write_text(
        "item,one,other,sentence\n1,A dog ran.,A cat sat.,It barked\n2,Rain fell.,The sun shone.,It was wet\n"
    )
    tables = []
    for context in ("one", "other"):
        tables.append(tmp_path / f"{context}.csv")
        invoke(
            *("score", BUNDLES[0], items, "--field", "sentence", "--context-field", context, "--per", "word"),
            *("--keep", "item", "-o", tables[-1], "--threads", "1"),
        ).succeeded()
    shown = invoke("compare", *tables, "--by", "item,word", "--format", "csv").succeeded()
    found = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["item"], row["word"]) for row in found] == [
        *(("1", "It"), ("1", "barked"), ("2", "It"), ("2", "was"), ("2", "wet")),
    ]
    assert all(float(row["difference"]) == float(row["bits_a"]) - float(row["bits_b"]) for row in found)


def test_tables_that_do_not_match(invoke: Invoke, tmp_path: Path) -> None:
    header = "document,index,word,bits\n"
    files = {
        "a": header + "d,0,The,1.5\nd,1,dog,2\n",
        "word": header + "d,0,The,1.5\nd,1,cat,2\n",
        "short": header + "d,0,The,1.5\n",
        "text": header + "d,0,The,1.5\nd,1,dog,many\n",
        "nan": header + "d,0,The,nan\nd,1,dog,2\n",
        "columns": "document,word\nd,The\n",
        "none": header,
        "broken": header + "d,0\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)

    def refusal(a: str, b: str, *options: str) -> str:
        shown = invoke("compare", tmp_path / f"{a}.csv", tmp_path / f"{b}.csv", *options)
        assert (shown.code, shown.out) == (1, "")
        return str(shown.error).replace(str(tmp_path) + "/", "")

    same = (
        "Make both tables from the same documents in the same order, or choose columns, "
        "for instance --by item,index,word."
    )
    assert refusal("a", "word") == f"Error: word.csv:3: word is 'cat', but 'dog' in a.csv:3. {same}"
    assert refusal("a", "short") == f"Error: a.csv:3: a row that the other table does not have. {same}"
    assert refusal("short", "a") == f"Error: a.csv:3: a row that the other table does not have. {same}"
    assert refusal("a", "text") == "Error: text.csv:3: bits is 'many', expected a number or nothing. Check --value."
    assert "nan.csv:2: bits is 'nan', expected a number" in refusal("a", "nan")
    assert "columns.csv:2: no column 'bits', found only 'document', 'word'." in refusal("a", "columns")
    assert "no column 'item', found only" in refusal("a", "a", "--by", "item")
    assert "without rows" in refusal("a", "none")
    assert "broken.csv:2: 2 cells, expected 4" in refusal("a", "broken")
    assert "missing.csv: No such file" in refusal("a", "missing")
    invoke("compare", tmp_path / "a.csv", tmp_path / "word.csv", "--by", "document,index").succeeded()


def test_nothing_is_written_if_tables_do_not_match(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("document,bits\nx,1\ny,2\n")
    (tmp_path / "b.csv").write_text("document,bits\nx,1\nz,2\n")
    assert invoke("compare", tmp_path / "a.csv", tmp_path / "b.csv", "-o", tmp_path / "out.csv").code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--force",), "--force is about an output file. Give it with -o."),
        (("--json", "-o", "x.csv"), "--json prints the summary alone. Leave out --output and --format."),
        (("--format", "parquet"), "Parquet is a format of files. Give one with -o."),
        (("-o", "x.txt"), "x.txt: no format of that ending"),
    ],
)
def test_usage(options: tuple[str, ...], what: str, invoke: Invoke) -> None:
    shown: Any = invoke("compare", "a.csv", "b.csv", *options)
    assert shown.code == 2 and what in " ".join(shown.err.split())
