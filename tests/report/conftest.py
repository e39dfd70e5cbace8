"""Fixtures of the tests of pages: commands, pages, and browsers that show them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.browser import Browser, open_browser
from tests.helpers.fixtures import reuse_graphs
from tests.helpers.invoking import bundle, checkpoint, invoke, prose, reuse_export
from tests.report.report_pages import GOLDEN, HOSTILE
from xlexport.report.document_page import write_report
from xlruntime import Document, Model, TokenScores, load

WIDTH, HEIGHT = 1280, 860
ENTER, ESCAPE, LEFT, RIGHT, END, HOME = "\ue007", "\ue00c", "\ue012", "\ue014", "\ue010", "\ue011"
PROSE = b"It was the best of times, it was the worst of times,\nit was the age of wisdom.\n\n"
LONG = PROSE * 3000 + b"needle in the haystack\n" + PROSE * 100


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile"), WIDTH, HEIGHT) as opened:
        yield opened


@pytest.fixture(scope="module")
def model() -> Model:
    return load(GOLDEN, threads=1)


@pytest.fixture(scope="module")
def pages(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages about a hostile document and a long document."""
    folder = tmp_path_factory.mktemp("pages")
    write_report(model, Document("hostile.txt", HOSTILE), folder / "hostile.html")
    write_report(model, Document("long.txt", LONG), folder / "long.html", top=2, segment_len=256)
    return folder


@pytest.fixture(scope="module")
def scores(model: Model) -> list[TokenScores]:
    return list(model.score_tokens([HOSTILE], top=5))


@pytest.fixture
def hostile(browser: Browser, pages: Path) -> Iterator[Browser]:
    """Open the page of the hostile document in a browser; the test fails if the console shows an error."""
    yield from shown(browser, pages / "hostile.html", by_token=True)


@pytest.fixture
def long(browser: Browser, pages: Path) -> Iterator[Browser]:
    """Open the page of the long document in the same way."""
    yield from shown(browser, pages / "long.html", by_token=True)


def shown(browser: Browser, page: Path, by_token: bool = False) -> Iterator[Browser]:
    browser.resize(WIDTH, HEIGHT)
    browser.prefer("light")
    browser.open(page)
    if by_token:
        assert browser.run("return document.querySelector('[name=mode]:checked').value") == "word"  # of bytes
        browser.run("document.querySelector('[name=mode][value=token]').click()")
    yield browser
    assert browser.log() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def all_columns(parts: list[TokenScores], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def card(browser: Browser) -> str:
    browser.wait("!document.querySelector('#card').hidden")
    return str(browser.run("return document.querySelector('#card').innerText"))


def span_of(browser: Browser, token: int) -> str:
    """Scroll a token into view and return the selector of its element."""
    selector = f"[data-t='{token}']"
    browser.run(f'document.querySelector("{selector}").scrollIntoView({{block: "center"}})')
    return selector


def current(browser: Browser) -> int:
    return int(browser.run("return +(document.querySelector('.now')?.dataset.t ?? -1)"))
