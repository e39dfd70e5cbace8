"""Texts end at the tokens that the bundle names, and tokens that the tokenizer lacks are never drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.manifests import with_tokenizer
from tests.helpers.tokenizer_kinds import sentence_pieces
from xlruntime import GrowingText, Model, Sampling, load
from xlruntime.bundle import TextToken, TokenizerEntry
from xlruntime.tokenizers import make_tokenizer

GREEDY = Sampling(temperature=0)
PROMPT = [7, 3, 30, 12, 5]  # tokens of all models here


def ending(model: Model, folder: Path, *ids: int) -> Model:
    """Return a copy of a model whose texts end at these tokens."""
    ends = [{"id": number, "name": str(number), "source": "a test"} for number in ids]
    return load(with_tokenizer(model.folder, folder, ends=ends))


@pytest.mark.parametrize("name", ["bytes_model", "chunk_model"])  # a stream; whole documents
def test_generation_ends_before_an_end_token(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model: Model = request.getfixturevalue(name)
    free = list(model.generate(PROMPT, max_tokens=12, sampling=GREEDY))
    end = free[4]
    place = free.index(end)
    bundle = ending(model, tmp_path / "bundle", end)
    assert list(bundle.generate(PROMPT, max_tokens=12, sampling=GREEDY)) == free[:place]
    assert list(model.generate(PROMPT, max_tokens=12, sampling=Sampling(0, stop_token_ids=(end,)))) == free[:place]
    ignoring = Sampling(0, ignore_eos=True)
    assert list(bundle.generate(PROMPT, max_tokens=12, sampling=ignoring)) == free


def test_end_token_belongs_to_the_document_of_a_stream(bytes_model: Model, tmp_path: Path) -> None:
    free = list(bytes_model.generate(PROMPT, max_tokens=12, sampling=GREEDY))
    stream = ending(bytes_model, tmp_path / "bundle", free[4]).stream()
    drawn = list(stream.generate(PROMPT, max_tokens=12, sampling=GREEDY))
    assert (stream.position, stream.pending) == (len(PROMPT) + len(drawn) + 1, free[4])
    whole = bytes_model.stream()
    whole.feed([*PROMPT, *drawn, free[4]])
    np.testing.assert_allclose(stream.feed(b" and").log_probs, whole.feed(b" and").log_probs, rtol=0, atol=2e-5)


def test_rows_above_the_size_of_the_tokenizer_are_never_drawn(no_text_model: Model, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    file = tmp_path / "tokenizer.model"
    file.write_bytes(sentence_pieces(24, ["The old man went home."] * 20))
    model = load(with_tokenizer(no_text_model.folder, tmp_path / "bundle", file, kind="sentencepiece"))
    size = model.tokenizer.vocab_size
    assert size is not None and size < model.bundle.vocab_size
    assert model.drawable == size
    rule = Sampling(temperature=50, seed=0, repetition_penalty=1.1)
    drawn = list(model.generate([1, model.bundle.vocab_size - 1], max_tokens=60, sampling=rule))
    assert len(drawn) == 60
    assert max(drawn) < size
    assert model.tokenizer.decode([size, model.bundle.vocab_size - 1]) == ""
    assert model.tokenizer.decode([1, size, 2], special=True) == "<s></s>"


def test_special_tokens_are_shown_when_asked_for(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    library.decoder = tokenizers.decoders.Fuse()
    library.add_special_tokens(["<|end|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = make_tokenizer(TokenizerEntry("tokenizers", "tokenizer.json"), tmp_path)
    ids = [0, 2, 1]
    for special, expected in ((False, "ab"), (True, "a<|end|>b")):
        growing = GrowingText(tokenizer, [], special=special)
        assert "".join([*map(growing.add, ids), growing.end()]) == expected
    growing = GrowingText(tokenizer, [], ["<|end|>"], special=True)
    assert "".join([*map(growing.add, ids), growing.end()]) == "a"
    assert growing.stopped


def test_prefix_is_the_begin_token_or_else_an_end_token() -> None:
    begin, end = TextToken(1, "<s>", "a file"), TextToken(2, "</s>", "a file")
    assert TokenizerEntry("bytes").prefix is None
    assert TokenizerEntry("bytes", ends=(end,)).prefix == end
    assert TokenizerEntry("bytes", begin=begin, ends=(end,)).prefix == begin
