"""Bundles with a tokenizer.json of the tokenizers library."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.conftest import BundleWith, Close
from xlruntime import Document, Model, TextError, TokenError, VocabularyError, XlruntimeError, load
from xlruntime.tokenizers.libraries import TokenizersTokenizer

tokenizers = pytest.importorskip("tokenizers")

WORDS = ("<unk>", "the", "sea", "was", "grün", "日本")


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """Make a tokenizer of words between white space, which truncates and pads by default."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<unk> $A <unk>", special_tokens=[("<unk>", 0)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def text_model(bundle_with: BundleWith, tokenizer_file: Path) -> Model:
    return load(bundle_with("tokenizers", tokenizer_file), threads=1)


def test_text_becomes_ids_without_special_tokens_padding_or_truncation(tokenizer_file: Path) -> None:
    tokenizer = TokenizersTokenizer(tokenizer_file)
    assert tokenizer.vocab_size == len(WORDS)
    for text in ("the sea was grün 日本 red", "the sea was grün 日本 red".encode()):
        assert tokenizer.encode(text).tolist() == [1, 2, 3, 4, 5, 0]
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.merges_newlines
    assert tokenizer.encode("").dtype == np.int64
    assert tokenizer.decode(np.array([1, 2])) == "the sea"


def test_other_threads_run_while_a_text_is_tokenized(tokenizer_file: Path) -> None:
    thread = threading.Thread(target=TokenizersTokenizer(tokenizer_file).encode, args=("the cat " * 200_000,))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.01)
        turns += 1
    assert turns > 10


def test_newline_with_a_token_of_its_own(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "\n": 1, "b": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert not TokenizersTokenizer(tmp_path / "tokenizer.json").merges_newlines


def test_offsets_are_characters(text_model: Model, close: Close) -> None:
    text = " grün  sea\nwas 日本 the"
    (scores,) = text_model.score_tokens([text])
    assert [text[start:end] for start, end in zip(scores.starts, scores.ends, strict=True)] == text.split()[1:]
    assert scores.tokens.tolist() == [2, 3, 5, 1]
    close(scores.log_probs, text_model.stream().feed([4, 2, 3, 5, 1]).log_probs)


def test_counts_leave_out_the_text_before_the_second_token(text_model: Model) -> None:
    text = " grün sea"
    (score,) = text_model.score([text])
    assert (score.tokens, score.chars, score.bytes, score.words) == (2, 9, 10, 2)
    assert score.bits_per_char == pytest.approx(score.bits / len(" sea"))
    assert score.bits_per_byte == pytest.approx(score.bits / len(b" sea"))
    assert score.bits_per_token == pytest.approx(score.bits)


def test_document_without_tokens(text_model: Model) -> None:
    (score,) = text_model.score(["  \n "])
    assert (score.tokens, score.scored_tokens, score.chars, score.nats) == (0, 0, 4, 0.0)


def test_text_that_is_not_utf8_names_the_byte(text_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes("the sea was grün".encode("latin-1"))
    with pytest.raises(
        TextError, match=r"latin1\.txt: not UTF-8 at byte 14 \(0xfc\).*iconv -f latin1 -t utf-8"
    ) as caught:
        list(text_model.score([path]))
    assert "\n" not in str(caught.value)
    with pytest.raises(TextError, match="the text: not UTF-8 at byte 0"):
        text_model.stream().feed(b"\xff")


def test_ids_beyond_the_model_are_refused(bundle_with: BundleWith, tmp_path: Path) -> None:
    """Use a tokenizer with more tokens than the model, which `convert` would refuse."""
    words = {f"w{number}": number for number in range(40)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({**words, "<unk>": 40}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "large.json"))
    model = load(bundle_with("tokenizers", tmp_path / "large.json"), threads=1)
    with pytest.raises(TokenError, match="mine: token 2 has id 29, expected 0 to 28"):
        list(model.score([Document("mine", "w1 w28 w29")]))


@pytest.mark.parametrize("content", ["", "{}", "not JSON"])
def test_file_that_is_not_a_tokenizer_is_refused(content: str, bundle_with: BundleWith, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text(content, "utf-8")
    folder = bundle_with("tokenizers", tmp_path / "broken.json")
    with pytest.raises(VocabularyError, match=r"broken\.json: not (valid JSON|a tokenizer of the tokenizers library)"):
        load(folder)


def test_missing_package_names_the_command_to_install_it(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(XlruntimeError, match=r"tokenizer\.json needs the tokenizers package.*pip install"):
        TokenizersTokenizer(tokenizer_file)
