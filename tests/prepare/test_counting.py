"""Counting of words that do not fit into memory."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from xlexport.prepare.counting import SymbolCounts
from xlexport.prepare.units import counted
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer


@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("max_size", [None, 25])
def test_counts_in_files_are_those_of_a_counter(min_count: int, max_size: int | None, tmp_path: Path) -> None:
    """Compare the order, too: equal counts keep the order of the text."""
    choose = random.Random(3)
    words = [f"{choose.choice('abü語😀')}{int(choose.paretovariate(0.6)) % 300}" for _ in range(4000)]
    expected = [word for word, count in Counter(words).most_common(max_size) if count >= min_count]
    assert 20 < len(expected) <= len(set(words))
    with closing(SymbolCounts(tmp_path, limit=40)) as counts:
        for start in range(0, len(words), 50):
            counts.update(words[start : start + 50])
        assert len(counts._files) > 20
        assert len(counts._counts) <= 40
        assert counts.most_common(min_count, max_size) == expected
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_does_not_depend_on_the_limit(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def symbols(unit: str) -> tuple[str, ...]:
        tokenizer = counted([prose], unit).tokenizer
        assert isinstance(tokenizer, VocabularyTokenizer)
        return tokenizer.vocabulary.symbols

    whole = symbols("words"), symbols("characters")
    monkeypatch.setattr(SymbolCounts.__init__, "__defaults__", (None, 10))
    assert (symbols("words"), symbols("characters")) == whole
