"""Texts are tokenized by the C runtime as by Python, in documents and in pieces of streams; files of strangers."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime, CStream
from tests.helpers.manifests import give_tokenizer, with_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from tests.runtime.test_vocabulary_tokenizer import EVERY, PARTS
from xlexport.byte_pair_file import BYTE_PAIR_FILE, byte_pair_file
from xlruntime import XlruntimeError, bundle, documents
from xlruntime.bundle_files import read_bundle
from xlruntime.documents import TextCounts, Tokenizer
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

SIGMAS = ("a", "Σ", "ς", "σ", "i", "\u0307", "_", "<eos>")
SPECIAL = Vocabulary("characters", SIGMAS, unk="_", line_end="<eos>", lower_case=True)
MARKS = Vocabulary("words", ("<S>", "a", "\ufeff", "b\ufeff"), line_start="<S>", unk="a")
NUMBERS = Vocabulary("bytes", ("10", "13", "<eos>", "97"), line_end="<eos>", unk="97")
VOCABULARIES = (*EVERY, SPECIAL, MARKS, NUMBERS)
TEXTS = [*PARTS, "\x1c", "\x1f", "\u3000", "\u200b", "Ä", "ß", "ΑΣ", "A\u0301Σ", "\0", "\v", "\f", "<eos>", "the sea"]
RAW = [part.encode() for part in TEXTS]
WRONG = [b"\xff", b"\xc3", b"\xe2\x82", b"\x80", b"\xed\xa0\x80"]
# Bundles of the conformance kit, and what their tokenizers join.
LONGER = ("text_symbols", "text_trie", "text_gpt2", "text_neox")
PIECES = ["the old man", " the", "CCl", "[C@@H]", "<|end|>", "<|en", "<|end|", "|>", "<", "=", "'s", "'LL", "don't"]
PIECES += [" ", "  ", " " * 7, "\n", "\n\n", "\r\n", "\r", "\t", " \u00a0", "\u3000", "\x1c", "\0", "123", "\u0663"]
PIECES += ["e\u0301", "\u0301", "o\u031b\u0323", "\u1112\u1161\u11ab", "\u1100\u1161", "\u212b", "\u0344", "\u0338"]
PIECES += ["é", "Старик", "日本", "。\n", "\U0001f469\u200d\U0001f680", "!?"]
COUNTED = ("bytes", "chars", "words", "dropped_bytes", "dropped_chars")


class Pair(NamedTuple):
    """A tokenizer of Python, a bundle in C that has the same, and parts of texts for both."""

    tokenizer: Tokenizer
    model: CModel
    parts: list[bytes]


@pytest.fixture(params=[*range(len(VOCABULARIES)), "bytes", *LONGER], ids=str)
def pair(request: pytest.FixtureRequest, c_runtime: CRuntime, tmp_path: Path) -> Pair:
    if request.param == "bytes":
        return Pair(make_tokenizer(bundle.TokenizerEntry("bytes"), tmp_path), c_runtime.load(golden_bundle(EMPTY)), RAW)
    if request.param in LONGER:
        folder = request.getfixturevalue("kit") / "bundles" / request.param
        parts = [part.encode() for part in PIECES]
        return Pair(make_tokenizer(read_bundle(folder).tokenizer, folder), c_runtime.load(folder), parts)
    file = tmp_path / "vocabulary.json"
    file.write_text(VOCABULARIES[request.param].to_json(), "utf-8")
    folder = with_tokenizer(golden_bundle(EMPTY), tmp_path / "bundle", file, kind="vocabulary")
    return Pair(make_tokenizer(bundle.TokenizerEntry("vocabulary", file.name), tmp_path), c_runtime.load(folder), RAW)


def outcome(attempt: Callable[[], Any]) -> Any:
    """Return what an attempt gives, or the code of its error."""
    try:
        return attempt()
    except XlruntimeError as error:
        return error.code
    except CError as error:
        return error.code


def documents_of(rng: random.Random, n: int, parts: list[bytes]) -> list[bytes]:
    """Return short texts; every fourth may not be UTF-8."""
    choices = ([*parts, *WRONG], parts, parts, parts)
    return [b"".join(rng.choices(choices[i % 4], k=rng.randrange(25))) for i in range(n)]


def in_python(tokenizer: Tokenizer, raw: bytes) -> dict[str, Any]:
    counts = TextCounts()
    pieces = list(tokenizer.read(io.BytesIO(raw), "the text", counts, documents.DOCUMENT_LIMITS))
    columns = {name: [int(n) for piece in pieces for n in getattr(piece, name)] for name in ("ids", "starts", "ends")}
    scored = counts.bytes - counts.dropped_bytes - counts.first_token_bytes
    return {**columns, "scored_bytes": scored, **{name: asdict(counts)[name] for name in COUNTED}}


def in_c(model: CModel, raw: bytes) -> dict[str, Any]:
    """Return the tokens and counts of a document; the first token is one before it, so that all have scores."""
    total, steps = model.score(raw, bos=0)
    names = {"ids": "tokens", "starts": "starts", "ends": "ends"}
    columns = {name: [int(n) for step in steps for n in getattr(step, field)] for name, field in names.items()}
    assert columns["ids"] == model.encode(raw).tolist()
    scored = model.score(raw, bos=-2)[0].scored_bytes
    return {**columns, "scored_bytes": scored, **{name: getattr(total, name) for name in COUNTED}}


def compare(pair: Pair, raw: bytes) -> None:
    expected, found = outcome(lambda: in_python(pair.tokenizer, raw)), outcome(lambda: in_c(pair.model, raw))
    is_changed = pair.model.info.tokenizer == b"tokenizers" and isinstance(expected, dict)
    if is_changed and not unicodedata.is_normalized("NFC", raw.decode()):  # the library has other places of marks
        for name in ("starts", "ends", "scored_bytes"):
            del expected[name], found[name]
    assert found == expected, raw


def test_documents(pair: Pair) -> None:
    for raw in documents_of(random.Random(13), 150, pair.parts):
        compare(pair, raw)


def test_a_document_of_several_reads(pair: Pair) -> None:
    parts = [part for part in pair.parts if part != "Σ".encode()]
    compare(pair, b"".join(random.Random(15).choices(parts, k=7000)))  # more than is read at once


def in_pieces(stream: CStream, raw: bytes, cuts: list[int]) -> list[int]:
    parts = [stream.feed(raw[a:b]) for a, b in pairwise([0, *cuts, len(raw)])] + [stream.flush()]
    return [int(token) for part in parts for token in part.tokens]


def test_pieces_of_streams(pair: Pair) -> None:
    rng = random.Random(14)
    for raw in documents_of(rng, 60, pair.parts):
        for previous in (0, 1, 2):
            stream = pair.model.stream()
            stream.feed([previous])
            expected = outcome(lambda: pair.tokenizer.encode_piece(raw, previous).tolist())  # noqa: B023
            n = 0 if isinstance(expected, str) else rng.choice((1, 1, 4, len(raw)))  # cut, another error may be first
            cuts = sorted(rng.choices(range(len(raw) + 1), k=n))
            assert outcome(lambda: in_pieces(stream, raw, cuts)) == expected, (raw, cuts)  # noqa: B023


def test_texts_of_ids(pair: Pair) -> None:
    tokenizer, model, _ = pair
    rng, size = random.Random(15), tokenizer.vocab_size or 0
    for length in (*range(10), 100, 1000):
        ids = [rng.randrange(size) for _ in range(length)]
        assert model.decode(ids) == tokenizer.decode(np.array(ids, np.int64))
    with pytest.raises(CError) as error:
        model.decode([1000])
    assert error.value.code == "token"


def test_lower_case_of_all_characters(c_runtime: CRuntime, tmp_path: Path) -> None:
    marks = [chr(code) for code in range(0x21, 0x3000) if not chr(code).isspace()]
    words = [f"{mark.lower()}x" for mark in marks] + [f"x{mark}".lower() for mark in marks]
    vocabulary = Vocabulary("words", tuple(dict.fromkeys([*words, "?"])), unk="?", lower_case=True)
    (tmp_path / "vocabulary.json").write_text(vocabulary.to_json(), "utf-8")
    folder = with_tokenizer(golden_bundle(EMPTY), tmp_path / "b", tmp_path / "vocabulary.json", kind="vocabulary")
    text = " ".join([f"{mark}x" for mark in marks] + [f"x{mark}" for mark in marks])
    tokenizer = make_tokenizer(bundle.TokenizerEntry("vocabulary", "vocabulary.json"), tmp_path)
    assert c_runtime.load(folder).encode(text).tolist() == in_python(tokenizer, text.encode())["ids"]


@pytest.mark.parametrize("kind", ["none", "tokenizers", "sentencepiece"])
def test_ids_alone(kind: str, c_runtime: CRuntime, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    folder = with_tokenizer(
        golden_bundle(EMPTY), tmp_path / "bundle", None if kind == "none" else tmp_path / "x", kind=kind
    )
    model = c_runtime.load(folder)
    assert not model.info.reads_text
    for attempt in (lambda: model.encode("a"), lambda: model.score("a"), lambda: model.stream().feed("a")):
        with pytest.raises(CError, match="takes token ids, not text") as error:
            attempt()
        assert error.value.code == "text"
    with pytest.raises(CError, match="cannot turn them into text") as error:
        model.decode([5, 0, 17])
    assert error.value.code == "text"


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda f: f.update(symbols=[]),
    lambda f: f.update(symbols=["a", "b", "a"]),
    lambda f: f.update(symbols=["a", ""]),
    lambda f: f.update(symbols=["a", 3]),
    lambda f: f.update(symbols="abc"),
    lambda f: f.update(unk="<unk>"),
    lambda f: f.update(unk=5),
    lambda f: f.update(kind="characters", symbols=["a", "bc"]),
    lambda f: f.update(kind="bytes", symbols=["0", "256"]),
    lambda f: f.update(kind="bytes", symbols=["007"]),
    lambda f: f.update(kind="sounds"),
    lambda f: f.update(space="a"),
    lambda f: f.update(kind="characters", line_start="a"),
    lambda f: f.update(lower_case=1),
    lambda f: f.update(format="other"),
    lambda f: f.update(extra=1),
    *(lambda f, name=name: f.pop(name) for name in ("format", "kind", "symbols")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_vocabularies_that_are_refused(change: Callable[[Any], Any], c_runtime: CRuntime, tmp_path: Path) -> None:
    fields = json.loads(Vocabulary("words", ("a", "b")).to_json())
    change(fields)
    (tmp_path / "vocabulary.json").write_text(json.dumps(fields), "utf-8")
    folder = with_tokenizer(golden_bundle(EMPTY), tmp_path / "bundle", tmp_path / "vocabulary.json", kind="vocabulary")
    with pytest.raises(CError) as error:
        c_runtime.load(folder)
    assert error.value.code == "vocabulary"


def with_byte_pairs(kit: Path, folder: Path, change: Callable[[Any], Any]) -> Path:
    """Return a copy of a bundle whose tokenizer.json is changed."""
    shutil.copytree(kit / "bundles" / "text_gpt2", folder)
    fields = json.loads((folder / "tokenizer.json").read_bytes())
    change(fields)
    (folder / "tokenizer.json").write_text(json.dumps(fields), "utf-8")
    content = byte_pair_file((folder / "tokenizer.json").read_bytes())
    assert content is not None
    (folder / BYTE_PAIR_FILE).write_bytes(content)
    give_tokenizer(folder, "tokenizers", "tokenizer.json", BYTE_PAIR_FILE)
    return folder


def test_merges_can_be_ignored(c_runtime: CRuntime, kit: Path, tmp_path: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["model"]["ignore_merges"] = True
        fields["model"]["vocab"]["qxz"] = len(fields["model"]["vocab"])

    model = c_runtime.load(with_byte_pairs(kit, tmp_path / "bundle", change))
    assert len(model.encode("qxz")) == 1 and len(model.encode("qxzz")) == 4


def test_damaged_byte_pairs_are_refused(c_runtime: CRuntime, kit: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kit / "bundles" / "text_neox", tmp_path / "bundle")
    raw = (folder / BYTE_PAIR_FILE).read_bytes()
    rng = random.Random(5)

    def is_refused(content: bytes) -> bool:
        (folder / BYTE_PAIR_FILE).write_bytes(content)
        give_tokenizer(folder, "tokenizers", "tokenizer.json", BYTE_PAIR_FILE)
        try:
            model = c_runtime.load(folder)
        except CError as error:
            assert error.code == "vocabulary"
            return True
        for text in ("the e\u0301 <|end|>   \u1112\u1161\u11ab", "abc" * 20):
            model.decode(model.encode(text))
        return False

    damaged = [raw[:size] for size in (0, 7, 8, 16, 20, 500, len(raw) // 2, len(raw) - 1)]
    damaged += [raw + b"\0", raw[:16] + struct.pack("<I", 2**32 - 1) + raw[20:]]
    assert all(map(is_refused, damaged))
    places = [rng.randrange(len(raw)) for _ in range(40)]
    flipped = [raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :] for place in places]
    assert sum(map(is_refused, flipped)) > 3
