"""Rows of a page of two sides: which words are compared."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.report.report_pages import GOLDEN
from xlexport.report.rows import Row, as_rows, figures, values
from xlexport.report.words import Held, LeftOut, WordScores, score_words
from xlruntime import TextError, load

HELD = Held("a", b"one two three")


@pytest.fixture(scope="module")
def words() -> WordScores:
    model = load(GOLDEN, threads=1)
    (found,) = score_words(model, model.evaluation(), [HELD])
    assert isinstance(found, WordScores)
    return found


def row_of(a: WordScores, b: WordScores) -> Row:
    (row,) = as_rows([HELD], [[a], [b]])
    assert isinstance(row, Row)
    return row


def test_words_are_compared_if_both_sides_score_the_same_text(words: WordScores) -> None:
    a = dataclasses.replace(words, bits=np.array([8.0, 4.0, 2.0]))
    assert a.covered.tolist() == [2, 4, 6] and a.whole.tolist() == [False, True, True]
    b = dataclasses.replace(a, bits=np.array([5.0, 5.0, 1.5]))
    assert row_of(a, b).difference == pytest.approx([3.0, -1.0, 0.5])
    whole = dataclasses.replace(b, covered=np.array([3, 4, 6]), whole=np.array([True] * 3))
    row = row_of(a, whole)  # A scores two of three bytes of the first word
    assert row.difference is not None and np.isnan(row.difference).tolist() == [True, False, False]
    assert row.compared == 2 and row.total_difference == pytest.approx(-0.5)
    assert values(row)[3:] == pytest.approx([-0.5, -0.25])
    assert dict(figures([row]))["A − B, bits"] == "-0.50"


def test_words_that_both_sides_score_whole_are_compared_without_equal_coverage(words: WordScores) -> None:
    """Compare with a vocabulary without newlines, which covers fewer bytes of the white space before a word."""
    whole = dataclasses.replace(words, whole=np.array([True] * 3))
    other = dataclasses.replace(whole, covered=whole.covered - 1)
    assert row_of(whole, other).compared == 3


def test_sides_with_other_words_are_refused(words: WordScores) -> None:
    other = dataclasses.replace(words, starts=words.starts + 1)
    with pytest.raises(TextError, match=r"a: 3 words for A and 3 for B at other places, so they cannot be compared"):
        as_rows([HELD], [[words], [other]])


def test_document_that_fails_on_one_side_is_left_out(words: WordScores) -> None:
    rows = as_rows([HELD], [[words], [TextError("a: too long.")]])
    assert rows == [LeftOut("a", "too long.", failed=True)]


def test_figures_that_are_not_finite_are_left_empty(words: WordScores) -> None:
    summary = dataclasses.replace(words.summary, bits=math.nan, bits_per_byte=None)
    row = Row("a", (dataclasses.replace(words, summary=summary),), None)
    assert values(row) == [3.0, None, None, None]
