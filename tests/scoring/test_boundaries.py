"""Surprisal with the correction for word boundaries, against full distributions computed from the beginning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import xlruntime
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import golden_bundle
from tests.scoring.conftest import Score
from xlruntime.tokenizers.vocabulary import Vocabulary

TEXT = "It was the best  of times,\n it was\tthe âge\n\nof wisdom and so on, which is more than a segment\n"
SPACES = " \t\n\r\v\f"

Predict = Callable[[list[int]], npt.NDArray[np.float64]]


def predictor(model: xlruntime.Model, segment_len: int | None = None) -> Predict:
    """Return a function that runs ids from the beginning, in the segments of `score`, and returns log-probabilities."""
    evaluation = model.evaluation(segment_len=segment_len)
    longest = model.longest_step("generate", evaluation.segment_len)

    def predict(ids: list[int]) -> npt.NDArray[np.float64]:
        memory = model.new_memory(evaluation)
        for begin in range(0, len(ids), longest):
            part = np.array([ids[begin : begin + longest]], np.int64)
            logits = model.step("generate", memory, part, part)["logits"][0].astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    return predict


def expected(predict: Predict, ids: list[int], texts: Mapping[int, str], bos: int) -> list[float]:
    r"""Return the corrected surprisal of each word, by the definition: full distributions at every place.

    Args:
        texts: the text of each token; special ones that end a text are "\n".
    """
    spaces = [token for token, text in texts.items() if text[:1] and text[0] in SPACES]
    words: list[list[int]] = [[]]
    for at, token in enumerate(ids):
        begun = any(texts[ids[place]].strip(SPACES) for place in words[-1])
        if begun and texts[token][:1] in tuple(SPACES):
            words.append([])
        words[-1].append(at)
    result, before = [], 0.0
    for word in words:
        if not any(texts[ids[place]].strip(SPACES) for place in word):
            continue  # white space at the end of the text
        nats = -sum(float(predict([bos, *ids[:at]])[ids[at]]) for at in word)
        after = math.log(sum(math.exp(value) for value in predict([bos, *ids[: word[-1] + 1]])[spaces]))
        result.append(nats + before - after)
        before = after
    return result


@pytest.mark.parametrize("name", ["post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "reformer_band"])
@pytest.mark.parametrize("text", [TEXT, TEXT + "end", "one", " \n one  two", "a|b c"])
@pytest.mark.full
def test_bytes_against_full_distributions(name: str, text: str, score: Score, tmp_path: Path) -> None:
    bundle, first = golden_bundle(name), 2 if name == "reformer_band" else 0
    if first:
        bundle = with_tokenizer(bundle, tmp_path / "bytes.bundle", kind="bytes", first_id=first)
    shown = score("-", "--per", "word", "--boundary", "corrected", "--bos", r"\n", stdin=text.encode(), bundle=bundle)
    model = xlruntime.load(bundle, threads=1)
    texts = {byte + first: chr(byte) for byte in range(256)}
    found = [record["corrected_nats"] for record in shown.succeeded().objects]
    right = expected(predictor(model), [byte + first for byte in text.encode()], texts, ord("\n") + first)
    assert found == pytest.approx(right, abs=2e-4)
    for record in shown.objects:
        assert record["corrected_bits"] == pytest.approx(record["corrected_nats"] / math.log(2))


@pytest.mark.parametrize("segment_len", ["3", "10"])
def test_segments_that_matter(segment_len: str, words_bundle: Callable[..., Path], score: Score) -> None:
    """Use each token's own segment, if predictions depend on where segments begin."""
    symbols = (*"abcdefghijklmnopqrst,uvwy", " ", "\n", "<eos>", "<unk>")
    bundle = words_bundle(Vocabulary("characters", symbols, unk="<unk>"))
    assert xlruntime.load(bundle).evaluation().segmentation_matters
    text = "the best of times, it was the\nworst of them\n"
    options = ("--per", "word", "--boundary", "corrected", "--bos", "<eos>", "--segment-len", segment_len)
    shown = score("-", *options, stdin=text.encode(), bundle=bundle).succeeded().objects
    texts = {n: symbol if len(symbol) == 1 else "x" for n, symbol in enumerate(symbols)}
    predict = predictor(xlruntime.load(bundle, threads=1), int(segment_len))
    right = expected(predict, [symbols.index(mark) for mark in text], texts, symbols.index("<eos>"))
    assert [record["corrected_nats"] for record in shown] == pytest.approx(right, abs=2e-4)
    plain = score("-", *options[:2], *options[4:], stdin=text.encode(), bundle=bundle).succeeded().objects
    names = set(plain[0])
    assert [{name: record[name] for name in names} for record in shown] == plain  # nothing else changes


