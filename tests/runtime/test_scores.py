"""Scores of documents: totals, ranks and entropies, words, and results as tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import ArgumentError, Document, DocumentScore, Model, OptionError, TextError, TokenScores, XlruntimeError
from xlruntime.evaluation import EvaluationSettings
from xlruntime.scores import Sum


def total_of(model: Model, document: Any) -> DocumentScore:
    (score,) = model.score([Document("it", document)])
    return score


def test_ratios_leave_out_the_first_token(bytes_model: Model) -> None:
    """Count the first token's bytes and characters, but do not score them: the token has no context."""
    text = "été – summer\n  in 東京 \n"
    raw = text.encode()
    nats = -float(bytes_model.stream().feed(raw).log_probs.sum(dtype=np.float64))
    score = total_of(bytes_model, text)
    assert (score.tokens, score.scored_tokens) == (len(raw), len(raw) - 1)
    assert (score.bytes, score.chars, score.words) == (len(raw), len(text), len(text.split()))
    assert score.nats == pytest.approx(nats)
    assert score.bits == pytest.approx(nats / math.log(2))
    assert score.bits_per_byte == pytest.approx(score.bits / (len(raw) - 1))
    assert score.bits_per_char == pytest.approx(score.bits / (len(text) - 1))
    assert score.bits_per_token == pytest.approx(score.bits / (len(raw) - 1))
    assert score.perplexity == pytest.approx(math.exp(nats / (len(raw) - 1)))
    assert (score.segment_len, score.settings["mem_len"]) == (8, 12)
    assert score.tokens_per_second > 0


@pytest.mark.parametrize("given", [b"", b"x", "", "x", [], [7]])
def test_document_too_short_to_score(given: Any, bytes_model: Model) -> None:
    score = total_of(bytes_model, given)
    assert (score.document, score.tokens, score.scored_tokens) == ("it", len(given), 0)
    assert score.bytes == (0 if isinstance(given, list) else len(given))
    assert (score.nats, score.bits) == (0.0, 0.0)
    assert math.copysign(1, score.nats) == 1  # not minus zero
    assert score.bits_per_byte is score.bits_per_char is score.bits_per_token is score.perplexity is None


def test_document_of_one_character_of_three_bytes(bytes_model: Model) -> None:
    """Score the other bytes; a ratio per character is not defined without a second character."""
    score = total_of(bytes_model, "–")
    assert (score.tokens, score.scored_tokens, score.bytes, score.chars, score.words) == (3, 2, 3, 1, 1)
    assert score.bits_per_char is None
    assert score.bits_per_byte == score.bits_per_token == pytest.approx(score.bits / 2)


def test_ids_have_no_bytes_to_divide_by(no_text_model: Model, random_ids: RandomIds) -> None:
    score = total_of(no_text_model, random_ids(40, vocab_size=29))
    assert (score.tokens, score.words, score.chars, score.bytes) == (40, 0, 0, 0)
    assert score.bits_per_byte is score.bits_per_char is None
    assert score.bits_per_token == pytest.approx(score.bits / 39)


def test_perplexity_that_overflows_is_infinite(bytes_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Model.step

    def certain_of_something_else(self: Model, *arguments: Any) -> Any:
        outputs = step(self, *arguments)
        return {"log_prob": np.full_like(outputs["log_prob"], -1000.0)}

    monkeypatch.setattr(Model, "step", certain_of_something_else)
    score = total_of(bytes_model, "text")
    assert (score.nats, score.perplexity) == (3000.0, math.inf)


def test_token_scores_have_the_place_of_each_token(bytes_model: Model) -> None:
    raw = "ab – cd".encode()
    parts = list(bytes_model.score_tokens([Document("it", raw)], segment_len=4))
    assert [len(part) for part in parts] == [4, 4]
    assert [(part.document, part.number) for part in parts] == [("it", 0)] * 2
    assert bytes(np.concatenate([part.tokens for part in parts]).tolist()) == raw[1:]
    for what in ("index", "starts"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, what) for part in parts]), np.arange(1, len(raw)))
    np.testing.assert_array_equal(np.concatenate([part.ends for part in parts]), np.arange(2, len(raw) + 1))
    assert parts[0].summary is None
    assert parts[1].summary is not None
    assert parts[1].summary.nats == pytest.approx(-sum(float(part.log_probs.sum()) for part in parts))


def test_sum_keeps_what_rounding_loses() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 100_000) * 10.0 ** np.arange(100_000).clip(0, 12)
    total = Sum()
    for start in range(0, len(numbers), 7):
        total.add(numbers[start : start + 7])
    assert total.value == pytest.approx(math.fsum(numbers), rel=1e-15, abs=0)
    assert total.lost != 0


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([-math.inf, 1.0], -math.inf), ([math.nan], math.nan), ([math.inf, -math.inf], math.nan), ([], 0.0)],
)
def test_sum_of_numbers_that_are_not_finite(numbers: list[float], expected: float) -> None:
    total = Sum()
    total.add(np.array(numbers))
    total.add(np.ones(2))
    assert total.value == (2.0 if not numbers else pytest.approx(expected, nan_ok=True))


