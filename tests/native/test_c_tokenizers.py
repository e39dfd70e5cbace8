"""Bytes and vocabularies are tokenized by the C runtime as by Python, in documents and in pieces of streams."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from tests.runtime.test_vocabulary_tokenizer import EVERY, PARTS
from xlruntime import XlruntimeError, bundle, documents
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
RAW = [part.encode() for part in TEXTS] + [b"\xff", b"\xc3", b"\xe2\x82", b"\x80", b"\xed\xa0\x80"]
COUNTED = ("bytes", "chars", "words", "dropped_bytes", "dropped_chars")


@pytest.fixture(params=[*range(len(VOCABULARIES)), "bytes"], ids=str)
def pair(request: pytest.FixtureRequest, c_runtime: CRuntime, tmp_path: Path) -> tuple[Tokenizer, CModel]:
    """Return a tokenizer of Python, and a bundle in C that has the same."""
    if request.param == "bytes":
        return make_tokenizer(bundle.Tokenizer("bytes"), tmp_path), c_runtime.load(golden_bundle(EMPTY))
    file = tmp_path / "vocabulary.json"
    file.write_text(VOCABULARIES[request.param].to_json(), "utf-8")
    folder = with_tokenizer(golden_bundle(EMPTY), tmp_path / "bundle", file, kind="vocabulary")
    return make_tokenizer(bundle.Tokenizer("vocabulary", file.name), tmp_path), c_runtime.load(folder)


def outcome(attempt: Callable[[], Any]) -> Any:
    """Return what an attempt gives, or the code of its error."""
    try:
        return attempt()
    except XlruntimeError as error:
        return error.code
    except CError as error:
        return error.code


def documents_of(rng: random.Random, n: int) -> list[bytes]:
    """Return short texts; every fourth may not be UTF-8."""
    return [b"".join(rng.choices(RAW if i % 4 == 0 else RAW[: len(TEXTS)], k=rng.randrange(25))) for i in range(n)]


def in_python(tokenizer: Tokenizer, raw: bytes) -> dict[str, Any]:
    counts = TextCounts()
    pieces = list(tokenizer.read(io.BytesIO(raw), "the text", counts, documents.DOCUMENT_LIMITS))
    columns = {name: [int(n) for piece in pieces for n in getattr(piece, name)] for name in ("ids", "starts", "ends")}
    return {**columns, "counts": {name: asdict(counts)[name] for name in COUNTED}}


def in_c(model: CModel, raw: bytes) -> dict[str, Any]:
    """Return the tokens and counts of a document; the first token is one before it, so that all have scores."""
    total, steps = model.score(raw, bos=0)
    names = {"ids": "tokens", "starts": "starts", "ends": "ends"}
    columns = {name: [int(n) for step in steps for n in getattr(step, field)] for name, field in names.items()}
    assert columns["ids"] == model.encode(raw).tolist()
    return {**columns, "counts": {name: getattr(total, name) for name in COUNTED}}


def test_documents(pair: tuple[Tokenizer, CModel]) -> None:
    tokenizer, model = pair
    for raw in documents_of(random.Random(13), 150):
        expected = outcome(lambda: in_python(tokenizer, raw))  # noqa: B023
        assert outcome(lambda: in_c(model, raw)) == expected, raw  # noqa: B023


def test_a_document_of_several_reads(pair: tuple[Tokenizer, CModel]) -> None:
    tokenizer, model = pair
    text = [part for part in RAW[: len(TEXTS)] if part != "Σ".encode()]
    raw = b"".join(random.Random(15).choices(text, k=7000))  # more than is read at once
    assert outcome(lambda: in_c(model, raw)) == outcome(lambda: in_python(tokenizer, raw))


def test_pieces_of_streams(pair: tuple[Tokenizer, CModel]) -> None:
    tokenizer, model = pair
    for raw in documents_of(random.Random(14), 60):
        for previous in (0, 1, 2):
            stream = model.stream()
            stream.feed([previous])
            expected = outcome(lambda: tokenizer.encode_piece(raw, previous).tolist())  # noqa: B023
            found = outcome(lambda: [*stream.feed(raw).tokens, *stream.flush().tokens])  # noqa: B023
            assert found == expected, raw


def test_texts_of_ids(pair: tuple[Tokenizer, CModel]) -> None:
    tokenizer, model = pair
    rng, size = random.Random(15), tokenizer.vocab_size or 0
    for length in (*range(10), 100, 1000):
        ids = [rng.randrange(size) for _ in range(length)]
        assert model.decode(ids) == tokenizer.decode(np.array(ids, np.int64))
    with pytest.raises(CError) as error:
        model.decode([256])
    assert error.value.code == "token"


def test_lower_case_of_all_characters(c_runtime: CRuntime, tmp_path: Path) -> None:
    marks = [chr(code) for code in range(0x21, 0x3000) if not chr(code).isspace()]
    words = [f"{mark.lower()}x" for mark in marks] + [f"x{mark}".lower() for mark in marks]
    vocabulary = Vocabulary("words", tuple(dict.fromkeys([*words, "?"])), unk="?", lower_case=True)
    (tmp_path / "vocabulary.json").write_text(vocabulary.to_json(), "utf-8")
    folder = with_tokenizer(golden_bundle(EMPTY), tmp_path / "b", tmp_path / "vocabulary.json", kind="vocabulary")
    text = " ".join([f"{mark}x" for mark in marks] + [f"x{mark}" for mark in marks])
    tokenizer = make_tokenizer(bundle.Tokenizer("vocabulary", "vocabulary.json"), tmp_path)
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
