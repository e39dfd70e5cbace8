"""`xlexport compare`: pairs of records of two tables, their differences, and tables that do not match."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import golden_bundle
from xlexport.scoring.comparison import _wilson

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


def rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


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
    texts = list(dict.fromkeys(record["document"] for record in records))
    by_item = [[r["difference"] for r in records if r["document"] == d and r["difference"] is not None] for d in texts]
    mean, error = mean_and_error([sum(values) / len(values) for values in by_item])
    (line,) = shown.err.splitlines()
    assert line.startswith("7 records, 2 of them without a value on one side: bits A ")
    assert f", A − B {mean:.4f} ± {error:.4f} (mean and standard error over 2 items, column document)" in line
    lower = sum(difference < 0 for values in by_item for difference in values)
    assert line.endswith(f", t(1) = {mean / error:.2f}; A is lower in {lower / 5:.1%} of 5 pairs")
    summary = invoke("compare", a, b, "--json").succeeded().object
    assert (summary["records"], summary["compared"], summary["n_items"]) == (7, 5, 2)
    assert (summary["mean_difference"], summary["standard_error"]) == pytest.approx((mean, error))
    assert summary["mean_a"] - summary["mean_b"] == pytest.approx(mean)
    over_words = invoke("compare", a, b, "--json", "--items", "word").succeeded().object
    known = [record["difference"] for record in records if record["difference"] is not None]
    assert (over_words["mean_difference"], over_words["standard_error"]) == pytest.approx(mean_and_error(known))
    assert over_words["share"] == pytest.approx(lower / 5)  # words are items: so the pairs are independent
    assert over_words["share_from"] < lower / 5 < over_words["share_to"]
    assert "one item has no standard error" in invoke("compare", a, b, "--where", f"document={texts[0]}").err
    output = tmp_path / "out.tsv"
    invoke("compare", a, b, "-o", output).succeeded()
    found = rows(output, "\t")
    assert [row["difference"] for row in found] == [
        "" if r["difference"] is None else str(r["difference"]) for r in records
    ]
    assert "a file is there already" in invoke("compare", a, b, "-o", output).error
    invoke("compare", a, b, "-o", output, "--force").succeeded()


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


ITEMS = """item,condition,critical,sentence
1,expected,soup,"He ate the soup, slowly."
2,odd,the mouse,We saw a mouse
1,odd,door,"He ate the door, slowly."
3,odd,car,He drove a car
2,expected,moon,We saw a moon again
3,expected,bus,He drove a bus
3,other,bus,He drove a bus
"""


@pytest.mark.parametrize("id_field", [(), ("--id-field", "item")])
def test_conditions_in_one_table(id_field: tuple[str, ...], invoke: Invoke, tmp_path: Path) -> None:
    """Pair rows by item and place, in any order, and take the error over items."""
    (tmp_path / "items.csv").write_text(ITEMS)
    words = tmp_path / "words.csv"
    line = ("--field", "sentence", "--per", "word", "--set", "punctuation=apart", *id_field, "--bos", " ")
    invoke("score", BUNDLES[0], tmp_path / "items.csv", *line, "-o", words, "--threads", "1").succeeded()
    bits = {(row["item"], row["condition"], row["index"]): float(row["bits"]) for row in rows(words)}
    pair = ("compare", words, "--pair", "condition=expected,odd")
    shown = invoke(*pair, "--format", "csv").succeeded()
    found = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["item"], row["index"]) for row in found] == [
        *(("1", str(n)) for n in range(7)), *(("2", str(n)) for n in range(5)), *(("3", str(n)) for n in range(4)),
    ]  # fmt: skip
    assert found[11]["bits_odd"] == found[11]["difference"] == ""  # "again" has no partner
    assert "16 records, 1 of them without a value on one side" in shown.err
    for row in found[:11]:
        expected = bits[row["item"], "expected", row["index"]] - bits[row["item"], "odd", row["index"]]
        assert float(row["difference"]) == expected
    critical = invoke(*pair, "--by", "item,index", "--where", "word=critical", "--json").succeeded().object
    differences = [bits[item, "expected", "3"] - bits[item, "odd", "3"] for item in ("1", "3")]
    assert (critical["n_items"], critical["records"]) == (2, 3)  # no word of item 2 is "the mouse"
    assert (critical["mean_difference"], critical["standard_error"]) == pytest.approx(mean_and_error(differences))
    assert critical["t"] == pytest.approx(critical["mean_difference"] / critical["standard_error"])
    by_index = invoke(*pair, "--by", "item", "--where", "index=3", "--json").succeeded().object
    assert by_index["n_items"] == 3
    for options, problem in {
        ("--by", "item"): f"{words}:3: a second row of condition 'expected' with item '1'; the first is {words}:2. "
        "Add a column to --by, for instance index, or",
        ("--by", "word"): f"{words}:20: a second row of condition 'odd' with word 'He'",
        ("--by", "critical,index"): "no row of 'expected' has the critical and index of one of 'odd'",
        ("--pair", "condition=expected,od"): "no row has condition 'od', found only 'odd', 'other', 'expected'",
        ("--where", "item=9"): "no row has condition 'expected', found only no rows",
        ("--where", "itm=9"): "no column 'itm', found only 'document', 'item'",
    }.items():
        assert problem in invoke(*pair, *options).error
    assert "Add a column to --by, or choose rows" in invoke(*pair, "--by", "index").error


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
        *(("1", "It"), ("1", "barked"), ("2", "It"), ("2", "was"), ("2", "wet"))
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
        "again": "document,bits,difference\nd,1.5,2\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)

    def refusal(a: str, b: str, *options: str) -> str:
        shown = invoke("compare", tmp_path / f"{a}.csv", tmp_path / f"{b}.csv", *options)
        assert (shown.code, shown.out) == (1, "")
        return str(shown.error).replace(str(tmp_path) + "/", "")

    same = "Make both tables from the same documents in the same order, or"
    without = f"{same} leave word out: --by document,index."
    assert refusal("a", "word") == f"Error: word.csv:3: word is 'cat', but 'dog' in a.csv:3. {without}"
    for pair in (("a", "short"), ("short", "a")):
        refused = refusal(*pair, "-o", str(tmp_path / "out.csv"))
        assert refused == f"Error: a.csv:3: a row that the other table does not have. {same} choose rows with --where."
    assert refusal("a", "text") == "Error: text.csv:3: bits is 'many', expected a number or nothing. Check --value."
    assert "nan.csv:2: bits is 'nan', expected a number" in refusal("a", "nan")
    assert "columns.csv:2: no column 'bits', found only 'document', 'word'." in refusal("a", "columns")
    assert "no column 'item', found only" in refusal("a", "a", "--by", "item")
    assert "no row of either table has the values of --where" in refusal("a", "word", "--where", "word=mouse")
    assert "without rows" in refusal("a", "none")
    assert "broken.csv:2: 2 cells, expected 4" in refusal("a", "broken")
    assert "missing.csv: No such file" in refusal("a", "missing")
    twice = refusal("again", "again", "--by", "document,difference", "-o", str(tmp_path / "output.csv"))
    assert "column 'difference' would be in the output twice" in twice
    assert {path.stem for path in tmp_path.iterdir()} == files.keys()
    invoke("compare", tmp_path / "a.csv", tmp_path / "word.csv", "--by", "document,index").succeeded()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--force",), "--force is about an output file. Give it with -o."),
        (("--json", "-o", "x.csv"), "--json prints the summary alone. Leave out --output and --format."),
        (("--format", "parquet"), "Parquet needs an output file. Name one with -o."),
        (("-o", "x.txt"), "x.txt: no format has this ending"),
        (("--pair", "x=a,b"), "Give a second table, or two conditions of one table: --pair condition=A,B."),
        *((("--pair", text), "is not a column with two values") for text in ("x", "x=a", "=a,b", "x=a,a", "x=a,b,c")),
        (("--where", "x"), "'x' is not a column with a value, such as index=3."),
    ],
)
def test_usage(options: tuple[str, ...], what: str, invoke: Invoke) -> None:
    shown: Any = invoke("compare", "a.csv", "b.csv", *options)
    assert shown.code == 2 and what in " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("successes", "n", "interval"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_interval_of_a_share_is_that_of_newcombe(successes: int, n: int, interval: tuple[float, float]) -> None:
    """Compare with published figures: Newcombe (1998), Statistics in Medicine 17, Table I, method 3."""
    assert _wilson(successes, n) == pytest.approx(interval, abs=1e-4)
