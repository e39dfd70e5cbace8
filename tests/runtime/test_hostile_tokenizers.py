"""Tokenizer files that would end the process, hang, use too much memory, or raise foreign exceptions."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tokenizer_kinds import sentence_pieces
from tests.runtime.conftest import BundleWith
from tests.runtime.tokenizer_files import (
    NO_MAP,
    charsmap,
    field,
    precompiled,
    regex,
    replace,
    sentencepiece_file,
    sequence,
    tokenizer_fields,
)
from xlruntime import TextError, VocabularyError
from xlruntime.documents import TextCounts
from xlruntime.limits import Limits
from xlruntime.tokenizers.libraries import SentencePieceTokenizer, TokenizersTokenizer

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("sentencepiece")

TRIE = struct.pack("<I", 1024)
TEXT_ONCE = {"Sequence": {"id": "A", "type_id": 0}}
UNLIKELY = {"special_tokens": {}, "pair": [TEXT_ONCE, {"Sequence": {"id": "B", "type_id": 0}}]}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., TokenizersTokenizer]:
    """Return a function that opens a tokenizer.json with the given sections."""

    def make(**changed: Any) -> TokenizersTokenizer:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(tokenizer_fields(**changed)))
        return TokenizersTokenizer(path)

    return make


HOSTILE = {
    "map that is longer than the file": {"normalizer": precompiled(struct.pack("<I", 0xFFFFFFFC) + bytes(12))},
    "map of two bytes": {"normalizer": precompiled(b"ab")},
    "map without a trie": {"normalizer": precompiled(struct.pack("<I", 0) + b"abc\0")},
    "map that is not UTF-8": {"normalizer": precompiled(TRIE + bytes(1024) + b"\xff\0")},
    "map that leads out": {"normalizer": precompiled(TRIE + struct.pack("<I", 0x7FFFFC00) * 256 + b"a\0")},
    "map to no replacement": {"normalizer": precompiled(charsmap(97, b"xy\0", place=3))},
    "map into a character": {"normalizer": precompiled(charsmap(97, "é\0".encode(), place=1))},
    "map that grows": {"normalizer": precompiled(charsmap(97, b"x" * 2000 + b"\0"))},
    "map in a sequence": {"normalizer": sequence(sequence(precompiled(b"ab")))},
    "three times a thousand": {"normalizer": sequence(*[replace("a", 1000 * "a")] * 3)},
    "forty times two": {"normalizer": sequence(*[replace("a", "aa")] * 40)},
    "twelve times two": {"normalizer": sequence(*[replace("a", "aa")] * 12)},
    "something for nothing": {"normalizer": sequence(*[replace("", 50 * "a")] * 3)},
    "an expression that matches nothing": {"normalizer": sequence(*[replace("x*", 50 * "a", "Regex")] * 3)},
    "bytes of bytes": {"normalizer": sequence(*[{"type": "ByteLevel"}] * 20)},
    "prepended": {"normalizer": {"type": "Prepend", "prepend": "a" * 50}},
    "marks before marks": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Metaspace", "replacement": mark, "prepend_scheme": "always"} for mark in "xyz"],
        }
    },
    "replaced in the output": {"decoder": {"type": "Sequence", "decoders": [replace("a", "aa")] * 40}},
    "the text three times": {"post_processor": {"type": "TemplateProcessing", "single": [TEXT_ONCE] * 3, **UNLIKELY}},
    "never the text": {"post_processor": {"type": "TemplateProcessing", "single": [], **UNLIKELY}},
    "a group repeated": {"pre_tokenizer": regex("(a*)*b")},
    "a group repeated in a look-ahead": {"pre_tokenizer": regex("(?=(?:a|a)+b)")},
    "a group after a control character": {"pre_tokenizer": regex(r"\c[(a*)*b")},
    "a group after a comment": {"pre_tokenizer": regex("(?#[)(a*)*b")},
    "a group in another syntax": {"pre_tokenizer": regex("(?x)# [\n(a*)*b")},
    "a reference": {"pre_tokenizer": regex(r"(a*)\1b")},
    "loops in a row": {"pre_tokenizer": regex("a*a*a*a*a*b")},
    "loops in groups in a row": {"pre_tokenizer": regex("(?:b|a*)(?:b|a*)(?:b|a*)(?:b|a*)(?:b|a*)b")},
    "a large count": {"pre_tokenizer": regex("a{100000}")},
    "a broken expression": {"pre_tokenizer": regex("(")},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "unknown": {"normalizer": {"type": "Exec", "command": "true"}},
    "no type": {"normalizer": {"strip_left": True}},
    "an unknown model": {"model": {"type": "Oracle", "vocab": {}}},
    "a word of any length": {
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]", "max_input_chars_per_word": 10**9}
    },
    "a token of any length": {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a" * 5000, -1.0]], "unk_id": 0}},
    "an added token of any length": {"added_tokens": [{"id": 4, "content": "a" * 5000, "special": True}]},
}


@pytest.mark.parametrize("changed", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tokenizer_is_refused_before_the_library_sees_it(
    changed: dict[str, Any], made: Callable[..., TokenizersTokenizer], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        VocabularyError, match=r"tokenizer\.json: (not a tokenizer of the|a broken precompiled)"
    ) as caught:
        made(**changed)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert capfd.readouterr().err == ""  # Rust reports panics here


HONEST_PATTERNS = (  # from expressions of published models, with shortened parts
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"[\x{3000}-\x{303f}]+|\x{3000}+",
)


@pytest.mark.parametrize("pattern", HONEST_PATTERNS)
def test_patterns_of_published_tokenizers_are_accepted(pattern: str, made: Callable[..., TokenizersTokenizer]) -> None:
    assert made(pre_tokenizer=regex(pattern)).encode("a").tolist() == [1]


def test_honest_sections_are_accepted(made: Callable[..., TokenizersTokenizer]) -> None:
    """Accept the files that converters write for ALBERT, T5, Llama, BERT and GPT-2."""
    spaces = replace(" {2,}", "\u2581", "Regex")
    albert = (replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"})
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True}  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [TEXT_ONCE, {"SpecialToken": {"id": "<unk>", "type_id": 0}}],
                "pair": UNLIKELY["pair"],
                "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}}  # fmt: skip
    decoders = {
        "type": "Sequence",
        "decoders": [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }  # fmt: skip
    for changed in (
        {"normalizer": sequence(*albert, precompiled(charsmap(98, b"a\0")), spaces)},
        {"normalizer": sequence(precompiled(NO_MAP), strip, spaces), "pre_tokenizer": metaspace},
        {"normalizer": sequence({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")), "decoder": decoders},
        {"normalizer": bert, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": template},
        {"pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level},
    ):
        made(**changed).encode("a b")
    assert made(normalizer=precompiled(charsmap(98, b"a\0"))).encode("b").tolist() == [1]  # uses the map made here


def test_map_of_sentencepiece_is_accepted(tmp_path: Path) -> None:
    """Accept SentencePiece's map for NFKC, which converters put into a tokenizer.json."""
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentence_pieces(29, ["the cat sat on the mat"] * 5))
    assert SentencePieceTokenizer(path).growth == 33  # U+FDFA becomes 18 characters


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_missing_unknown_token_fails_a_document_and_not_the_run(
    kind: str, made: Callable[..., TokenizersTokenizer]
) -> None:
    model = {"type": kind, "vocab": {"a": 0}, "unk_token": "[UNK]"}
    more = {} if kind == "WordLevel" else {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    tokenizer = made(model={**model, **more})
    assert tokenizer.encode("a a").tolist() == [0, 0]
    assert not tokenizer.merges_newlines
    with pytest.raises(TextError, match=r"mine: the bundle's tokenizer fails on this text \(.*UNK"):
        list(tokenizer.read(io.BytesIO(b"a b"), "mine", TextCounts()))


def test_score_goes_on_after_a_document_that_the_library_fails_on(
    bundle_with: BundleWith, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Cause a panic, which derives from BaseException: the engine stops after ten million steps."""
    from xlexport.commands import execute

    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_fields(pre_tokenizer=regex("a*a*a*a*$|."))))
    folder = bundle_with("tokenizers", path)
    documents = {"bad": "a" * 500 + "b", "good": "b a b"}
    for name, text in documents.items():
        (tmp_path / f"{name}.txt").write_text(text)
    paths = [str(tmp_path / f"{name}.txt") for name in documents]
    assert execute(["score", str(folder), *paths, "--json"]) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)["document"] for line in out.splitlines()] == paths[1:]
    errors = [json.loads(line) for line in err.splitlines() if line.startswith('{"error"')]
    assert [error["type"] for error in errors] == ["TextError"]
    assert "bad.txt: the bundle's tokenizer fails on this text (" in errors[0]["error"]


def test_text_that_a_normalizer_makes_long_is_refused(made: Callable[..., TokenizersTokenizer]) -> None:
    """Expand U+FDFA to 33 bytes with an honest normalizer."""
    tokenizer = made(normalizer={"type": "NFKC"})
    small = Limits(bytes=30_000)
    (piece,) = tokenizer.read(io.BytesIO(b"a " * 15_000), "it", TextCounts(), small)
    assert len(piece) == 15_000
    with pytest.raises(TextError, match=r"it, as its tokenizer writes it: .* more than 60,000 bytes of memory"):
        list(tokenizer.read(io.BytesIO("\ufdfa".encode() * 10_000), "it", TextCounts(), small))


def test_document_beyond_the_limit_is_not_read_to_its_end(made: Callable[..., TokenizersTokenizer]) -> None:
    file = io.BytesIO(b"a " * 15_000)
    with pytest.raises(TextError, match="it: reading it would take more than 1,000 bytes of memory"):
        list(made().read(file, "it", TextCounts(), Limits(bytes=1000)))
    assert file.tell() == 1001


def test_file_is_read_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_fields(extra=[[]] * 100_000)))
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: reading it would take more than 1,000,000 bytes"):
        TokenizersTokenizer(path, Limits(bytes=1_000_000))
    path.write_bytes(sentencepiece_file(more=field(1, b"") * 100_000))
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: reading it would take more than 1,000,000 bytes"):
        SentencePieceTokenizer(path, Limits(bytes=1_000_000))


def test_library_gets_the_checked_content(tmp_path: Path) -> None:
    """Repeat a section, because readers disagree on which one counts."""
    path = tmp_path / "tokenizer.json"
    text = json.dumps(tokenizer_fields())
    path.write_text(text[:-1] + ', "normalizer": ' + json.dumps(replace("a", "b")) + "}")
    assert TokenizersTokenizer(path).encode("a").tolist() == [2]
    path.write_text('{"normalizer": ' + json.dumps(precompiled(b"ab")) + ", " + text[1:])
    assert TokenizersTokenizer(path).encode("a").tolist() == [1]


SENTENCEPIECE = {
    "map of two bytes": sentencepiece_file(b"ab"),
    "map that is longer than the file": sentencepiece_file(struct.pack("<I", 0xFFFFFFFC) + bytes(12)),
    "map that leads out": sentencepiece_file(TRIE + struct.pack("<I", 0x7FFFFE00) * 256 + b"a\0"),
    "map to no replacement": sentencepiece_file(charsmap(97, b"xy\0", place=9)),
    "map without an end": sentencepiece_file(charsmap(97, b"xy")),
    "piece of any length": sentencepiece_file(more=field(1, field(1, b"a" * 5000))),
    "trainer of any length": sentencepiece_file(trainer=field(44, b"?" * (2 << 20))),
    "field that is longer than the file": sentencepiece_file() + b"\x0a\xff\xff\xff\xff\x0f",
    "number without end": sentencepiece_file() + b"\xff" * 11,
    "group": sentencepiece_file() + b"\x0b",
}


@pytest.mark.parametrize("content", SENTENCEPIECE.values(), ids=SENTENCEPIECE)
def test_hostile_sentencepiece_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=r"tokenizer\.model: (not a SentencePiece model|a broken precompiled)"):
        SentencePieceTokenizer(path)


def test_sentencepiece_model_made_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece_file())
    assert SentencePieceTokenizer(path).encode("ab").tolist() == [3, 1, 2]
