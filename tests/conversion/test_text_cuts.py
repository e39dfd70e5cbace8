"""The rule by which a text may be cut, which `convert` reads from a library's tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from xlexport.text_cuts import PUBLISHED, pieces_rule, settled_rule

BYTES = ["<|end|>", "\u0120", *"ab.\u00c3\u00a9", "\u0120a", ".\u0120", "ab"]
MARKS = ["<unk>", "\u2581", "a", "\u2581a", "ab", "\u2581\u2581"]
JOINED = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
LLAMA = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, MARK]}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
PATTERNS = {rule: pattern for pattern, rule in PUBLISHED.items()}


def tokenizer(vocabulary: list[str], splitter: Any = None, normalizer: Any = None, **model: Any) -> dict[str, Any]:
    added = model.pop("added", {"content": "<|end|>"})
    model = {"type": "BPE", "vocab": {text: number for number, text in enumerate(vocabulary)}, **model}
    return {"normalizer": normalizer, "pre_tokenizer": splitter, "model": model, "added_tokens": [added]}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts), "normalizers": list(parts)}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(**fields: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, **fields}


@pytest.mark.parametrize("rule", ["gpt2", "llama3", "gpt4o"])
@pytest.mark.parametrize("behaviour", [("Isolated", False), ("Removed", True)])
def test_published_patterns_are_known_by_their_text(rule: str, behaviour: tuple[str, bool]) -> None:
    splitter = sequence(split(PATTERNS[rule], *behaviour), byte_level())
    assert settled_rule(tokenizer(BYTES, splitter)) == rule
    assert settled_rule(tokenizer(BYTES, splitter, {"type": "NFC"})) == rule
    for changed in (split(PATTERNS[rule] + "|x"), split(PATTERNS[rule], "MergedWithNext")):
        assert settled_rule(tokenizer(BYTES, sequence(changed, byte_level()))) == "letters"


@pytest.mark.parametrize(
    ("splitter", "fields", "rule"),
    [
        (byte_level(use_regex=True), {}, "gpt2"),
        (byte_level(use_regex=True, add_prefix_space=True), {}, "letters"),
        (sequence(byte_level(use_regex=True)), {}, "gpt2"),
        (sequence({"type": "Digits"}, byte_level(use_regex=True)), {}, "letters"),
        (sequence({"type": "Digits"}, byte_level(add_prefix_space=True)), {}, None),  # a space before each part
        (sequence({"type": "FixedLength", "length": 5}, byte_level()), {}, None),
        (byte_level(), {}, "letters"),
        (byte_level(use_regex=True), {"normalizer": {"type": "NFD"}}, "letters"),  # marks are parts of their own
        (byte_level(use_regex=True), {"normalizer": {"type": "Strip"}}, None),
        (byte_level(use_regex=True), {"added": {"content": "<m>", "lstrip": True}}, "letters"),
        (byte_level(use_regex=True), {"added": {"content": "<m>", "rstrip": True}}, "letters"),
        (byte_level(use_regex=True), {"added": {"content": "<m", "rstrip": True}}, None),
        (byte_level(), {"added": {"content": "a b"}}, None),
        (byte_level(), {"end_of_word_suffix": "</w>"}, None),
    ],
)
def test_byte_level(splitter: Any, fields: dict[str, Any], rule: str | None) -> None:
    assert settled_rule(tokenizer(BYTES, splitter, **fields)) == rule


def test_bytes_whose_tokens_hold_two_words_have_no_cut() -> None:
    for piece in ("a\u0120b", "a\u0120", "b\u0120\u00c3"):
        assert settled_rule(tokenizer([*BYTES, piece], byte_level())) is None
    assert settled_rule(tokenizer([*BYTES, "a\u0120."], byte_level())) == "letters"


@pytest.mark.parametrize(
    ("splitter", "fields", "rule"),
    [
        (None, {"normalizer": LLAMA}, "words"),
        (META, {}, "words"),
        (META, {"normalizer": sequence({"type": "NFKC"}, {"type": "Lowercase"}, JOINED)}, "words"),
        (META, {"normalizer": {"type": "Strip", "strip_left": False, "strip_right": True}}, "words"),
        (META, {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, None),
        (META, {"normalizer": split("[ab] ") | {"type": "Replace", "content": "a"}}, None),
        ({"type": "Split", "pattern": {"String": " "}}, {"normalizer": MARK}, "words"),  # Gemma's, which finds none
        ({"type": "Split", "pattern": {"String": " "}}, {}, None),
        (None, {}, None),
        (sequence({"type": "WhitespaceSplit"}, META), {}, None),  # a mark before each word
        (sequence(META, {"type": "FixedLength", "length": 5}), {}, None),
        ({"type": "BertPreTokenizer"}, {"type": "WordPiece", "normalizer": {"type": "BertNormalizer"}}, "words"),
        (sequence({"type": "Whitespace"}, {"type": "Digits"}), {"type": "WordLevel"}, "words"),
        (None, {"type": "WordPiece", "normalizer": MARK}, None),  # the whole text is one word
        (META, {"added": {"content": "<m>", "lstrip": True}}, "words"),
        (META, {"added": {"content": "<m>", "rstrip": True}}, "letters"),
        (META, {"added": {"content": "a b"}}, None),
    ],
)
def test_words(splitter: Any, fields: dict[str, Any], rule: str | None) -> None:
    assert settled_rule(tokenizer(MARKS, splitter, **fields)) == rule


def test_marks_behind_other_characters_have_no_cut() -> None:
    assert pieces_rule(["\u2581", "\u2581\u2581", "\u2581a", "a"]) == "words"
    for piece in ("a\u2581", "\u2581a\u2581b", "a b"):
        assert pieces_rule(["\u2581", piece]) is None
        assert settled_rule(tokenizer([*MARKS, piece], META)) is None
    assert settled_rule(tokenizer(["<unk>", "a"], META)) is None  # unknown characters on both sides become one
    unigram = {"type": "Unigram", "vocab": [[text, 0.0] for text in MARKS]}
    assert settled_rule(tokenizer(MARKS, META, **unigram)) == "words"
