"""The vocabulary of a bundle: valid and invalid symbols, and its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xlruntime import VocabularyError
from xlruntime.tokenizers.vocabulary import Vocabulary

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
    ],
    ids=str,
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
        ("", "not JSON"),
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
        ('{"format": "xlexport vocabulary", "symbols": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_broken_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(VocabularyError, match=rf"^it: {problem}.*Convert the checkpoint again\.$"):
        Vocabulary.from_json(text, "it")


def test_repeated_text_is_checked_once() -> None:
    class Text(str):
        looked = 0

        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            Text.looked += 1
            return super().encode(encoding, errors)

    with pytest.raises(VocabularyError, match="more than once"):
        Vocabulary("words", (Text("a"),) * 1000)
    assert Text.looked == 1
