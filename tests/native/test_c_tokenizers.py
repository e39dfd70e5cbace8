"""Bytes and vocabularies are tokenized by the C runtime as by Python, however a text is cut."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reliability.damage import damage_bytes, damage_json
from tests.helpers.c_base import CRefusal, ask, outcome
from tests.runtime.test_vocabulary_tokenizer import EVERY, PARTS, WIKITEXT
from xlruntime import documents, spec
from xlruntime.documents import TextCounts, Tokenizer, check_ids
from xlruntime.limits import Limits, read_json
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary

pytestmark = pytest.mark.native

COUNTED = ("bytes", "chars", "words", "first_token_bytes", "first_token_chars", "dropped_bytes", "dropped_chars")
SIGMAS = ("a", "Σ", "ς", "σ", "i", "\u0307", "_", "<eos>")
SPECIAL = Vocabulary("characters", SIGMAS, unk="_", line_end="<eos>", lower_case=True)
MARKS = Vocabulary("words", ("<S>", "a", "\ufeff", "b\ufeff"), line_start="<S>", unk="a")
NUMBERS = Vocabulary("bytes", ("10", "13", "<eos>", "97"), line_end="<eos>", unk="97")
VOCABULARIES = (*EVERY, SPECIAL, MARKS, NUMBERS)
WORDED_BY_PYTHON = ("argument", "not valid JSON", "unhashable")
ALL = [*range(len(VOCABULARIES)), "bytes", "bytes from 3"]
TEXTS = [*PARTS, "\x1c", "\x1f", "\u3000", "\u200b", "Ä", "ß", "ΑΣ", "A\u0301Σ", "\0", "\v", "\f", "<eos>", "the sea"]
RAW = [part.encode() for part in TEXTS] + [b"\xff", b"\xc3", b"\xe2\x82", b"\x80", b"\xed\xa0\x80"]


@pytest.fixture(params=ALL, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Return Python's tokenizer, and what commands take to name the same in C."""
    entry: dict[str, Any] = {"kind": "bytes", "file": None, "first_id": 3 if request.param == "bytes from 3" else 0}
    if isinstance(request.param, int):
        (tmp_path / "vocabulary.json").write_text(VOCABULARIES[request.param].to_json(), "utf-8")
        entry = {"kind": "vocabulary", "file": "vocabulary.json", "first_id": 0}
    return make_tokenizer(spec.Tokenizer(**entry), tmp_path), {"tokenizer": entry, "folder": tmp_path}


def read(tokenizer: Tokenizer, raw: bytes) -> dict[str, Any]:
    counts = TextCounts()
    pieces = list(tokenizer.read(io.BytesIO(raw), "the text", counts, documents.DOCUMENT_LIMITS))
    found = {name: [int(n) for piece in pieces for n in getattr(piece, name)] for name in ("ids", "starts", "ends")}
    return {**found, "counts": [getattr(counts, name) for name in COUNTED]}


def documents_of(rng: random.Random, n: int) -> list[bytes]:
    """Return short texts; every fourth may not be UTF-8."""
    return [b"".join(rng.choices(RAW if i % 4 == 0 else RAW[: len(TEXTS)], k=rng.randrange(25))) for i in range(n)]


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    size = rng.choice((1, 2, 3, 7, 1000))
    return [raw[at : at + size] for at in range(0, len(raw), size)] or [b""]


