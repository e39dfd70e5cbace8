"""Regions of texts: marked by `|`, or given in another field."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from tests.scoring.test_items import write
from xlexport.scoring.regions import marked_regions, regions_of_field
from xlruntime import TextError

MARKED = {
    b"The horse| raced past| the barn": (b"The horse raced past the barn", ["The horse", "raced past", "the barn"]),
    b"The horse |raced past |the barn\n": (b"The horse raced past the barn\n", ["The horse", "raced past", "the barn"]),
    b"The horse | raced  past | the barn.": (
        b"The horse raced  past the barn.",
        ["The horse", "raced  past", "the barn."],
    ),
    b"|one|": (b"one", ["one"]),
    b" | one |two|\n": (b" one two\n", ["one", "two"]),
    b"un|believ|able": (b"unbelievable", ["un", "believ", "able"]),
    "die Größe|der\tâge".encode(): ("die Größeder\tâge".encode(), ["die Größe", "der\tâge"]),
    b"no marks": (b"no marks", ["no marks"]),
    b"|": (b"", []),
}


@pytest.mark.parametrize("marked", MARKED, ids=str)
def test_marks_are_removed(marked: bytes) -> None:
    text, regions = MARKED[marked]
    found, edges = marked_regions(marked, "it")
    assert found == text
    bounds = [0, *edges, len(text)]
    parts = [text[a:b].decode() for a, b in itertools.pairwise(bounds)]
    assert [part.strip() for part in parts if part.strip()] == regions
    assert all(not part[-1:].isspace() for part in parts[:-1])


@pytest.mark.parametrize("marked", [b"a||b", b"a| |b", b"a |\n| b"])
def test_empty_region_is_refused(marked: bytes) -> None:
    with pytest.raises(TextError, match=r"it: region 2 is empty\. Remove a mark\."):
        marked_regions(marked, "it")


@pytest.mark.full
def test_many_marks_take_linear_time() -> None:
    """Let a million marks be done at once, and not after hours."""
    text, edges = marked_regions(b"ab |" * 1_000_000, "it")
    assert (len(text), len(edges)) == (3_000_000, 1_000_000)


@pytest.mark.parametrize("options", [(), ("--segment-len", "3"), ("--segment-len", "200")], ids=" ".join)
def test_regions_are_sums_of_their_tokens(options: tuple[str, ...], score: Score) -> None:
    marked, text = "The horse |raced\npast | the – barn|.\n".encode(), "The horse raced\npast the – barn.\n".encode()
    shown = score("-", "--per", "region", *options, stdin=marked).succeeded().objects
    assert list(shown[0]) == [
        *("document", "index", "region", "start", "end", "tokens", "scored_tokens", "complete", "words"),
        *("chars", "bytes", "scored_chars", "scored_bytes", "nats", "bits", "context"),
    ]
    assert [record["region"] for record in shown] == ["The horse", "raced\npast", "the – barn", "."]
    assert [text[record["start"] : record["end"]].decode() for record in shown] == [r["region"] for r in shown]
    assert [record["words"] for record in shown] == [2, 2, 3, 0]  # a word that has begun before is not counted again
    tokens = score("-", "--per", "token", *options, stdin=text).succeeded().objects
    bounds = [1, 9, 20, 33, len(text)]
    sums = [-sum(t["log_prob"] for t in tokens[a - 1 : b - 1]) for a, b in itertools.pairwise(bounds)]
    assert [record["nats"] for record in shown] == [None, *map(pytest.approx, sums[1:])]
    assert [record["bytes"] for record in shown] == [9, 11, 13, 2]


def test_entropies_of_words_and_regions(score: Score) -> None:
    """Show the entropy of the first token's prediction, and the sum over the tokens."""
    tokens = score("-", "--per", "token", "--top", "0", stdin=b"The old man").succeeded().objects
    entropy = [record["entropy_bits"] for record in tokens]  # of the bytes after the first
    for level, given in (("word", b"The old man"), ("region", b"The| old| man"), ("line", b"The old man")):
        shown = score("-", "--per", level, "--top", "0", stdin=given).succeeded().objects
        ends = [2, 6, 10] if level != "line" else [10]
        assert (shown[0]["entropy_first_bits"], shown[0]["entropy_sum_bits"]) == (None, None)
        for record, begin, end in zip(shown[1:], ends, ends[1:], strict=False):
            assert record["entropy_first_bits"] == pytest.approx(entropy[begin])
            assert record["entropy_sum_bits"] == pytest.approx(sum(entropy[begin:end]))


