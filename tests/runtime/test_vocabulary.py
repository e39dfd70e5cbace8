"""Vocabularies: valid and invalid symbols, their JSON, and text that bundles with one score."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.manifests import with_vocabulary
from xlruntime import GrowingText, Model, VocabularyError, load
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

WORDS = ("<eos>", "the", "sea", "<unk>")
LARGE = 267_735  # symbols of WikiText-103


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary("words", WORDS, unk="<unk>", line_end="<eos>", lower_case=True),
        Vocabulary("words", ("<S>", "<UNK>", "日本", 'a"\\b', "\u2028", "🙂"), "<UNK>", "<S>", "<S>"),
        Vocabulary("characters", ("a", "_", "<pad>"), space="_", lower_case=True),
        Vocabulary("characters", ("\n", " ", "é")),
        Vocabulary("bytes", ("32", "0", "255", "<eos>"), line_end="<eos>"),
        Vocabulary("trie", ("61" * 1000, "00", "")),  # the longest symbol
    ],
    ids=lambda vocabulary: vocabulary.kind,
)
def test_json_there_and_back(vocabulary: Vocabulary) -> None:
    text = vocabulary.to_json()
    assert Vocabulary.from_json(text, "it") == vocabulary
    assert text.count("\n") == len(vocabulary)  # one symbol per line, for people, grep and diff
    assert json.loads(text)["symbols"] == list(vocabulary.symbols)


def test_file_of_another_version_reads_without_newer_fields() -> None:
    text = '{"format": "xlexport vocabulary", "kind": "words", "symbols": ["a", "b"]}'
    assert Vocabulary.from_json(text, "it") == Vocabulary("words", ("a", "b"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"symbols": ()}, "a vocabulary without symbols"),
        ({"symbols": ("a", "b", "a", "b", "c")}, "more than once: 'a', 'b'"),
        ({"symbols": ("a", "", 3)}, "symbol 1 is '', 2 is 3"),
        ({"symbols": ("a", "\ud800")}, r"symbol 1 is '\\ud800'"),
        ({"symbols": tuple("ab") * 2 + tuple("cdefgh") * 2}, "'a', 'b', 'c', 'd', 'e' and 3 more"),
        ({"unk": "<unk>"}, "unk is '<unk>', which is not a symbol"),
        ({"line_end": "<eos>", "line_start": "<S>"}, "line_start is '<S>', .*; line_end is '<eos>', which is not"),
        ({"kind": "characters", "symbols": ("a", "<pad>", "bc", "d")}, r"not characters: 'bc'\."),
        ({"kind": "bytes", "symbols": ("0", "256", "007", "a", "²", "-1")}, "not bytes: '256', '007', 'a', '²', '-1'"),
        ({"kind": "sounds"}, "a vocabulary of 'sounds'; expected one of words, characters, bytes"),
        ({"space": "a"}, "space is 'a', expected None for words"),
        ({"kind": "characters", "line_start": "a"}, "line_start is 'a', expected None for characters"),
        ({"lower_case": 1}, "lower_case is 1, expected true or false"),
        ({"symbols": ("x" * 1000,) * 2}, "'x{40}'"),
    ],
    ids=str,
)
def test_invalid_vocabulary_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(VocabularyError, match=problem):
        Vocabulary(**{"kind": "words", "symbols": ("a", "b"), **fields})


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(VocabularyError, match=r"more than once: 'a'; .*not bytes: 'a', 'a'; unk is '\?'.*") as caught:
        Vocabulary("bytes", ("a", "a", "32"), unk="?")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not valid JSON"),
        ("[1]", "not a vocabulary that xlexport wrote"),
        ('{"kind": "words", "symbols": ["a"]}', "not a vocabulary that xlexport wrote"),
        *(
            (
                f'{{"format": "xlexport vocabulary", "kind": "words"{symbols}}}',
                "a broken vocabulary .its symbols are not",
            )
            for symbols in ("", ', "symbols": 3', ', "symbols": "abc"', ', "symbols": {"a": 0}')
        ),
        ('{"format": "xlexport vocabulary", "kind": "words", "symbols": [["a"]]}', "a broken vocabulary"),
        ('{"format": "xlexport vocabulary", "kind": "words", "symbols": ["a"], "unk": ["a"]}', "a broken vocabulary"),
        ('{"format": "xlexport vocabulary", "kind": "words", "symbols": ["a"], "more": 1}', "a broken vocabulary"),
        ('{"format": "xlexport vocabulary", "symbols": ' + "[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(VocabularyError, match=rf"^it: {problem}.*Convert the checkpoint again\.$"):
        Vocabulary.from_json(text, "it")


# Bundles with a vocabulary: scored, fed, generated and counted text.

FILLERS = tuple(f"w{number}" for number in range(29))


def vocabulary_of_29(*symbols: str) -> tuple[str, ...]:
    """Return as many symbols as the model has tokens."""
    return (*symbols, *FILLERS[: 29 - len(symbols)])


WIKI = Vocabulary("words", vocabulary_of_29("<eos>", "the", "sea", "<unk>"), unk="<unk>", line_end="<eos>")
TEXT8 = Vocabulary("characters", (*"_abcdefghijklmnopqrstuvwxyz", "<x>", "<y>"), space="_", lower_case=True)


@pytest.fixture
def open_with(no_text_model: Model, tmp_path: Path) -> Callable[[Vocabulary], Model]:
    return lambda vocabulary: load(with_vocabulary(no_text_model.folder, tmp_path / "bundle", vocabulary), threads=1)


OpenWith = Callable[[Vocabulary], Model]


def test_words_of_a_document(open_with: OpenWith) -> None:
    model = open_with(WIKI)
    document = " the sea\n\ndeep sea"
    (scores,) = model.score_tokens([document])
    assert scores.tokens.tolist() == [2, 0, 0, 3, 2, 0]
    places = list(zip(scores.starts.tolist(), scores.ends.tolist(), strict=True))
    assert [document[start:end] for start, end in places] == ["sea", "\n", "\n", "deep", "sea", ""]
    total = scores.summary
    assert total is not None
    assert (total.tokens, total.scored_tokens, total.unknown_tokens) == (7, 6, 1)
    assert (total.words, total.chars, total.bytes) == (4, 18, 18)
    assert (total.dropped_bytes, total.dropped_chars) == (0, 0)
    assert total.bits_per_byte == total.bits_per_char == pytest.approx(total.bits / (18 - len(" the")))
    ids = model.stream().feed([1, 2, 0, 0, 3, 2, 0])
    np.testing.assert_array_equal(scores.log_probs, ids.log_probs)


def test_unknown_words_are_counted_in_ids_too(open_with: OpenWith) -> None:
    (score,) = open_with(WIKI).score([np.array([3, 1, 3])])
    assert (score.unknown_tokens, score.bytes) == (2, 0)


def test_prompt_stays_open(open_with: OpenWith) -> None:
    """Check that a prompt gets no line end, so that a model can continue its line."""
    model = open_with(WIKI)
    stream = model.stream()
    list(stream.generate("the sea", max_tokens=0))
    assert (stream.pending, stream.position) == (2, 2)


@pytest.mark.parametrize(
    ("vocabulary", "prompt", "ids", "text"),
    [
        (WIKI, "the sea", [1, 2], " the sea"),
        (WIKI, "the sea ", [1, 2], "the sea"),
        (WIKI, "the sea\n", [1, 2], "the sea"),
        (WIKI, "the sea", [0, 1], "\nthe"),
        (WIKI, "THE deep", [1, 0], " the\n"),
        (WIKI, "the", [], ""),
        (TEXT8, "to ", [0, 2], " b"),
        (TEXT8, "to", [0, 2], " b"),
        (TEXT8, "To", [0, 2], " b"),
    ],
)
def test_continuation_reads_on(vocabulary: Vocabulary, prompt: str, ids: list[int], text: str) -> None:
    tokenizer = VocabularyTokenizer(vocabulary)
    growing = GrowingText(tokenizer, tokenizer.encode_piece(prompt, None), prompt=prompt)
    assert "".join([*map(growing.add, ids), growing.end()]) == text
