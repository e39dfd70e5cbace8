"""`xlexport report` of several documents, of items and of two bundles, without a browser."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.paths import ZEROS, golden_bundle
from tests.report.report_pages import GOLDEN, HOSTILE, check_safety, read_list
from xlexport.report.list_page import ListRow, as_rows, values
from xlexport.report.words import DocumentWords, Held, LeftOut, score_words
from xlruntime import TextError, load

OTHER = golden_bundle(ZEROS)  # reads bytes too, with other weights
ITEMS = [
    {"item": "1a", "sentence": "The cook stirred the soup with a spoon."},
    {"item": "1b", "sentence": "The cook stirred  the soup with a table.\n"},
    {
        "item": "</script><img src=x onerror=alert(1)>{{about}}",
        "sentence": "caf\u00e9 \U0001f600 \u05e9\u05dc\u05d5\u05dd end",
    },
]
CONTEXT = "<b onclick=alert(1)>ship</script>"  # a column's name
STEP = 0.00051  # bits are kept in thousandths


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS), "utf-8")
    return path


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_bytes(PROSE)
    paths[1].write_bytes(HOSTILE)
    return paths


def written(invoke: Invoke, *arguments: str | Path) -> str:
    """Return the page that a command writes."""
    output = Path(str(arguments[1])).parent / "page.html"
    invoke("report", *arguments, "-o", output, "--force", "--threads", "1", "--set", "binary=true").succeeded()
    return output.read_text("utf-8")


def scored(invoke: Invoke, level: str, bundle: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    """Return the records of `score`."""
    done = invoke("score", bundle, *arguments, "--per", level, "--format", "jsonl", "--threads", "1")
    return done.succeeded().objects


def bits_of(records: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the bits of the words that `score` scored completely."""
    return [record["bits"] if record["complete"] else None for record in records]


def shown(steps: Sequence[int | None]) -> list[float | None]:
    """Return the bits that a page shows."""
    return [None if value is None else value / 1000 for value in steps]


def mean(bits: Sequence[float | None]) -> float:
    return float(np.mean([value for value in bits if value is not None]))


@pytest.mark.parametrize("bos", [(), ("--bos", r"\n")])
def test_words_and_sums_of_items_are_those_of_score(invoke: Invoke, items: Path, bos: tuple[str, ...]) -> None:
    options: tuple[str | Path, ...] = (items, "--field", "sentence", "--id-field", "item", *bos)
    page = read_list(written(invoke, GOLDEN, *options))
    records = scored(invoke, "word", GOLDEN, *options)
    for number, total in enumerate(scored(invoke, "document", GOLDEN, *options)):
        document = page.documents[number]
        own = [record for record in records if record["document"] == document["name"]]
        assert document["name"] == total["document"] == ITEMS[number]["item"]
        assert document["text"] == ITEMS[number]["sentence"]
        assert page.words(number) == [record["word"] for record in own] == ITEMS[number]["sentence"].split()
        assert shown(document["bits"][0]) == pytest.approx(bits_of(own), abs=STEP)
        assert (document["bits"][0][0] is None) == (not bos)  # without a token before it, its first byte has no score
        words, bits, per_word, per_byte = document["values"]
        assert (words, bits, per_byte) == (len(own), total["bits"], total["bits_per_byte"])
        assert per_word == pytest.approx(mean(bits_of(own)))
    assert dict(page.about["figures"])["bits per word"] == f"{mean(bits_of(records)):.3f}"
    assert page.about["sides"][0][0] == ""
    notes = [note for note in page.about["notes"] if "without a score" in note]
    assert notes == ([] if bos else ["3 words without a score: a first token has no context. --bos gives it one."])


