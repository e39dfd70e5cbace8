"""Words with their bits, results as tables, and one-line descriptions of objects."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xlruntime import ArgumentError, Document, Model, TextError, XlruntimeError

TEXTS = ["The dög  barked. ", "", "xy", "one two\nthree and four"]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pandas by a module whose tables are dictionaries of lists."""
    made = {"DataFrame": lambda columns: {name: list(values) for name, values in columns.items()}}
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(**made))


def test_words_come_with_their_bits(bytes_model: Model) -> None:
    text = "The dog barked."
    (found,) = bytes_model.surprisal([text])
    (part,) = [part for part in bytes_model.score_tokens([text], segment_len=20)]
    bits = -part.log_probs.astype(np.float64) / np.log(2)  # of all bytes but the first
    expected = [np.nan, bits[2:6].sum(), bits[6:].sum()]  # the first word has too few scores for a sum
    words, found_bits = zip(*found, strict=True)
    assert list(words) == text.split() and list(found_bits) == pytest.approx(expected, nan_ok=True)
    assert found.complete.tolist() == [False, True, True]
    assert found.total.bits == pytest.approx(bits.sum())


def test_a_word_without_a_scored_token_has_no_bits(no_text_model: Model, bytes_model: Model) -> None:
    (found,) = bytes_model.surprisal(["I am"])
    assert np.isnan(found.bits[0]) and found.bits[1] > 0
    assert found.scored_tokens.tolist() == [0, 3]
    with pytest.raises(TextError, match="takes token ids"):
        list(no_text_model.surprisal(["I am"]))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_order_and_names_are_those_of_the_texts(bytes_model: Model, batch_size: int) -> None:
    texts = [Document(f"text {number}", text) for number, text in enumerate(TEXTS)]
    found = list(bytes_model.surprisal(texts, batch_size=batch_size))
    assert [(one.document, one.text) for one in found] == [(text.name, text.source) for text in texts]
    assert [list(one.words) for one in found] == [text.split() for text in TEXTS]
    assert found[1].bits.shape == (0,) and found[1].total.bits == 0


@pytest.mark.parametrize("given", [b"bytes", [70, 71]])
def test_only_a_text_has_words(bytes_model: Model, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^surprisal: text 0 is .*, not a text, so it has no words\. Give a str"):
        next(bytes_model.surprisal([given]))


@pytest.mark.usefixtures("table")
def test_tables_of_words_and_of_tokens(bytes_model: Model) -> None:
    (found,) = bytes_model.surprisal([Document("it", "one two")])
    words = found.to_pandas()
    assert list(words) == ["document", "index", "word", "start", "end", "tokens", "scored_tokens", "complete", "bits"]
    assert words["document"] == ["it", "it"] and words["word"] == ["one", "two"]
    assert words["start"] == [0, 4] and words["bits"] == pytest.approx(found.bits.tolist(), nan_ok=True)
    scores = bytes_model.stream().feed("one two")
    tokens = scores.to_pandas()
    assert list(tokens) == ["index", "token", "id", "log_prob", "surprisal_bits", "context"]
    assert "".join(tokens["token"]) == scores.text == "ne two"
    assert tokens["surprisal_bits"] == scores.bits.tolist()
    assert sum(tokens["surprisal_bits"]) == pytest.approx(found.total.bits, rel=1e-5)


def test_pandas_takes_the_table(bytes_model: Model) -> None:
    pandas = pytest.importorskip("pandas")
    (found,) = bytes_model.surprisal(["I am here"])
    table = found.to_pandas()
    assert isinstance(table, pandas.DataFrame) and table["word"].tolist() == ["I", "am", "here"]
    assert table["bits"].isna().tolist() == [True, False, False]


def test_absent_pandas_is_named(bytes_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (found,) = bytes_model.surprisal(["some words"])
    for result in (found, bytes_model.stream().feed("some words")):
        with pytest.raises(XlruntimeError, match=r"no module pandas\. Install it: pip install pandas$"):
            result.to_pandas()


def test_objects_describe_themselves_in_a_line(bytes_model: Model) -> None:
    assert repr(bytes_model) == (
        f"Model('{bytes_model.folder}': transformer_xl, float32, 256 tokens (bytes), segment_len 8, mem_len 12, "
        "clamp_len 7, same_length True, cpu, 0.1 MB)"
    )
    stream = bytes_model.stream()
    assert repr(stream) == "Stream(0 tokens read, memory of 5,120 bytes)"
    assert repr(stream.feed("a")) == "Scores(0 tokens, 0.00 bits)"
    scores = stream.feed("bc")
    assert repr(scores) == f"Scores(2 tokens from 1, {scores.bits.sum():.2f} bits)"
    assert repr(stream) == "Stream(3 tokens read, memory of 5,120 bytes)"
    (part,) = bytes_model.score_tokens([Document("it", "abc")])
    assert repr(part) == "TokenScores('it': 2 tokens, the last of the document)"
    (words,) = bytes_model.surprisal([Document("it", "ab cd")])
    assert repr(words) == f"WordScores('it': 2 words, {words.total.bits:.2f} bits)"