@pytest.fixture
def bpe(words_bundle: Callable[..., Path]) -> Path:
    """Return a bundle whose tokens begin with the space before a word, or are white space, or continue over it."""
    tokenizers = pytest.importorskip("tokenizers")
    symbols = [*"Ġtheofsanb", "Ċ", "th", "the", "Ġthe", "of", "Ġof", "sĠ", "ĊĊ", "Ġb", "ĠofĠb"]
    pairs = ("t h", "th e", "Ġ the", "o f", "Ġ of", "Ċ Ċ", "s Ġ", "Ġ b", "Ġof Ġb")
    merges = [tuple(pair.split()) for pair in pairs]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({symbol: n for n, symbol in enumerate(symbols)}, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return words_bundle(tokenizer)


def run_bpe(
    bundle: Path, text: str, score: Score, end: str = "<|endoftext|>"
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return records, and what is expected."""
    options = ("--per", "word", "--boundary", "corrected", "--bos", end)
    shown = score("-", *options, stdin=text.encode(), bundle=bundle).succeeded().objects
    model = xlruntime.load(bundle, threads=1)
    tokenizer, marks = model.tokenizer, {"Ġ": " ", "▁": " ", "Ċ": "\n", "<0x0A>": "\n", end: "\n"}
    names = {number: tokenizer.decode([number]) for number in range(tokenizer.vocab_size or 0)}
    for mark, text_of_mark in marks.items():
        names = {number: name.replace(mark, text_of_mark) for number, name in names.items()}
    bos = tokenizer.id_of(end)
    assert bos is not None
    return shown, expected(predictor(model), tokenizer.encode(text).tolist(), names | {bos: "\n"}, bos)


@pytest.mark.parametrize("text", ["the of\n\nof b the", "oath the  of tea\n", "tea"])
def test_tokens_that_begin_with_a_space(text: str, bpe: Path, score: Score) -> None:
    shown, right = run_bpe(bpe, text, score)
    assert [record["word"] for record in shown] == text.split()
    assert [record["corrected_nats"] for record in shown] == pytest.approx(right, abs=2e-4)


def test_tokens_that_write_a_space_as_a_mark(words_bundle: Callable[..., Path], score: Score) -> None:
    """Know the spaces of Metaspace, white space as single bytes, and a mark before the first word without a space."""
    tokenizers = pytest.importorskip("tokenizers")
    symbols = ["<unk>", *"▁theofanb", "▁t", "▁th", "▁the", "of", "▁of", "<0x0A>", "</s>"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("o", "f"), ("▁", "of")]
    ids = {symbol: n for n, symbol in enumerate(symbols)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=False)
    made.add_special_tokens(["</s>", "<unk>"])
    shown, right = run_bpe(words_bundle(made), "the of then\nof nab", score, "</s>")
    assert [record["word"] for record in shown] == ["the", "of", "then", "of", "nab"]
    assert [record["corrected_nats"] for record in shown] == pytest.approx(right, abs=2e-4)


def test_token_over_a_boundary_has_no_correction(bpe: Path, score: Score) -> None:
    """Leave both words empty, whose common token `s ` does not show where the first one ends."""
    shown, _ = run_bpe(bpe, "the ofs tea the", score)
    assert [record["word"] for record in shown] == ["the", "ofs", "tea", "the"]
    assert [record["corrected_nats"] is None for record in shown] == [False, True, True, False]
    assert all(record["complete"] for record in shown)
    shown, _ = run_bpe(bpe, "the of b the", score)  # the token of two words begins with white space itself
    assert [record["tokens"] for record in shown] == [1, 1, 0, 1]
    assert [record["corrected_nats"] is None for record in shown] == [False, True, True, False]
    assert [record["complete"] for record in shown] == [True, True, False, True]


@pytest.mark.parametrize("sentence", ["of the", " of the", "of"])
def test_first_word_after_a_context(sentence: str, bpe: Path, score: Score, tmp_path: Path) -> None:
    """Divide by the end of the context's last word, if the sentence's first token shows it."""
    items = tmp_path / "items.jsonl"
    items.write_text(json.dumps({"context": "oath tea", "sentence": sentence}))
    line = ("--field", "sentence", "--context-field", "context", "--per", "word", "--boundary", "corrected")
    shown = score(items, *line, "--bos", "<|endoftext|>", bundle=bpe).succeeded().objects
    _, right = run_bpe(bpe, "oath tea " + sentence.strip(), score)
    assert [record["corrected_nats"] for record in shown] == pytest.approx(right[2:], abs=2e-4)


def test_words_add_up_to_regions(score: Score) -> None:
    """Let the ends inside a region cancel, so that its figure is the sum over its words."""
    options = ("--boundary", "corrected", "--bos", " ")
    words = score("-", "--per", "word", *options, stdin=b"The old man sat down").succeeded().objects
    regions = score("-", "--per", "region", *options, stdin=b"The old| man sat| down").succeeded().objects
    sums = [sum(record["corrected_nats"] for record in words[a:b]) for a, b in ((0, 2), (2, 4), (4, 5))]
    assert [record["corrected_nats"] for record in regions] == pytest.approx(sums)
    (inside, _) = score("-", "--per", "region", *options, stdin=b"un|kind").succeeded().objects
    assert inside["corrected_nats"] is None  # no word ends there


def test_models_without_ends_of_words(words_bundle: Callable[..., Path], score: Score, tmp_path: Path) -> None:
    bundle = words_bundle(Vocabulary("words", ("<unk>", "the"), unk="<unk>"))
    options = ("--per", "word", "--boundary", "corrected")
    refusal = score("-", *options, stdin=b"the end", bundle=bundle).error
    assert "each token is a whole word, whose end is certain. Leave it out." in refusal
    tokenizers = pytest.importorskip("tokenizers")
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    refusal = score("-", *options, stdin=b"the end", bundle=words_bundle(pieces)).error
    assert "no token of this tokenizer begins with white space" in refusal
    whole = with_tokenizer(golden_bundle("reformer_chunk"), tmp_path / "whole", kind="bytes", first_id=0)
    assert "Error: " in score("-", *options, stdin=b"the end", bundle=whole).error


@pytest.mark.full
def test_document_of_the_longest_length_has_no_last_end(tmp_path: Path, score: Score) -> None:
    """Leave the last word empty if the model has no position left to predict what follows it."""
    bundle = with_tokenizer(golden_bundle("reformer_band"), tmp_path / "bytes.bundle", kind="bytes", first_id=2)
    longest = xlruntime.load(bundle).evaluation().longest_part
    assert longest is not None
    for length, is_known in ((longest, True), (longest + 1, False)):
        text = ("word " * longest)[: length - 1] + "x"
        shown = score("-", "--per", "word", "--boundary", "corrected", stdin=text.encode(), bundle=bundle).succeeded()
        assert [record["corrected_nats"] is not None for record in shown.objects][-2:] == [True, is_known]
