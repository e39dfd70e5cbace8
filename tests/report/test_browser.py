"""Pages of `xlexport report` in a headless Chromium: drawing, pointing, typing and jumping."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_context import with_words
from tests.helpers.browser import Browser, missing_browser
from tests.report.conftest import (
    END,
    ENTER,
    ESCAPE,
    HEIGHT,
    HOME,
    LEFT,
    LONG,
    PROSE,
    RIGHT,
    WIDTH,
    all_columns,
    card,
    current,
    span_of,
)
from tests.report.report_pages import COLOURS, FAMILY, GOLDEN, HOSTILE, scale
from xlexport.page.assemble import COLOUR_LEVELS
from xlexport.report.document_page import write_report
from xlruntime import Document, Model, TokenScores, load

REASON = missing_browser()
pytestmark = [pytest.mark.full, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def test_text_is_shown_as_it_is(hostile: Browser) -> None:
    spans = hostile.run("return [...document.querySelectorAll('[data-t]')].map((span) => span.textContent)")
    shown_text = "".join(spans)
    assert "<script>document.title='broken'</script><img src=x onerror=alert(1)> &amp;" in shown_text
    assert "{{about}} {{blocks}}" in shown_text
    for glyph in ("NUL", "ESC", "CR", "\\xff", "\\xc3", "\\xe2\\x82", "U+202E", "U+200B"):
        assert glyph in shown_text, glyph
    assert re.search("[\0\x1b\r\u202e]", shown_text) is None
    for whole in (FAMILY, "e\u0301", "\U0001f1eb\U0001f1f7"):  # drawn as one, so in one element
        assert whole in spans, whole
    assert hostile.run("return document.title") == "hostile.txt"
    assert hostile.run("return document.images.length") == 0


def test_names_of_hidden_characters_are_no_fainter_than_the_text(hostile: Browser) -> None:
    opacities = hostile.run("""
        return [...document.querySelectorAll(".block i")].map((name) => getComputedStyle(name).opacity);""")
    assert len(opacities) > 3 and {*opacities} == {"1"}


def test_right_to_left_lines_begin_at_the_right(hostile: Browser) -> None:
    first = HOSTILE.index("\u05e9".encode())
    boxes = [
        hostile.run("return document.querySelector(arguments[0]).getBoundingClientRect().right", f"[data-t='{token}']")
        for token in (first, first + 2)
    ]
    assert boxes[0] > boxes[1]
    assert boxes[0] > WIDTH / 2
    hostile.point(span_of(hostile, first))
    card(hostile)
    word, number = hostile.run("""
        const [word, rest] = document.querySelector("#card bdi").parentNode.childNodes;
        const range = document.createRange();
        const figure = rest.data.search(/[0-9]/);
        range.setStart(rest, figure);
        range.setEnd(rest, figure + 1);
        return [word.getBoundingClientRect().right, range.getBoundingClientRect().left];""")
    assert number >= word  # the numbers of the card are behind the word


def test_bits_of_a_word_are_those_of_its_bytes(hostile: Browser, scores: list[TokenScores]) -> None:
    """Count every byte once, in the word before a space or the word after it; each byte leads to the same word."""
    bits = np.rint(-all_columns(scores, "log_probs") / np.log(2) * 100) / 100  # as the page has them
    word = " caf\u00e9".encode()  # behind a word that ends with a character of two bytes, as it does
    first = HOSTILE.index(word)
    expected = f"caf\u00e9 \u00b7 {bits[first - 1 : first - 1 + len(word)].sum():.2f} bits, {len(word)} tokens"
    hostile.point(span_of(hostile, first + 1), click=True)
    for token in range(first + 1, first + len(word)):
        hostile.wait(f"document.querySelector('#card').innerText.includes('token {token} of')")
        assert expected in card(hostile)
        hostile.keys(RIGHT)
    hostile.keys(ESCAPE)


def test_colours_are_those_of_the_scores(hostile: Browser, scores: list[TokenScores]) -> None:
    bits = np.rint(-all_columns(scores, "log_probs") / np.log(2) * 100) / 100
    place = HOSTILE.index(b"document")
    for token in range(place, place + 8):
        level = min(COLOUR_LEVELS - 1, int(bits[token - 1] / 12 * COLOUR_LEVELS))
        expected = scale("light")[level] if level else None
        found = hostile.run(
            "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", f"[data-t='{token}']"
        )
        assert found == (rgb(expected) if expected else "rgba(0, 0, 0, 0)"), token


def rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[at : at + 2], 16) for at in (1, 3, 5)))


def test_pointing_at_a_token_shows_its_numbers(hostile: Browser, scores: list[TokenScores]) -> None:
    token = HOSTILE.index(b"broken")
    hostile.point(span_of(hostile, token))
    words = card(hostile)
    row = token - 1  # the first token has no score
    bits = -all_columns(scores, "log_probs")[row] / np.log(2)
    assert f"{bits:.2f} bits" in words
    assert f"{all_columns(scores, 'rank')[row]} of 256" in words
    assert f"{all_columns(scores, 'entropy')[row] / np.log(2):.2f} bits" in words
    assert f"{all_columns(scores, 'context')[row]} tokens seen" in words
    assert f"token {token} of {len(HOSTILE)}" in words
    rows = hostile.run("return document.querySelectorAll('#card li:not(.apart)').length")
    assert rows == 5
    hostile.point("h1")
    hostile.wait("document.querySelector('#card').hidden")
    hostile.point(span_of(hostile, 0))
    assert "no context" in card(hostile)


def test_keys_go_from_token_to_token(hostile: Browser) -> None:
    hostile.point(span_of(hostile, 5), click=True)
    assert "token 5 of" in card(hostile)
    hostile.run("document.querySelector('#text').focus()")
    hostile.keys(RIGHT, RIGHT, LEFT)
    hostile.wait("document.querySelector('#card').innerText.includes('token 6 of')")
    assert current(hostile) == 6
    hostile.wait("/bits.*rank/.test(document.querySelector('#live').textContent)")
    hostile.keys(ESCAPE)
    hostile.wait("document.querySelector('#card').hidden")
    assert current(hostile) == -1


def test_keys_go_to_surprising_tokens(hostile: Browser, scores: list[TokenScores]) -> None:
    enough = float(hostile.run("return document.querySelector('#threshold').value")) / 10
    bits = np.rint(-all_columns(scores, "log_probs") / np.log(2) * 100) / 100
    expected = (1 + np.flatnonzero(bits >= enough)).tolist()
    assert hostile.run("return document.querySelector('#surprising').textContent.trim()") == (
        f"{len(expected)} token{'s' * (len(expected) != 1)} \u2265 {enough:g} bits"
    )
    hostile.keys("n")
    card(hostile)
    first = int(re.findall(r"token (\d+) of", card(hostile))[0])
    assert first == expected[0]
    hostile.keys("n")
    hostile.wait(f"document.querySelector('#card').innerText.includes('token {expected[1]} of')")
    hostile.keys("p")
    hostile.wait(f"document.querySelector('#card').innerText.includes('token {expected[0]} of')")
    hostile.keys("[")
    assert float(hostile.run("return document.querySelector('#threshold').value")) / 10 == pytest.approx(enough - 0.5)


def test_theme_follows_the_system_until_it_is_chosen(hostile: Browser) -> None:
    colours = "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    assert hostile.run(colours) == [rgb(COLOURS["page"]["light"]), rgb(COLOURS["ink"]["light"])]
    hostile.prefer("dark")
    assert hostile.run(colours) == [rgb(COLOURS["page"]["dark"]), rgb(COLOURS["ink"]["dark"])]
    hostile.keys("t")
    assert hostile.run(colours) == [rgb(COLOURS["page"]["light"]), rgb(COLOURS["ink"]["light"])]


def test_scale_count_keys_and_overview_follow_the_mode(hostile: Browser, scores: list[TokenScores]) -> None:
    """Check that each mode has its own scale and its own limit of surprising tokens, with the handle."""
    entropy = np.rint(all_columns(scores, "entropy") / np.log(2) * 100) / 100
    seen = """
        const of = (id) => document.getElementById(id);
        return {max: +of("threshold").max, enough: of("threshold").value / 10, end: of("scale").lastChild.textContent,
                count: of("surprising").textContent.trim(), picture: of("bars").innerHTML};"""
    token = hostile.run(seen)
    hostile.keys("c", "c", "c", "c")
    assert hostile.run("return document.querySelector('[name=mode]:checked').value") == "word"
    levels = "return arguments[0].map((t) => document.querySelector(`[data-t='${t}']`).className)"
    place = HOSTILE.index(b"&amp;")
    assert len(set(hostile.run(levels, [*range(place, place + 5)]))) == 1
    assert hostile.run(levels, [place - 1]) == ["l0"]
    word = hostile.run(seen)
    hostile.keys("[", "n", "n")  # the first word begins with a token that has no score
    hostile.wait("document.querySelector('#card').innerText.includes('token ')")
    place = int(re.findall(r"token (\d+) of", card(hostile))[0])
    assert not chr(HOSTILE[place]).isspace() and HOSTILE[place - 1 : place].isspace()  # a word begins
    found = float(re.findall(r"([\d.]+) bits, \d+ tokens", card(hostile))[0])
    assert found >= float(hostile.run(seen)["enough"])
    hostile.keys(ESCAPE, "c")
    hostile.run("scrollTo(0, 0)")
    unsure = hostile.run(seen)
    assert [mode["max"] for mode in (token, word, unsure)] == [120, 320, 80]  # log2(256) is the most of entropy
    assert [mode["end"] for mode in (token, word, unsure)] == ["12+", "32+", "8"]
    assert re.fullmatch(r"\d+ words? \u2265 [\d.]+ bits", word["count"])
    many = int((entropy >= unsure["enough"]).sum())
    assert unsure["count"] == f"{many} token{'s' * (many != 1)} \u2265 {unsure['enough']:g} bits"
    assert len({mode["picture"] for mode in (token, word, unsure)}) == 3
    hostile.keys("n")
    place = int(re.findall(r"token (\d+) of", card(hostile))[0])
    assert place == 1 + np.flatnonzero(entropy >= unsure["enough"])[0]


def test_lines_that_end_in_two_characters_show_one_mark(hostile: Browser, scores: list[TokenScores]) -> None:
    """Reach both characters with keys, and show a carriage return without a line feed by name."""
    end = HOSTILE.index(b"\r\n")
    selector = span_of(hostile, end)
    classes, shown_text = hostile.run(
        "const span = document.querySelector(arguments[0]); return [span.className, span.textContent]", selector
    )
    assert "line" in classes.split() and shown_text == "\n"
    assert hostile.run("return document.querySelectorAll(arguments[0]).length", f"[data-t='{end + 1}']") == 0
    bits = np.rint(-all_columns(scores, "log_probs") / np.log(2) * 100) / 100
    level = min(COLOUR_LEVELS - 1, int((bits[end - 1] + bits[end]) / 12 * COLOUR_LEVELS + 1e-9))
    assert f"l{level}" in classes.split()
    lone = HOSTILE.index(b"\rreturn")
    assert hostile.run("return document.querySelector(arguments[0]).textContent", f"[data-t='{lone}']") == "CR"
    hostile.point(span_of(hostile, end - 1), click=True)
    for token, name in ((end, "CR"), (end + 1, "\u23ce")):
        hostile.run("document.querySelector('#text').focus()")
        hostile.keys(RIGHT)
        hostile.wait(f"document.querySelector('#card').innerText.includes('token {token} of')")
        assert card(hostile).startswith(name)
        assert current(hostile) == end
    assert "\r" not in hostile.run("return document.querySelector('#text').textContent")


def test_borders_of_longer_tokens_are_seen(browser: Browser, model: Model, tmp_path: Path) -> None:
    """Show borders in a document of words but not of bytes, and only at the beginning of words."""
    write_report(model, Document("ids", np.arange(100, 400) % 256), tmp_path / "bytes.html")
    bundle = GOLDEN.parents[1] / "pre_lnorm_empty" / "bundle"  # has no tokenizer: numbers stand for tokens
    words = load(bundle, threads=1)
    write_report(words, Document("ids", np.arange(300) % words.bundle.vocab_size), tmp_path / "words.html")
    many = "return [document.querySelectorAll('.apart').length, document.querySelectorAll('[data-t]').length]"
    for name in ("bytes", "words"):
        browser.open(tmp_path / f"{name}.html")
        marked, spans = browser.run(many)
        assert marked == (0 if name == "bytes" else spans)


def test_very_short_documents_have_no_course(browser: Browser, model: Model, tmp_path: Path) -> None:
    shown_parts = (
        "return ['#chart', '#strip', '#scale'].map((part) => document.querySelector(part).getClientRects().length)"
    )
    for length, expected in ((38, [0, 0, 1]), (199, [0, 0, 1]), (200, [1, 1, 1])):
        write_report(model, Document("short", (PROSE * 3)[:length]), tmp_path / "page.html", force=True)
        browser.open(tmp_path / "page.html")
        assert browser.run(shown_parts) == expected
        browser.resize(WIDTH - 10, HEIGHT)
        browser.keys("c", "c", "t", "n", "/", *"best")
        browser.wait("document.querySelector('#found').textContent.startsWith('1 of')")
    assert browser.log() == []


def test_search_goes_to_what_it_finds_while_one_types(long: Browser) -> None:
    found = "document.querySelector('#found').textContent"
    long.keys("n")
    card(long)
    long.keys("/", *"needle (in")
    long.wait(f"{found} === '0'")
    assert long.run("return document.querySelector('#card').hidden")  # it is about something else
    long.run("document.querySelector('#query').select()")
    long.keys(*"WISDOM")
    long.wait(f"{found} === '1 of 3,100'")
    long.run("document.querySelector('#query').select()")
    long.keys(*"Needle")
    long.wait(f"{found} === '1 of 1'")
    long.wait("document.querySelectorAll('.hit.active').length === 6")
    box = long.run("return document.querySelector('.hit.active').getBoundingClientRect().top")
    assert 0 < box < HEIGHT
    long.run("document.querySelector('#query').select()")
    long.keys(*"wisdom")
    long.wait(f"{found}.endsWith(' of 3,100')")
    before = int(long.run(f"return {found}").split()[0].replace(",", ""))
    assert 2990 < before <= 3001  # the first in the window, around the one that was found before
    long.keys(ENTER, ENTER)
    long.wait(f"{found} === '{before + 2:,} of 3,100'")


@pytest.mark.parametrize(
    ("text", "query", "places"),
    [
        ("Caf\u00e9 cafe\u0301 CAFE", "cAf\u00c9", 3),
        ("\ud559\uad50 \ud558\uace0 \ud55c\uad6d", "\ud55c\uad6d", 1),  # syllables that begin alike are others
        ("\u304b\u304e \u304c\u304e", "\u304c", 1),
    ],
)
def test_search_folds_accents_and_nothing_else(
    text: str, query: str, places: int, browser: Browser, model: Model, tmp_path: Path
) -> None:
    write_report(model, Document("text", text.encode()), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.run(
        "const query = document.querySelector('#query'); query.value = arguments[0]; query.oninput(new Event('input'))",
        query,
    )
    browser.wait(f"document.querySelector('#found').textContent === '1 of {places}'", seconds=5)


def test_keys_go_on_from_what_is_seen(long: Browser) -> None:
    """Continue after a jump from the new place, not from the old mark; each press counts while the window moves."""
    token = "+/token ([\\d,]+) of/.exec(document.querySelector('#card').innerText)[1].replaceAll(',', '')"
    long.keys("n")
    card(long)
    assert int(long.run(f"return {token}")) < 5000
    long.point("#strip", click=True)
    long.wait("document.querySelector('#card').hidden")
    long.wait("Math.abs(+document.querySelector('#strip').ariaValueNow - 50) < 3")
    long.keys("n")
    card(long)
    first = int(long.run(f"return {token}"))
    assert abs(first - len(LONG) / 2) < 5000
    long.keys("n", "n", "n", "n", "p", "p", "p", "p")
    long.wait(f"{token} == {first}")
    assert current(long) == first


def test_long_document_is_coloured_only_where_it_is_seen(long: Browser) -> None:
    drawn = "return document.querySelectorAll('[data-t]').length"
    assert 1000 < long.run(drawn) < len(LONG) / 5
    whole = long.run("return document.querySelector('#text').textContent")
    assert whole == LONG.decode()  # all of it is there for the browser's own search
    long.point("#strip", click=True)
    long.wait("Math.abs(+document.querySelector('#strip').ariaValueNow - 50) < 3")
    assert long.run(drawn) < len(LONG) / 5
    seen = "[...document.querySelectorAll('[data-t]')].find((span) => span.getBoundingClientRect().top > 400).dataset.t"
    long.wait(f"Math.abs({seen} - {len(LONG) / 2}) < 1000")
    long.wait("document.querySelector('.block').children.length === 0")  # plain again
    long.run("document.querySelector('#strip').focus()")
    long.keys(END)
    long.wait("scrollY + innerHeight > document.documentElement.scrollHeight - 1000")
    long.keys(HOME)
    long.wait("+document.querySelector('#strip').ariaValueNow === 0")


def test_curve_takes_one_along_the_document(browser: Browser, long: Browser, tmp_path: Path) -> None:
    long.point("#chart", click=True)
    long.wait("Math.abs(+document.querySelector('#strip').ariaValueNow - 49) < 4")  # left of it are its labels
    words = load(with_words(tmp_path / "words.bundle"), threads=1)
    document = Document("text", " ".join(f"w{number % 25}" for number in range(300)).encode())
    (score,) = words.score([document])
    assert score.bits_per_byte is not None and score.bits_per_token > 2 * score.bits_per_byte
    write_report(words, document, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    name = browser.run("return document.querySelector('#chart').ariaLabel")  # whatever tokens are, it counts bytes
    assert f"Curve of bits per byte along the document; {score.bits_per_byte:.3f} in all." in name
    assert browser.run("return document.querySelector('[name=mode]:checked').value") == "token"  # of words


@pytest.mark.parametrize("width", [320, 700])
def test_nothing_is_wider_than_the_window(hostile: Browser, width: int) -> None:
    """Show all tools within the window, in two rows on a telephone."""
    hostile.resize(width, 700)
    assert hostile.run("return document.documentElement.scrollWidth") <= width
    tools = hostile.run("""
        return [...document.querySelectorAll("#tools > *, #tools :is(button, span, input[type=search])")]
            .map((part) => part.getBoundingClientRect()).filter(({ width }) => width)
            .map(({ left, right, bottom }) => [left, right, bottom]);""")
    edge = hostile.run("return document.querySelector('#strip').getBoundingClientRect().left")
    assert min(left for left, *_ in tools) >= 0 and max(right for _, right, _ in tools) <= edge
    height = hostile.run("return document.querySelector('#tools').offsetHeight")
    assert height < (150 if width < 400 else 110 if width < 800 else 70)  # pixels of three, two rows, one
    hostile.keys("n")
    card(hostile)
    box = hostile.run(
        "const box = document.querySelector('#card').getBoundingClientRect(); return [box.left, box.right]"
    )
    assert box[0] >= 0 and box[1] <= width


def test_printing_shows_all_of_a_short_document_and_says_what_part_of_a_long_one(browser: Browser, pages: Path) -> None:
    listening = """
        window.seen = null;
        addEventListener("beforeprint", () => {
            window.seen = [document.querySelectorAll(".block:not(.unseen)").length,
                           document.querySelector("#printed").textContent];
        });"""
    for name in ("hostile", "long"):
        browser.open(pages / f"{name}.html")
        browser.run(listening)
        assert browser.printed().startswith(b"%PDF")
        many, note = browser.run("return window.seen")
        assert (note == "") is (name == "hostile")
        assert 0 < many < 40
        assert browser.run("return document.documentElement.className") == "ready"
    assert browser.log() == []
