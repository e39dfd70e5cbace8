"""`score --group`: rows of one item are one text, and each row has a record with its columns."""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score, interrupted
from tests.scoring.test_items import csv_rows, write
from xlexport.scoring import resume
from xlruntime.tokenizers.vocabulary import Vocabulary

WORDS = ("The", "cook", "don", "'t", "naïve", "–", "(«", "soup,", "日本", "it", "a b", "of the")


def rows_of_items(seed: int, items: int = 3) -> list[dict[str, Any]]:
    """Return rows of words; some have white space around them, or in them."""
    draws = random.Random(seed)
    return [
        {"item": f"s{item}", "zone": str(zone), "word": draws.choice((" ", "", "")) + draws.choice(WORDS)}
        for item in range(items)
        for zone in range(draws.randint(1, 12))
    ]


def text_of(rows: list[dict[str, Any]], join: str) -> tuple[str, list[int]]:
    """Return the text of rows by another rule than the product's, and the place after each row."""
    text, ends = "", []
    for row in rows:
        text += ("" if not text or row["word"][0] == " " else join) + row["word"]
        ends.append(len(text.encode()))
    return text, ends


@pytest.mark.parametrize("join", [" ", "", " – "])
@pytest.mark.parametrize("name", ["i.csv", "i.tsv.gz", "i.jsonl"])
def test_sums_of_rows_are_those_of_their_tokens(name: str, join: str, score: Score, tmp_path: Path) -> None:
    rows = rows_of_items(len(name) + len(join))
    path = write(tmp_path, name, rows)
    per = "region" if join else "word"
    given = ("--field=word", "--group=item", f"--set=join={join}", r"--bos=\n", "--format=csv", "--per", per)
    records = csv_rows(score(path, *given).succeeded().out)
    assert [(record["item"], record["zone"]) for record in records] == [(row["item"], row["zone"]) for row in rows]
    for item, same in itertools.groupby(rows, lambda row: str(row["item"])):
        text, ends = text_of(list(same), join)
        own = [record for record in records if record["item"] == item]
        assert {record["document"] for record in own} == {f"{path}:item={item}"}
        sums = [0.0] * len(ends)
        for token in score("-", "--per", "token", "--bos", r"\n", "--json", stdin=text.encode()).succeeded().objects:
            sums[bisect.bisect_left(ends, token["end"])] += token["surprisal_bits"]
        assert [float(record["bits"]) for record in own] == pytest.approx(sums, abs=1e-6)
        assert [record["complete"] for record in own] == ["true"] * len(own)


def test_token_counts_for_the_row_in_which_it_ends(
    words_bundle: Callable[[Any], Path], score: Score, tmp_path: Path
) -> None:
    library = pytest.importorskip("tokenizers")
    pieces = {text: number for number, text in enumerate(("Ġ", "d", "o", "n", "t", "'", "do", "don", "don'", "Ġdon'"))}
    merges = [("d", "o"), ("do", "n"), ("don", "'"), ("Ġ", "don'")]
    tokenizer = library.Tokenizer(library.models.BPE(pieces, merges))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    rows = [{"item": "1", "part": part, "word": word} for part, word in enumerate(("do", " don", "'t", "t"))]
    path = write(tmp_path, "i.jsonl", rows)
    options = ("--field", "word", "--group", "item", "--set=join=", "--json")
    records = score(path, *options, bundle=words_bundle(tokenizer)).succeeded().objects
    found = [(record["word"], record["part"], record["tokens"]) for record in records]
    assert found == [("do", 0, 1), ("don", 1, 0), ("'t", 2, 2), ("t", 3, 1)]  # do | Ġdon' | t | t


def test_groups_that_fail_name_their_row(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "i.csv"
    lines = ("item,word", "1,one", "1,two", "2,three", "2,", "2,four", "1,five", "3,six", "3,x,y", "4,se ven")
    path.write_text("\n".join(lines))
    shown = score(path, "--field", "word", "--group", "item", "--json")
    assert (shown.code, [record["word"] for record in shown.objects]) == (1, ["one", "two", "se ven"])
    errors = [json.loads(line)["error"] for line in shown.err.splitlines() if line.startswith('{"error')]
    assert errors == [
        f"{path}:5: no text in field 'word'.",
        f"{path}:7: item '1' again, after rows of others.",
        f"{path}:9: 3 cells, expected 2 as in the first row.",
    ]
    assert "no column 'story'" in score(path, "--field", "word", "--group", "story").err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--group", "item"), "--group is for JSON lines and tables. Add --field."),
        (("--field", "word", "--set=join="), "--set join is for --group."),
        (("--field", "word", "--group", "item", "--per", "token"), "--group writes a record for each row"),
        (("--field", "word", "--group", "item", "--ids"), "--group writes a record for each row"),
        (
            ("--field", "word", "--group", "item", "--set", "punctuation=apart"),
            "--group makes a word or region of each",
        ),
        (("--set", "delimiter=;"), "--set delimiter is for tables. Add --field."),
        (("--field", "word", "--set", "delimiter=;;"), "';;' is not one character"),
    ],
)
def test_combinations_that_are_refused(options: tuple[str, ...], problem: str, score: Score, tmp_path: Path) -> None:
    shown = score(write(tmp_path, "i.csv", rows_of_items(1)), *options)
    assert shown.code == 2
    assert problem in shown.err


def test_groups_resume_and_another_group_is_refused(
    score: Score,
    stop_after: Callable[[int], None],
    at_each_step: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, whole, output = write(tmp_path, "i.csv", rows_of_items(7, 5)), tmp_path / "a.csv", tmp_path / "b.csv"
    options = ("--field", "word", "--group", "item")
    score(path, *options, "-o", whole).succeeded()
    stop_after(3)
    interrupted(score, path, *options, "-o", output)
    monkeypatch.undo()
    changed = score(path, "--field", "word", "--per", "word", "-o", output, "--resume").error
    assert "--group was item, now not given" in changed
    monkeypatch.setattr(resume, "READING", 1)
    older = score(path, *options, "-o", output, "--resume").error
    assert "texts as this version reads them was 2, now 1" in older
    monkeypatch.undo()
    score(path, *options, "-o", output, "--resume").succeeded()
    assert output.read_bytes() == whole.read_bytes()


def test_vocabulary_of_words_reads_rows(words_bundle: Callable[[Any], Path], score: Score, tmp_path: Path) -> None:
    vocabulary = Vocabulary("words", ("<eos>", "<unk>", "one", "two"), unk="<unk>", line_end="<eos>")
    path = write(tmp_path, "i.csv", [{"item": "1", "word": word} for word in ("one", "two", "three")])
    records = score(path, "--field", "word", "--group", "item", "--json", bundle=words_bundle(vocabulary)).objects
    assert [record["tokens"] for record in records] == [1, 1, 2]  # the last row has the end of the text