# Ranks, entropies and likeliest tokens of documents, against full distributions of each token.

Ids = npt.NDArray[np.int64]
DETAILS = ("rank", "entropy", "top_ids", "top_log_probs")
# Ranks are exact except for ties: if two tokens are closer than rounding, either may come first.
NEAR = 1e-4


def distributions(model: Model, evaluation: EvaluationSettings, ids: Ids) -> Iterator[npt.NDArray[np.float64]]:
    """Yield natural logarithms of all tokens' probabilities at each place of a document except the first."""
    memory = model.new_memory(evaluation)
    for place in range(len(ids) - 1):
        logits = model.step("generate", memory, ids[None, place : place + 1], ids[None, place + 1 : place + 2])
        values = logits["logits"][0].astype(np.float64)
        yield values - np.logaddexp.reduce(values)


def test_tokens_are_pairs_of_text_and_bits(bytes_model: Model) -> None:
    parts = list(bytes_model.score_tokens([Document("it", "It was.")]))
    pairs = [pair for part in parts for pair in part]
    assert "".join(text for text, _ in pairs) == "t was."
    assert [bits for _, bits in pairs] == pytest.approx([bits for part in parts for bits in part.bits.tolist()])
    total = parts[-1].summary
    assert total is not None
    assert sum(bits for _, bits in pairs) == pytest.approx(total.bits)
    assert [text for text, _ in replace(parts[0], tokenizer=None)] == [str(token) for token in parts[0].tokens]


def joined(parts: list[TokenScores], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in parts])


def check_against(parts: list[TokenScores], ids: Ids, expected: Iterator[npt.NDArray[np.float64]]) -> None:
    log_probs, rank, entropy, top_ids, top_log_probs = (joined(parts, name) for name in ("log_probs", *DETAILS))
    for place, own in enumerate(expected):
        target = own[ids[place + 1]]
        assert log_probs[place] == pytest.approx(target, abs=NEAR)
        assert 1 + (own > target + NEAR).sum() <= rank[place] <= (own > target - NEAR).sum()
        assert entropy[place] == pytest.approx(-(np.exp(own) * own).sum(), abs=NEAR)
        np.testing.assert_allclose(top_log_probs[place], np.sort(own)[::-1][: top_ids.shape[1]], rtol=0, atol=NEAR)
        np.testing.assert_allclose(own[top_ids[place]], top_log_probs[place], rtol=0, atol=NEAR)