APART = {
    'He said, "Don\'t stop!"': ["He", "said", ",", '"', "Don't", "stop", '!"'],
    " ¿Qué (sí)…  \n": ["¿", "Qué", "(", "sí", ")…"],
    "50% of $5 – e-mail": ["50", "%", "of", "$5", "–", "e-mail"],
    "...": ["..."],
}


@pytest.mark.parametrize("options", [(), ("--segment-len", "3"), ("--batch-size", "auto")], ids=" ".join)
@pytest.mark.parametrize("text", APART, ids=str)
@pytest.mark.full
def test_punctuation_is_apart(text: str, options: tuple[str, ...], score: Score) -> None:
    line = ("-", "--per", "word", "--bos", " ", *options)
    raw = text.encode()
    shown = score(*line, "--set", "punctuation=apart", stdin=raw).succeeded().objects
    assert [record["word"] for record in shown] == APART[text]
    assert [raw[record["start"] : record["end"]].decode() for record in shown] == APART[text]
    whole = score(*line, stdin=raw).succeeded().objects
    assert sum(record["bits"] for record in shown) == pytest.approx(sum(record["bits"] for record in whole))
    assert "--set punctuation is for words" in score("-", "--set", "punctuation=apart", "--per", "line", stdin=raw).err


def test_regions_of_another_field(score: Score, tmp_path: Path) -> None:
    text = "Größe âge end"
    regions = ("Größe | âge| end", [0, 6, 10], "6, 10", "[6 9]", 6, "")
    records: list[dict[str, Any]] = [*({"text": text, "regions": given} for given in regions), {"text": text}]
    path = write(tmp_path, "items.jsonl", records)
    shown = score(path, "--field", "text", "--per", "region", "--set=region_field=regions").succeeded().objects
    found: dict[str, list[str]] = {}
    for record in shown:
        found.setdefault(record["document"].rsplit(":")[-1], []).append(record["region"])
    three = ["Größe", "âge", "end"]
    assert list(found.values()) == [three, three, three, three, ["Größe", "âge end"], [text], [text]]


def test_marks_in_a_field_of_json_lines(score: Score, tmp_path: Path) -> None:
    path = write(tmp_path, "items.jsonl", [{"text": text} for text in ("one| two", "a||b", "three")])
    shown = score(path, "--field", "text", "--per", "region")
    assert [record["region"] for record in shown.objects] == ["one", "two", "three"]
    assert f"{path}:2: region 2 is empty. Remove a mark." in shown.err
    assert shown.code == 1


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("one|three", "field 'r' without its marks differs from the text at byte 3."),
        ([4, 2], "field 'r' holds [4, 2], expected rising numbers from 0 to 6."),
        ([7], "field 'r' holds [7], expected rising numbers from 0 to 6."),
        ("4 x", "field 'r' holds '4 x', expected rising numbers"),
        ({"a": 1}, "expected rising numbers"),
        ([True], "expected rising numbers"),
        ([3, 4], "region 2 has only white space."),
    ],
)
def test_regions_that_do_not_fit(given: Any, what: str) -> None:
    with pytest.raises(TextError) as caught:
        regions_of_field("one two", given, "r", "it")
    assert str(caught.value).startswith("it: ") and what in str(caught.value)


def test_marked_texts_have_the_limit_of_whole_documents(score: Score, tmp_path: Path) -> None:
    shown = score("-", "--per", "region", "--set", "max_document_bytes=8", stdin=b"too long|for it")
    assert shown.code == 1 and "standard input: " in shown.err