def test_documents(pair: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, asked = pair
    rng = random.Random(13)
    for raw in documents_of(rng, 300):
        ours = outcome(lambda: read(tokenizer, raw))  # noqa: B023
        theirs = outcome(lambda: ask("read", **asked, pieces=cut(raw, rng)))  # noqa: B023
        if isinstance(ours, tuple):
            # Cuts decide which of several problems comes first, and which symbols one message lists.
            whole = outcome(lambda: ask("read", **asked, pieces=[raw]))  # noqa: B023
            assert whole == ours and theirs[0] in ("TextError", "TokenError"), raw
        else:
            assert theirs == ours, raw


def test_pieces_of_streams(pair: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, asked = pair
    rng = random.Random(14)
    for raw in documents_of(rng, 150):
        for previous in (None, 0, 1, 2):
            ours = outcome(lambda: tokenizer.encode_piece(raw, previous).tolist())  # noqa: B023
            assert outcome(lambda: ask("encode_piece", **asked, text=raw, previous=previous)) == ours, raw  # noqa: B023


def test_texts_of_ids(pair: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, asked = pair
    rng, size = random.Random(15), tokenizer.vocab_size or 0
    for length in (*range(10), 100, 1000):
        ids = [rng.randrange(size) for _ in range(length)]
        found = bytes.fromhex(ask("decode", **asked, ids=ids))
        assert found == tokenizer.decode(np.array(ids, np.int64)).encode()
    if asked["tokenizer"]["kind"] == "vocabulary":
        for wrong in (-1, size):
            ours = outcome(lambda: check_ids(np.array([0, wrong]), size, "the tokens"))  # noqa: B023
            assert outcome(lambda: ask("decode", **asked, ids=[0, wrong])) == ours  # noqa: B023


@pytest.mark.parametrize("kind", ["none", "tokenizers", "sentencepiece"])
def test_ids_alone(kind: str) -> None:
    asked = {"tokenizer": {"kind": kind, "file": None if kind == "none" else "x", "first_id": 0}, "folder": "."}
    assert bytes.fromhex(ask("decode", **asked, ids=[5, 0, 17])) == b"5 0 17"
    said = "has no tokenizer" if kind == "none" else f"needs the library {kind}, which the C runtime lacks"
    for do, given in (("read", {"pieces": [b"a"]}), ("encode_piece", {"text": b"a", "previous": None})):
        with pytest.raises(CRefusal, match=f"the text: this bundle.*{said}.*takes token ids, not text"):
            ask(do, **asked, **given)


def test_wikitext(tmp_path: Path) -> None:
    if not WIKITEXT.is_file():
        pytest.skip(f"{WIKITEXT} is missing")
    raw = WIKITEXT.read_bytes()[: 1 << 17]
    words = dict.fromkeys(raw.decode("utf-8", "ignore").split())
    vocabulary = Vocabulary("words", ("<eos>", *(word for word in words if word != "<eos>")), "<unk>", line_end="<eos>")
    (tmp_path / "vocabulary.json").write_text(vocabulary.to_json(), "utf-8")
    entry = {"kind": "vocabulary", "file": "vocabulary.json", "first_id": 0}
    raw = raw[: raw.rindex(b"\n") + 1]
    tokenizer = make_tokenizer(spec.Tokenizer(**entry), tmp_path)  # type: ignore[arg-type]
    pieces = [raw[at : at + 5000] for at in range(0, len(raw), 5000)]
    assert ask("read", tokenizer=entry, folder=tmp_path, pieces=pieces) == read(tokenizer, raw)


def vocabulary_outcomes(file: Path, number: int) -> tuple[Any, Any]:
    """Return the outcomes of reading a vocabulary: its first symbol, or the refusal. The program keeps none open."""

    def in_python() -> str:
        fields = read_json(file, Limits(), repair="Convert the checkpoint again.")
        return Vocabulary.from_fields(fields, str(file)).symbols[0]

    def in_c() -> str:
        entry = {"kind": "vocabulary", "file": file.name, "first_id": number}
        raw = bytes.fromhex(ask("decode", tokenizer=entry, folder=file.parent, ids=[0]))
        return raw.decode()

    return outcome(in_python), outcome(in_c)


def plain(found: Any) -> Any:
    """Return the start of a message about fields or JSON; Python words the rest as an error of a call."""
    if isinstance(found, tuple) and any(part in found[1] for part in WORDED_BY_PYTHON):
        return found[0]
    return found


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda f: f.update(symbols=[]),
    lambda f: f.update(symbols=["a", "b", "a", "b", "c"]),
    lambda f: f.update(symbols=["a", "", 3, None, ["x"], {"y": 1.5}, True]),
    lambda f: f.update(symbols=["a", "\ud800"]),
    lambda f: f.update(symbols=[*"ab"] * 2 + [*"cdefgh"] * 2),
    lambda f: f.update(unk="<unk>"),
    lambda f: f.update(unk=5, line_end=["x" * 50], line_start={}),
    lambda f: f.update(line_end="<eos>", line_start="<S>"),
    lambda f: f.update(kind="characters", symbols=["a", "<pad>", "bc", "d", "[x]", "<>", "é", "🙂", "<x]"]),
    lambda f: f.update(kind="bytes", symbols=["0", "256", "007", "a", "²", "-1", "<é>"]),
    lambda f: f.update(kind="sounds"),
    lambda f: f.update(kind=None),
    lambda f: f.update(space="a"),
    lambda f: f.update(kind="characters", line_start="a"),
    lambda f: f.update(lower_case=1),
    lambda f: f.update(symbols=["x" * 1000] * 2),
    lambda f: f.update(symbols=["\x1b[2J", "\x1b[2J"]),
    lambda f: f.update(format="other"),
    lambda f: f.pop("format"),
    lambda f: f.pop("kind"),
    lambda f: f.pop("symbols"),
    lambda f: f.update(extra=1),
    lambda f: f.update(symbols=3),
    lambda f: f.update(symbols="abc"),
]


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_vocabularies_that_are_refused(change: int, tmp_path: Path) -> None:
    fields = json.loads(Vocabulary("words", ("a", "b")).to_json())
    CHANGES[change](fields)
    (tmp_path / "vocabulary.json").write_text(json.dumps(fields), "utf-8")
    ours, theirs = vocabulary_outcomes(tmp_path / "vocabulary.json", 0)
    assert ours[0] == "BundleError" == theirs[0]
    if plain(ours) == ours:
        assert theirs == ours


def test_damaged_vocabularies(tmp_path: Path) -> None:
    rng, file, accepted = random.Random(16), tmp_path / "vocabulary.json", 0
    texts = [vocabulary.to_json() for vocabulary in VOCABULARIES]
    for number in range(600):
        text = rng.choice(texts)
        raw = damage_json(json.loads(text), rng, (50,)).encode() if number % 2 else damage_bytes(text.encode(), rng)
        file.write_bytes(raw)
        ours, theirs = vocabulary_outcomes(file, number)
        if isinstance(ours, str) and isinstance(theirs, str):
            accepted += 1  # the first symbol may become another text
        else:
            assert theirs[0] == ours[0] if plain(ours) != ours else theirs == ours, raw
    assert accepted > 20
