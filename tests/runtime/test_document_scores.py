"""Totals of a document, recomputed by hand from the scores of its tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import RandomIds
from xlruntime import Document, DocumentScore, Model
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
