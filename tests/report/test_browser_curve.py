"""The curve of a report's page, in a real browser, where tokens are longer than bytes."""

from __future__ import annotations

from pathlib import Path

from tests.commands.test_context import with_words
from tests.helpers.browser import Browser
from tests.report.test_browser import pytestmark
from xlexport.report.page import write_report
from xlruntime import Document, load

__all__ = ["pytestmark"]


def test_curve_is_of_bits_per_byte_whatever_tokens_are(browser: Browser, tmp_path: Path) -> None:
    words = load(with_words(tmp_path / "words.bundle"), threads=1)
    document = Document("text", " ".join(f"w{number % 25}" for number in range(300)).encode())
    (score,) = words.score([document])
    assert score.bits_per_byte is not None and score.bits_per_token > 2 * score.bits_per_byte
    write_report(words, document, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    said = browser.run("return document.querySelector('#chart').ariaLabel")
    assert f"Curve of bits per byte along the document; {score.bits_per_byte:.3f} in all." in said