@pytest.mark.full
def test_detail_against_brute_force(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(70, vocab_size=variant.bundle.vocab_size)
    settings: dict[str, Any] = {} if variant.bundle.settings["same_length"] else {"segment_len": 1}
    other = random_ids(25, seed=1, vocab_size=variant.bundle.vocab_size)
    found = list(variant.score_tokens([ids, other], batch_size=2, top=10, **settings))
    evaluation = variant.evaluation(segment_len=1)
    for number, document in enumerate((ids, other)):
        parts = [part for part in found if part.number == number]
        check_against(parts, document, distributions(variant, evaluation, document))


def test_detail_of_a_reformer_against_brute_force(band_model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(90, vocab_size=258)
    parts = list(band_model.score_tokens([ids], top=10))
    check_against(parts, ids, distributions(band_model, band_model.evaluation(segment_len=1), ids))


def test_detail_of_whole_documents(chunk_model: Model, random_ids: RandomIds) -> None:
    """Compare with the generate graph: it returns a document's last distribution, which has no later tokens."""
    ids = random_ids(60, vocab_size=40)
    (part,) = chunk_model.score_tokens([ids], top=10)
    assert part.rank is not None and part.entropy is not None and part.top_ids is not None
    memory = chunk_model.new_memory(chunk_model.evaluation())
    logits = chunk_model.step("generate", memory, ids[None, :-1], ids[None, 1:])["logits"][0].astype(np.float64)
    own = logits - np.logaddexp.reduce(logits)
    assert part.rank[-1] == 1 + (own > own[ids[-1]]).sum()
    assert part.entropy[-1] == pytest.approx(-(np.exp(own) * own).sum(), abs=NEAR)
    np.testing.assert_array_equal(part.top_ids[-1], np.argsort(-own)[:10])


@pytest.mark.parametrize("name", ["pre_lnorm_empty", "post_lnorm_same_length_empty", "reformer_band", "reformer_chunk"])
def test_scores_with_and_without_detail_agree(name: str, golden: Golden, random_ids: RandomIds, close: Close) -> None:
    model = golden(name)
    documents = [random_ids(n, seed=n, vocab_size=model.bundle.vocab_size) for n in (95, 1, 40, 0, 2)]
    plain = list(model.score_tokens(documents, batch_size=2))
    detailed = list(model.score_tokens(documents, batch_size=2, top=3))
    assert [part.number for part in plain] == [part.number for part in detailed]
    for before, after in zip(plain, detailed, strict=True):
        close(after.log_probs, before.log_probs)
        for what in ("index", "tokens", "starts", "ends", "context"):
            np.testing.assert_array_equal(getattr(after, what), getattr(before, what))
        assert (before.summary is None) == (after.summary is None)
        assert all(getattr(before, what) is None for what in DETAILS)


@pytest.mark.parametrize("k", [-1, 11])
def test_more_alternatives_than_there_are(k: int, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=f"top is {k}, expected 0 to 10, the likeliest tokens that this bundle"):
        bytes_model.score_tokens([b"text"], top=k)


def test_the_old_name_of_top_says_the_new_one(bytes_model: Model) -> None:
    with pytest.raises(OptionError, match="detail is top since this version"):
        bytes_model.score_tokens([b"text"], detail=3)


# Words with their bits, results as tables, and one-line descriptions of objects.

TEXTS = ["The dög  barked. ", "", "xy", "one two\nthree and four"]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pandas by a module whose tables are dictionaries of lists."""
    made = {"DataFrame": lambda columns: {name: list(values) for name, values in columns.items()}}
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(**made))


def test_words_come_with_their_bits(bytes_model: Model) -> None:
    text = "The dog barked."
    (found,) = bytes_model.surprisal([text])
    (part,) = [part for part in bytes_model.score_tokens([text], segment_len=20)]
    bits = -part.log_probs.astype(np.float64) / np.log(2)  # of all bytes but the first
    expected = [np.nan, bits[2:6].sum(), bits[6:].sum()]  # the first word has too few scores for a sum
    words, found_bits = zip(*found, strict=True)
    assert list(words) == text.split() and list(found_bits) == pytest.approx(expected, nan_ok=True)
    assert found.complete.tolist() == [False, True, True]
    assert found.total.bits == pytest.approx(bits.sum())


def test_a_word_without_a_scored_token_has_no_bits(no_text_model: Model, bytes_model: Model) -> None:
    (found,) = bytes_model.surprisal(["I am"])
    assert np.isnan(found.bits[0]) and found.bits[1] > 0
    assert found.scored_tokens.tolist() == [0, 3]
    with pytest.raises(TextError, match="takes token ids"):
        list(no_text_model.surprisal(["I am"]))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_order_and_names_are_those_of_the_texts(bytes_model: Model, batch_size: int) -> None:
    texts = [Document(f"text {number}", text) for number, text in enumerate(TEXTS)]
    found = list(bytes_model.surprisal(texts, batch_size=batch_size))
    assert [(one.document, one.text) for one in found] == [(text.name, text.source) for text in texts]
    assert [list(one.words) for one in found] == [text.split() for text in TEXTS]
    assert found[1].bits.shape == (0,) and found[1].total.bits == 0


@pytest.mark.parametrize("given", [b"bytes", [70, 71]])
def test_only_a_text_has_words(bytes_model: Model, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^surprisal: text 0 is .*, not a text, so it has no words\. Give a str"):
        next(bytes_model.surprisal([given]))


@pytest.mark.usefixtures("table")
def test_tables_of_words_and_of_tokens(bytes_model: Model) -> None:
    (found,) = bytes_model.surprisal([Document("it", "one two")])
    words = found.to_pandas()
    assert list(words) == ["document", "index", "word", "start", "end", "tokens", "scored_tokens", "complete", "bits"]
    assert words["document"] == ["it", "it"] and words["word"] == ["one", "two"]
    assert words["start"] == [0, 4] and words["bits"] == pytest.approx(found.bits.tolist(), nan_ok=True)
    scores = bytes_model.stream().feed("one two")
    tokens = scores.to_pandas()
    assert list(tokens) == ["index", "token", "id", "log_prob", "surprisal_bits", "context"]
    assert "".join(tokens["token"]) == scores.text == "ne two"
    assert tokens["surprisal_bits"] == scores.bits.tolist()
    assert sum(tokens["surprisal_bits"]) == pytest.approx(found.total.bits, rel=1e-5)


def test_absent_pandas_is_named(bytes_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (found,) = bytes_model.surprisal(["some words"])
    for result in (found, bytes_model.stream().feed("some words")):
        with pytest.raises(XlruntimeError, match=r"no module pandas\. Install it: pip install pandas$"):
            result.to_pandas()
