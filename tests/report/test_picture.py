"""`xlexport report --picture`: surprisal by word for a paper."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import ZEROS, golden_bundle
from tests.report.report_pages import GOLDEN, HOSTILE
from xlexport.report import picture
from xlexport.report.list_page import ListRow
from xlexport.report.words import DocumentWords, Held, score_words
from xlruntime import load

pytest.importorskip("matplotlib")

OTHER = golden_bundle(ZEROS)
SENTENCES = ["The cook stirred the soup with a spoon.", "The $cook$ _stirred_ --> the <b>soup</b>."]


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the relative path of two sentences: a picture cuts long names."""
    monkeypatch.chdir(tmp_path)
    path = Path("items.jsonl")
    path.write_text("".join(json.dumps({"s": sentence}) + "\n" for sentence in SENTENCES), "utf-8")
    return path


def comments(svg: str) -> list[str]:
    """Return the texts of a figure: matplotlib draws letters as paths, after a comment with the text."""
    return [comment.strip() for comment in re.findall(r"<!--(.*?)-->", svg, re.DOTALL)]


def rows_of(*texts: str) -> list[ListRow]:
    model = load(GOLDEN, threads=1)
    documents = [Held(f"text {n}", text.encode()) for n, text in enumerate(texts)]
    found = score_words(model, model.evaluation(), documents)
    pairs = zip(documents, found, strict=True)
    return [ListRow(held, (words,)) for held, words in pairs if isinstance(words, DocumentWords)]


def test_picture_of_two_sides_has_title_axis_units_and_words(invoke: Invoke, items: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "words.svg"
    for name, bundle in (("one", GOLDEN), ("two", OTHER)):
        Path(name).symlink_to(bundle)
    done = invoke("report", "one", items, "--field", "s", "--with", "two", "--picture", drawn, "--title", "My items")
    assert f"wrote {drawn}" in done.succeeded().err
    svg = drawn.read_text("utf-8")
    ElementTree.fromstring(svg)
    shown = comments(svg)
    for text in ("My items", "surprisal (bits)", "cook", "spoon.", "A: one", "B: two", "items.jsonl:1"):
        assert text in shown, text
    colours = set(re.findall(r"#([0-9a-f]{6})\b", svg))  # of grey alone: each side has other markers and other lines
    assert colours and all(colour[:2] == colour[2:4] == colour[4:] for colour in colours)
    assert "stroke-dasharray" in svg
    assert len({style["marker"] for style in picture.STYLES} & {"o", "s"}) == 2


@pytest.mark.parametrize("ending", ["png", "svg", "PNG"])
def test_picture_of_one_document(invoke: Invoke, prose: Path, ending: str) -> None:
    drawn = prose.with_suffix(f".{ending}")
    invoke("report", GOLDEN, prose, "--picture", drawn).succeeded()
    raw = drawn.read_bytes()
    assert raw.startswith(b"\x89PNG") if ending.lower() == "png" else b"<svg" in raw
    assert prose.with_suffix(".html").is_file()


def test_words_without_a_score_have_no_marker(tmp_path: Path) -> None:
    (row,) = rows_of("The cook stirred")
    picture.draw_words([row], [""], "Words", tmp_path / "words.svg")
    svg = (tmp_path / "words.svg").read_text("utf-8")
    assert np.isnan(row.sides[0].bits).tolist() == [True, False, False]
    (group,) = re.findall(r"<g clip-path=[^>]*>\s*(<use .*?)</g>", svg, re.DOTALL)
    assert group.count("<use ") == 2  # markers


def test_what_a_picture_leaves_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MOST_LINES", 2)
    monkeypatch.setattr(picture, "LINE_WORDS", 3)
    rows = rows_of("one two three four five", "six seven")
    said = picture.draw_words(rows, [""], "Numbers", tmp_path / "words.svg")
    assert said == [
        "The picture has the first 5 words; 2 further ones are left out, because it has at most 2 lines of 3 words."
    ]
    shown = comments((tmp_path / "words.svg").read_text("utf-8"))
    assert "five" in shown and "six" not in shown
    assert picture.draw_words(rows[1:], [""], "Numbers", tmp_path / "words.svg") == []


def test_hostile_text_is_drawn_or_replaced(invoke: Invoke, tmp_path: Path) -> None:
    source, drawn = tmp_path / "hostile.txt", tmp_path / "hostile.svg"
    source.write_bytes(HOSTILE)
    title = "$\\frac{1}{$ _x_ \x1b[31m"
    done = invoke("report", GOLDEN, source, "--picture", drawn, "--title", title, "--set", "binary=true").succeeded()
    assert "The font of the picture lacks" in done.err and "a box appears instead" in done.err
    root = ElementTree.fromstring(drawn.read_bytes())
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint({"script", "img", "image", "a"})


def test_texts_without_words_have_no_picture(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "spaces.txt"
    source.write_text("   \n\n")
    done = invoke("report", GOLDEN, source, "--picture", tmp_path / "words.svg")
    assert done.code == 1 and "no words to draw" in done.err
    assert not (tmp_path / "words.svg").exists()


def test_pictures_that_cannot_be_written(invoke: Invoke, prose: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "words.svg"
    drawn.write_text("old")
    assert "--force" in invoke("report", GOLDEN, prose, "--picture", drawn).error
    assert drawn.read_text() == "old"
    assert "a plot is a .png or .svg file" in invoke("report", GOLDEN, prose, "--picture", tmp_path / "words.pdf").error
    assert "no such folder" in invoke("report", GOLDEN, prose, "--picture", tmp_path / "none" / "words.svg").error
    assert not prose.with_suffix(".html").exists()
    invoke("report", GOLDEN, prose, "--picture", drawn, "--force").succeeded()
    assert drawn.read_text("utf-8").startswith("<?xml")
