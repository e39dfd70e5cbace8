"""`Model.surprisal` yields the words and sums of `score --per word`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import xlruntime
from tests.scoring.conftest import TEXT, Score
from xlruntime.tokenizers.vocabulary import Vocabulary

TEXTS = {
    "ordinary": TEXT,
    "no white space at the end": "two words\nand three more",
    "white space around": " \n\n  word \n  ",
    "white space alone": " \n \t\n",
    "one word": "word",
    "longer than the memory": "many words of all kinds, ünd\tmöre – 時代\r\n" * 9,
}
VOCABULARIES = {
    "words": Vocabulary("words", ("<eos>", "<unk>", "the", "of", "it"), unk="<unk>", line_end="<eos>"),
    "characters": Vocabulary("characters", (*"abcdefghijklmnopqrstuvw_", "<unk>"), unk="<unk>", space="_"),
    "bytes": Vocabulary("bytes", (*map(str, b"abcdefghijklmnopqrst "), "<unk>"), unk="<unk>"),
}


def check_words(text: str, bundle: Path, score: Score) -> None:
    records = score("-", "--per", "word", stdin=text.encode(), bundle=bundle).succeeded().records
    (found,) = xlruntime.load(bundle, threads=1).surprisal([text])
    assert list(found.words) == [record["word"] for record in records]
    assert found.text == text
    for name in ("tokens", "scored_tokens"):
        assert getattr(found, name).tolist() == [record[name] for record in records]
    for bits, record in zip(found.bits.tolist(), records, strict=True):
        assert np.isnan(bits) if record["scored_tokens"] == 0 else bits == pytest.approx(record["bits"], rel=1e-12)
    assert [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == list(found.words)
    assert np.nansum(found.bits) == pytest.approx(found.total.bits, rel=1e-12)


@pytest.mark.parametrize("kind", TEXTS)
def test_words_of_bytes(kind: str, bundle: Path, score: Score) -> None:
    check_words(TEXTS[kind], bundle, score)


@pytest.mark.parametrize("kind", ["ordinary", "white space around", "longer than the memory"])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_words_of_a_vocabulary(
    vocabulary: str, kind: str, words_bundle: Callable[..., Path], score: Score, tmp_path: Path
) -> None:
    (tmp_path / "vocabulary.json").write_text(VOCABULARIES[vocabulary].to_json(), "utf-8")
    check_words(TEXTS[kind], words_bundle("vocabulary", tmp_path / "vocabulary.json"), score)
