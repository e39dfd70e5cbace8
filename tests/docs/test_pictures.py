"""The pictures of the pages are those that `docs/pictures.py` draws today, and screen readers can tell them."""

from __future__ import annotations

import runpy
from xml.etree import ElementTree

import pytest

from tests.helpers.paths import ROOT

PICTURES = runpy.run_path(str(ROOT / "docs/pictures.py"))["PICTURES"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_up_to_date_and_described(name: str) -> None:
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert text == PICTURES[name]().svg(), "run python docs/pictures.py"
    picture = ElementTree.fromstring(text)
    assert (picture.get("role"), picture.get("aria-labelledby")) == ("img", "title desc")
    for element, least in (("title", 5), ("desc", 20)):
        described = picture.find(f"{SVG}{element}")
        assert described is not None and described.get("id") == element
        assert len((described.text or "").split()) >= least
