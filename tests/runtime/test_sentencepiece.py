"""Bundles with a SentencePiece model."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.tokenizer_kinds import sentence_pieces
from tests.runtime.conftest import BundleWith
from xlruntime import Model, VocabularyError, load
from xlruntime.documents import TextCounts
from xlruntime.tokenizers.libraries import SentencePieceTokenizer
from xlruntime.tokenizers.white_space import starts_word

sentencepiece = pytest.importorskip("sentencepiece")

WT103 = Path(__file__).resolve().parents[3] / "shared/data/wt103_sentencepiece.model"
needs_wt103 = pytest.mark.skipif(not WT103.is_file(), reason=f"{WT103} is missing")


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny model of at most 29 pieces."""
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    path.write_bytes(sentence_pieces(29, ["the cat sat on the mat"] * 5))
    return path


@pytest.fixture
def model(bundle_with: BundleWith, model_file: Path) -> Model:
    return load(bundle_with("sentencepiece", model_file), threads=1)


def test_text_there_and_back(model_file: Path) -> None:
    tokenizer = SentencePieceTokenizer(model_file)
    assert tokenizer.vocab_size is not None
    assert tokenizer.vocab_size <= 29
    assert tokenizer.unk_id == 0
    ids = tokenizer.encode("the cat")
    assert ids.dtype == np.int64
    assert tokenizer.encode(b"the cat").tolist() == tokenizer.encode_piece("the cat", None).tolist() == ids.tolist()
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.merges_newlines


def test_pieces_that_begin_with_white_space(model_file: Path) -> None:
    tokenizer = SentencePieceTokenizer(model_file)
    found = starts_word(tokenizer, 40)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    names = {pieces.id_to_piece(number) for number in np.flatnonzero(found).tolist()}
    assert {"<s>", "</s>", "▁mat"} <= names and "<unk>" not in names
    assert all(name in ("<s>", "</s>") or name.startswith("▁") for name in names)
    assert tokenizer.id_of("▁mat") == pieces.piece_to_id("▁mat")
    assert tokenizer.id_of("dog") is None


def test_offsets_are_characters(model: Model) -> None:
    document = " the 日本 cat \U0001f642\nsat"
    parts = list(model.score_tokens([document]))
    places = [place for part in parts for place in zip(part.starts.tolist(), part.ends.tolist(), strict=True)]
    covered = [document[start:end] for start, end in places]
    assert "".join(covered) == document[places[0][0] :]
    tokens = np.concatenate([part.tokens for part in parts])
    unknown = "".join(text for text, token in zip(covered, tokens, strict=True) if token == 0)
    assert "日本" in unknown
    assert "\U0001f642" in unknown


def test_unknown_pieces_are_counted(model: Model) -> None:
    (score,) = model.score(["the 日 cat 本"])
    assert score.unknown_tokens == 2
    assert (score.bytes, score.dropped_bytes) == (len("the 日 cat 本".encode()), 0)


@needs_wt103
def test_model_of_wikitext_103() -> None:
    """Check a real model with NFKC normalisation: offsets refer to the original text."""
    tokenizer = SentencePieceTokenizer(WT103)
    assert tokenizer.vocab_size == 30_000
    document = "\ufeffThe caf\u00e9  \u65e5\u672c \ufb01ne\r\n\tnext \u2460 line"
    counts = TextCounts()
    (piece,) = tokenizer.read(io.BytesIO(document.encode()), "it", counts)
    covered = [document[start:end] for start, end in zip(piece.starts, piece.ends, strict=True)]
    assert "".join(covered) == document[1:]  # all but the mark
    assert covered[:2] == ["The", " caf\u00e9"]
    assert any(text.strip() == "\ufb01ne" for text in covered)
    assert (counts.first_token_chars, counts.first_token_bytes) == (4, 6)
    assert tokenizer.decode(piece.ids[:2]) == "The caf\u00e9"


@pytest.mark.parametrize("content", [b"", b"{}", b"not a model", b"\n\x0e\n\x05<unk>"])
def test_file_that_is_not_a_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.model").write_bytes(content)
    with pytest.raises(VocabularyError, match=r"broken\.model: not a SentencePiece model \(.*\)\.") as caught:
        SentencePieceTokenizer(tmp_path / "broken.model")
    assert "\n" not in str(caught.value)
