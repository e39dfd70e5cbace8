"""Pages of several documents and of two bundles in a headless Chromium: opening, colours, sums and sorting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.browser import Browser, missing_browser
from tests.helpers.paths import ZEROS, golden_bundle
from tests.report.conftest import shown
from tests.report.report_pages import GOLDEN, HOSTILE, ListPage, read_list, scale
from tests.report.test_browser import rgb
from xlexport.page.assemble import COLOUR_LEVELS
from xlexport.report.list_page import Side, score_sides, write_list
from xlexport.report.words import Held, LeftOut
from xlruntime import load

REASON = missing_browser()
pytestmark = [pytest.mark.full, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

NAME = "<img src=x onerror=document.title='broken'>\u202e</script>"
LONG = "one two three four five six seven eight nine ten\n" * 60
COLUMNS = {"condition": "unexpectedly", "address": "x" * 300}
DOCUMENTS: list[Held | LeftOut] = [
    Held("1 spoon", b"The cook stirred the soup with a spoon."),
    Held(NAME, HOSTILE, contexts=(f"{NAME} before ", None)),
    Held("3 long", LONG.encode()),
    LeftOut("4 <b>missing</b>", "no such <i>file</i>", failed=True),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    models = [load(bundle, threads=1) for bundle in (GOLDEN, golden_bundle(ZEROS))]
    sides = [Side(name, model, model.evaluation()) for name, model in zip((NAME, "other"), models, strict=True)]
    write_list(score_sides(DOCUMENTS, 0, sides), folder / "two.html", title="Two")
    write_list(
        score_sides(DOCUMENTS[:2], 0, [Side("", models[0], models[0].evaluation())]), folder / "one.html", title="One"
    )
    write_list(score_sides(DOCUMENTS[:1], 0, sides), folder / "single.html", title="Single")
    items = [Held(str(number), b"The cook stirred the soup.", columns=COLUMNS) for number in range(2)]
    write_list(score_sides(items, 0, sides[:1]), folder / "items.html", title="Items")
    return folder


@pytest.fixture
def two(browser: Browser, pages: Path) -> Iterator[Browser]:
    yield from shown(browser, pages / "two.html")


@pytest.fixture
def one(browser: Browser, pages: Path) -> Iterator[Browser]:
    yield from shown(browser, pages / "one.html")


@pytest.fixture
def data(pages: Path) -> ListPage:
    return read_list((pages / "two.html").read_text("utf-8"))


def click(browser: Browser, selector: str, number: int = 0) -> None:
    browser.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, number)


WORD = ".block .word"


def texts(browser: Browser, selector: str) -> list[str]:
    found: Any = browser.run(
        "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
    )
    return list(found)


def figure(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def test_documents_are_listed_and_open_their_text_and_table(two: Browser, data: ListPage) -> None:
    assert texts(two, ".name") == ["1 spoon", NAME.replace("\u202e", "U+202E"), "3 long"]
    assert texts(two, ".why") == ["left out: no such <i>file</i>"]
    assert texts(two, ".block") == []
    click(two, ".name")
    assert texts(two, ".block") == ["The cook stirred the soup with a spoon."]
    assert texts(two, WORD) == data.words(0)
    assert two.run("return document.querySelector('.name').getAttribute('aria-expanded')") == "true"
    document = data.documents[0]
    assert (document["bits"][0][0], document["difference"][0]) == (None, None)  # it begins with a token without score
    rows = two.run("""
        const rows = [...document.querySelectorAll(".words tbody tr")];
        return rows.map((row) => [...row.cells].map((cell) => cell.textContent));""")
    assert [row[0] for row in rows] == data.words(0)
    sums = texts(two, ".words tfoot td")
    for column, bits in enumerate((*document["bits"], document["difference"]), 1):
        assert rows[0][column] == ""
        numbers = [value / 1000 for value in bits[1:]]
        assert [figure(row[column]) for row in rows[1:]] == pytest.approx(numbers, abs=0.0051)
        assert figure(sums[column]) == pytest.approx(sum(numbers), abs=0.0051)
    for width in (360, 768):
        two.resize(width, 700)
        assert two.run("return document.documentElement.scrollWidth") <= width
    click(two, ".name")
    assert texts(two, ".block") == []


def test_hostile_texts_and_names_are_shown_as_they_are(two: Browser) -> None:
    click(two, ".name", 1)
    (text,) = texts(two, ".block")
    assert "<script>document.title='broken'</script><img src=x onerror=alert(1)> &amp;" in text
    for glyph in ("NUL", "ESC", "\\xff", "U+202E"):
        assert glyph in text, glyph
    assert not set("\0\x1b\u202e") & set(text)
    assert two.run("return document.title") == "Two"
    assert (
        two.run("return document.images.length + document.querySelectorAll('main b, main i:not(.block i)').length") == 0
    )
    assert texts(two, ".context") == [f"Context of A: {NAME} before ".replace("\u202e", "U+202E"), "Context of B: none"]
    assert texts(two, "#sides bdi") == [NAME.replace("\u202e", "U+202E"), "other"]


def test_colours_show_the_difference_and_either_side(two: Browser, data: ListPage) -> None:
    click(two, ".name")
    document, top = data.documents[0], data.about["ceiling"]
    colour = (
        "return [...document.querySelectorAll('.block .word')].map((span) => getComputedStyle(span).backgroundColor)"
    )
    cases = [("difference", document["difference"], top["difference"]), ("1", document["bits"][1], top["word"])]
    for mode, steps, most in cases:
        values = [value or 0 for value in steps]  # a word without a score has no colour
        click(two, f"[name=mode][value='{mode}']")
        levels = [min(COLOUR_LEVELS - 1, int(abs(value) / 1000 / most * COLOUR_LEVELS)) for value in values]
        letters = ["c" if value < 0 else "l" for value in values]
        expected = [
            rgb(scale("light", letter)[level]) if level else "rgba(0, 0, 0, 0)"
            for letter, level in zip(letters, levels, strict=True)
        ]
        assert two.run(colour) == expected, mode
        dotted = two.run(
            "return [...document.querySelectorAll('.block .word')].map((s) => s.classList.contains('minus'))"
        )
        assert dotted == [letter == "c" and level > 0 for letter, level in zip(letters, levels, strict=True)]
    assert texts(two, "#meaning")[0].startswith("Darker words")


def test_list_is_sorted_by_any_column(two: Browser, data: ListPage) -> None:
    names = ["1 spoon", NAME.replace("\u202e", "U+202E"), "3 long"]
    bits = {name: document["values"][1] for name, document in zip(names, data.documents, strict=False)}
    heads = texts(two, "#heads button")
    assert heads == ["document", "words", "A, bits", "B, bits", "A − B, bits", "A − B per word"]
    click(two, "#heads button", 2)
    assert texts(two, ".name") == sorted(names, key=bits.__getitem__, reverse=True)
    assert texts(two, "#documents > tbody > tr:first-child > td:first-child")[-1] == "4 <b>missing</b>"
    click(two, "#heads button", 2)
    assert texts(two, ".name") == sorted(names, key=bits.__getitem__)
    assert two.run("return document.querySelectorAll('#heads th')[2].getAttribute('aria-sort')") == "ascending"


def test_long_tables_are_drawn_in_pieces(two: Browser) -> None:
    click(two, ".name", 2)
    assert len(texts(two, WORD)) == 600
    assert texts(two, ".words") == []
    click(two, "summary")
    two.wait("document.querySelectorAll('.words tbody tr').length === 500")
    assert texts(two, ".more") == ["Show 100 more words of 600"]
    click(two, ".more")
    assert len(texts(two, ".words tbody tr")) == 600
    assert two.run("return document.querySelector('.more').hidden")


def test_only_document_is_open_at_first(browser: Browser, pages: Path) -> None:
    for opened in shown(browser, pages / "single.html"):
        assert texts(opened, ".block") == ["The cook stirred the soup with a spoon."]
        assert opened.run("return document.querySelector('#all').checkVisibility()") is False


def test_page_of_one_side(one: Browser) -> None:
    assert texts(one, "#heads button") == ["document", "words", "bits", "bits per word", "bits per byte"]
    assert one.run("return document.querySelector('#modes').checkVisibility()") is False
    click(one, "#all")
    assert len(texts(one, ".block")) == 2 and texts(one, "#all") == ["Close all"]
    assert texts(one, ".unscored")[0] == "The"
    click(one, "#all")
    assert texts(one, ".block") == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_figures_and_words_of_items_are_not_broken(browser: Browser, pages: Path, width: int) -> None:
    for page in shown(browser, pages / "items.html"):
        page.resize(width, 700)
        assert page.run("return document.documentElement.scrollWidth") <= width
        lines = page.run("""
            return [...document.querySelectorAll("td + td")].map((cell) => {
              const range = document.createRange();
              range.selectNodeContents(cell);
              return [cell.textContent, new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size];
            });""")
        assert all((count > 1) == (text == COLUMNS["address"]) for text, count in lines), lines