def test_items_have_their_columns(invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "items.csv"
    table.write_text("item,condition,sentence,words\n1,a,The cook left.,2\n1,b,The cook sat.,\n2,,x,<b>\n", "utf-8")
    options = (table, "--field", "sentence", "--id-field", "item")
    for keep, names, rows in (
        ((), ["condition", "words"], [["a", "2"], ["b", ""], ["", "<b>"]]),
        (("--keep", "item,condition"), ["item", "condition"], [["1", "a"], ["1", "b"], ["2", ""]]),
        (("--keep", ""), [], [[], [], []]),
    ):
        output = tmp_path / "page.html"
        done = invoke("report", GOLDEN, *options, *keep, "-o", output, "--force")
        assert done.code == 1  # one document of one byte, which is left out and keeps its columns
        page = read_list(output.read_text("utf-8"))
        assert [document["name"] for document in page.documents] == ["1", "1", "2"]
        assert (page.about["fields"], [document["fields"] for document in page.documents]) == (names, rows)


def test_totals_are_those_of_score(invoke: Invoke, texts: list[Path]) -> None:
    page = read_list(written(invoke, GOLDEN, *texts))
    scores = list(load(GOLDEN, threads=1).score([path.read_bytes() for path in texts]))
    bits, scored_bytes = sum(score.bits for score in scores), sum(score.scored_bytes for score in scores)
    words = bits_of(scored(invoke, "word", GOLDEN, *texts, "--set", "binary=true"))
    assert page.about["figures"] == [
        ["bits per byte", f"{bits / scored_bytes:.3f}"],
        ["bits per word", f"{mean(words):.3f}"],
        ["bits", f"{bits:,.2f}"],
        ["documents", "2"],
        ["words", f"{len(words)}"],
    ]
    assert page.documents[1]["text"].encode("utf-8", "surrogateescape") == HOSTILE
    assert page.about["title"] == "a.txt and 1 more"


def test_two_bundles_are_compared_by_word(invoke: Invoke, items: Path) -> None:
    options = (items, "--field", "sentence", "--id-field", "item")
    page = read_list(written(invoke, GOLDEN, *options, "--with", OTHER))
    totals = [scored(invoke, "document", bundle, *options) for bundle in (GOLDEN, OTHER)]
    sides = [bits_of(scored(invoke, "word", bundle, *options)) for bundle in (GOLDEN, OTHER)]
    differences = [None if a is None or b is None else a - b for a, b in zip(*sides, strict=True)]
    for side, bits in enumerate(sides):
        assert shown([step for document in page.documents for step in document["bits"][side]]) == (
            pytest.approx(bits, abs=STEP)
        )
    steps = [step for document in page.documents for step in document["difference"]]
    assert shown(steps) == pytest.approx(differences, abs=STEP)
    known = [value for value in differences if value is not None]
    for document, one, other in zip(page.documents, *totals, strict=True):
        _, of_a, of_b, difference, per_word = document["values"]
        own = [value for value in shown(document["difference"]) if value is not None]
        assert (of_a, of_b) == (one["bits"], other["bits"])
        assert (difference, per_word) == pytest.approx((sum(own), mean(own)), abs=len(own) * STEP)
    figures = dict(page.about["figures"])
    assert figures["A, bits"] == f"{sum(total['bits'] for total in totals[0]):,.2f}"
    assert figures["A − B, bits"] == f"{sum(known):+,.2f}"
    assert [name for name, _ in page.about["sides"]] == [str(GOLDEN), str(OTHER)]  # both folders are called `bundle`
    assert max(map(abs, known)) <= 2 * page.about["ceiling"]["difference"]


def test_one_document_with_two_bundles(invoke: Invoke, prose: Path) -> None:
    page = read_list(written(invoke, GOLDEN, prose, "--with", OTHER, "--title", "Times"))
    assert [document["text"] for document in page.documents] == [PROSE.decode()]
    assert page.about["title"] == "Times"


@pytest.mark.full
def test_bundles_of_other_tokenizers_are_compared_where_both_score_whole_words(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    vocabulary, bundle, source = tmp_path / "vocab.txt", tmp_path / "words.bundle", tmp_path / "it.txt"
    vocabulary.write_text("\n".join(("<unk>", "the", "deep", "sea", *(f"<{number}>" for number in range(252)))))
    invoke("convert", checkpoint, "-o", bundle, "--tokenizer", vocabulary, "--segments", "2").succeeded()
    source.write_text("the deep sea\n")
    page = read_list(written(invoke, GOLDEN, source, "--with", bundle))
    (document,) = page.documents
    assert page.words(0) == ["the", "deep", "sea"]
    a, b = (shown(side) for side in document["bits"])
    assert (a[0], b[0]) == (None, None)  # as one token it has no score, and as three bytes only two have one
    differences = [
        one - other for one, other in zip(a[1:], b[1:], strict=True) if one is not None and other is not None
    ]
    assert shown(document["difference"]) == pytest.approx([None, *differences], abs=2 * STEP)
    assert document["values"][3] == pytest.approx(sum(differences), abs=4 * STEP)


def test_sides_with_other_words_are_refused() -> None:
    model, held = load(GOLDEN, threads=1), Held("a", b"one two three")
    (words,) = score_words(model, model.evaluation(), [held])
    assert isinstance(words, DocumentWords)
    other = dataclasses.replace(words, starts=words.starts + 1)
    with pytest.raises(TextError, match=r"a: 3 words for A and 3 for B at other places, so they cannot be compared"):
        as_rows([held], [[words], [other]])
    failed = as_rows([held], [[words], [TextError("a: too long.")]])
    assert failed == [LeftOut("a", "too long.", failed=True)]
    summary = dataclasses.replace(words.summary, bits=math.nan, bits_per_byte=None)
    row = ListRow(held, (dataclasses.replace(words, bits=np.full(3, np.nan), summary=summary),))
    assert values(row) == [3.0, None, None, None]


@pytest.fixture
def contexts(tmp_path: Path) -> Path:
    path = tmp_path / "contexts.csv"
    path.write_text(
        f"id,kitchen,{CONTEXT},sentence\n"
        "1,He was in the kitchen.,He was on the ship.,The cook stirred the soup.\n"
        "2,She was in the kitchen.,,The captain\u2019s tea.\n",
        "utf-8",
    )
    return path


def test_two_contexts_are_compared_by_word(invoke: Invoke, contexts: Path) -> None:
    options = (contexts, "--field", "sentence", "--id-field", "id")
    fields = ("kitchen", CONTEXT)
    page = read_list(
        written(invoke, GOLDEN, *options, *(part for name in fields for part in ("--context-field", name)))
    )
    assert [name for name, _ in page.about["sides"]] == [f"context: {name}" for name in fields]
    for side, name in enumerate(fields):
        own = (*options, "--context-field", name, "--keep", "")
        steps = [step for document in page.documents for step in document["bits"][side]]
        assert shown(steps) == pytest.approx(bits_of(scored(invoke, "word", GOLDEN, *own)), abs=STEP)
        totals = [total["bits"] for total in scored(invoke, "document", GOLDEN, *own)]
        assert [document["values"][1 + side] for document in page.documents] == totals
        alone = read_list(written(invoke, GOLDEN, *own))
        assert [document["values"][1] for document in alone.documents] == totals
        assert alone.about["sides"][0][0] == f"context: {name}"
    first, second = page.documents
    assert first["contexts"] == ["He was in the kitchen. ", "He was on the ship. "]
    assert second["contexts"] == ["She was in the kitchen. ", ""]
    assert first["values"][3] == pytest.approx(first["values"][1] - first["values"][2])
    assert second["bits"][1][0] is None and second["difference"][0] is None  # an empty field means no context
    assert second["difference"][1] is not None
    assert page.about["fields"] == []  # contexts are below the text
    assert any(note.startswith("B: 1 word without a score") for note in page.about["notes"])


def test_one_context(invoke: Invoke, contexts: Path) -> None:
    options = (contexts, "--field", "sentence", "--context-field", "kitchen")
    page = read_list(written(invoke, GOLDEN, *options))
    totals = [total["bits"] for total in scored(invoke, "document", GOLDEN, *options, "--keep", "")]
    assert [document["values"][1] for document in page.documents] == totals
    assert page.about["sides"][0][0] == "context: kitchen"
    assert page.about["fields"] == ["id", CONTEXT]
    kept = read_list(written(invoke, GOLDEN, *options, "--keep", "kitchen"))
    assert kept.documents[0]["fields"] == ["He was in the kitchen."]


def test_item_without_a_context_field_is_left_out(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"s": "one two", "a": "x", "b": "y"}\n{"s": "three four", "a": "x"}\n')
    done = invoke("report", GOLDEN, path, "--field", "s", "--context-field", "a", "--context-field", "b")
    assert done.code == 1 and "expected text in field 'b', found only 's', 'a'" in done.err
    page = read_list(path.with_suffix(".html").read_text("utf-8"))
    assert ["why" in document for document in page.documents] == [False, True]


def test_bundle_without_a_tokenizer_is_refused(invoke: Invoke, prose: Path) -> None:
    bundle = GOLDEN.parents[1] / "pre_lnorm_empty" / "bundle"
    refused = invoke("report", GOLDEN, prose, "--with", bundle).error
    assert f"{bundle}: a bundle without a tokenizer" in refused
    assert not prose.with_suffix(".html").exists()


def test_documents_without_a_score_are_listed_with_the_reason(
    invoke: Invoke, tmp_path: Path, texts: list[Path]
) -> None:
    (tmp_path / "x.txt").write_text("x")
    output = tmp_path / "page.html"
    done = invoke(
        "report", GOLDEN, *texts, tmp_path / "x.txt", tmp_path / "none.txt", "-o", output, "--set", "binary=true"
    )
    assert done.code == 1
    assert f"{tmp_path / 'x.txt'}: left out: 1 of at least 2 tokens, so nothing to score." in done.err
    assert "No such file" in done.err and "2 documents could not be scored." in done.err
    page = read_list(output.read_text("utf-8"))
    assert ["why" in document for document in page.documents] == [False, False, True, True]
    assert "No such file" in page.documents[3]["why"]
    assert "2 documents could not be scored." in page.about["notes"]


def test_nothing_is_written_if_no_document_has_a_score(invoke: Invoke, tmp_path: Path) -> None:
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("x")
    output = tmp_path / "page.html"
    refused = invoke("report", GOLDEN, tmp_path / "x.txt", tmp_path / "y.txt", "-o", output)
    assert "x.txt: 1 of at least 2 tokens" in refused.error
    assert not output.exists()


def test_what_a_page_has_no_room_for_is_said(invoke: Invoke, items: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (items, "--field", "sentence", "--id-field", "item", "--force")
    monkeypatch.setattr("xlexport.report.words.MOST_DOCUMENTS", 2)
    monkeypatch.setattr("xlexport.report.list_page.MOST_DOCUMENTS", 2)
    done = invoke("report", GOLDEN, *options).succeeded()
    page = read_list(items.with_suffix(".html").read_text("utf-8"))
    said = "1 further document left out: a page has at most 2."
    assert len(page.documents) == 2 and said in page.about["notes"] and said in done.err
    monkeypatch.setattr("xlexport.report.words.MOST_BYTES", 79)
    done = invoke("report", GOLDEN, *options).succeeded()  # 39 and 41 bytes
    page = read_list(items.with_suffix(".html").read_text("utf-8"))
    why = "too long: a page has room for 79 bytes of text in all"
    assert page.documents[1] == {"name": "1b", "fields": [], "why": why}
    assert f"1b: left out: {why}" in done.err and "1 document left out, as the page has no room for more." in done.err


def test_nothing_of_items_is_markup_or_script(invoke: Invoke, items: Path, contexts: Path) -> None:
    title = "</title><script>alert('{{script}}')</script>"
    shared = ("--field", "sentence", "--title", title)
    page = written(invoke, GOLDEN, items, *shared, "--id-field", "item", "--with", OTHER)
    check_safety(page, title, ("onerror", "stirred", "{{about}}", "<script>alert"))
    assert page == written(invoke, GOLDEN, items, *shared, "--id-field", "item", "--with", OTHER)
    page = written(invoke, GOLDEN, contexts, *shared, "--context-field", "kitchen", "--context-field", CONTEXT)
    check_safety(page, title, ("<b onclick", "ship</script>"))
    assert "onclick" in json.dumps(read_list(page).about)
    assert "<b" in json.dumps(read_list(written(invoke, GOLDEN, contexts, *shared)).about["fields"])


def test_folder_of_documents(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "v1.2"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_bytes(PROSE)
    invoke("report", GOLDEN, folder).succeeded()
    page = read_list((tmp_path / "v1.2.html").read_text("utf-8"))
    assert [Path(document["name"]).name for document in page.documents] == ["a.txt", "b.txt"]
    monkeypatch.chdir(folder)
    invoke("report", GOLDEN, ".", "-o", "page.html").succeeded()
    invoke("report", GOLDEN, ".", "-o", "page.html", "--force").succeeded()  # the page itself is not a document
    assert len(read_list(Path("page.html").read_text("utf-8")).documents) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("a.txt", "b.txt"), "Several files give the page no name. Name it with -o."),
        (("*.txt",), "*.txt gives the page no name. Name it with -o."),
        ((".",), "gives the page no name. Name it with -o."),
        (("a.txt", "b.txt", "-o", "p.html", "--ids"), "A page of words needs text, but --ids reads token ids."),
        (("a.txt", "b.txt", "-o", "p.html", "--top", "3"), "--top is for a page of tokens, of a single document."),
        (("a.txt", "--context-field", "x"), "--context-field is for JSON lines and tables. Add --field."),
        (("a.txt", "--keep", "x"), "--keep is for JSON lines and tables. Add --field."),
        (("a.txt", "--field", "s", *("--context-field", "x") * 3), "--context-field is given 3 times"),
        (("a.txt", "--ids", "--picture", "w.svg"), "--ids reads token ids"),
        (("-", "--field", "s", *("--context-field", "a") * 2, "-o", "p.html"), "Two contexts"),
        (("a.txt", "--field", "s", *("--context-field", "x") * 2, "--with", "b"), "two bundles or two contexts"),
        (("a.txt", "b.html", "-o", "b.html", "--force"), "b.html is also an input"),
    ],
)
def test_options_that_do_not_go_together(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "b.html"):
        Path(name).write_text("1 2 3")
    refused = invoke("report", GOLDEN, *options)
    assert refused.code == 2 and words in refused.err
    assert Path("b.html").read_text() == "1 2 3"
