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
        assert np.isnan(bits) if record["bits"] is None else bits == pytest.approx(record["bits"], rel=1e-12)
    assert found.complete.tolist() == [record["complete"] for record in records]
    assert [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == list(found.words)


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


def test_token_before_each_text_gives_its_first_word_a_score(bundle: Path, score: Score) -> None:
    records = score("-", "--per", "word", "--bos", "\\n", stdin=TEXT.encode(), bundle=bundle).succeeded().records
    model = xlruntime.load(bundle, threads=1)
    (found,) = model.surprisal([TEXT], bos=ord("\n"))
    assert found.complete.all()
    assert found.bits.tolist() == pytest.approx([record["bits"] for record in records], rel=1e-12)
    (total,) = model.score([TEXT], bos=ord("\n"))
    (tokens,) = [part.summary for part in model.score_tokens([TEXT], bos=ord("\n")) if part.summary is not None]
    assert total.bits == tokens.bits == pytest.approx(found.bits.sum(), rel=1e-12)
    with pytest.raises(xlruntime.OptionError, match="bos is 256, expected 0 to 255"):
        next(model.score([TEXT], bos=256))
