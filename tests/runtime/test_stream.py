"""Streams: pieces of any size, the held last token, and refused feeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Close, RandomIds
from xlruntime import Model, TokenError


def joined(parts: list[Any], what: str) -> Any:
    return np.concatenate([getattr(part, what) for part in parts])


@pytest.mark.parametrize("seed", range(4))
def test_feeds_of_random_sizes_equal_one_feed(seed: int, model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(600, seed=seed)
    sizes = np.random.default_rng(seed).choice([0, 1, 2, 3, 8, 9, 40], 200)
    parts, stream = [], model.stream()
    for piece in np.split(ids, np.minimum(sizes.cumsum(), len(ids))):
        parts.append(stream.feed(piece))
    whole = model.stream().feed(ids)
    close(joined(parts, "log_probs"), whole.log_probs)
    for what in ("index", "tokens", "context"):
        np.testing.assert_array_equal(joined(parts, what), getattr(whole, what))
    assert stream.position == len(ids)


def test_last_token_is_held_until_its_target_comes(bytes_model: Model) -> None:
    stream = bytes_model.stream()
    assert len(stream.feed(b"a")) == 0
    assert (stream.pending, stream.position, stream.memory.offset) == (ord("a"), 1, 0)
    scores = stream.feed(b"bc")
    assert scores.tokens.tolist() == [ord("b"), ord("c")]
    assert scores.index.tolist() == [1, 2]
    assert (stream.pending, stream.position, stream.memory.offset) == (ord("c"), 3, 2)  # c is not run yet


def test_empty_feeds_change_nothing(bytes_model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(30)
    stream = bytes_model.stream()
    pieces: list[Any] = [ids[:0], [], b"", "", ids[:1], b"", ids[1:], []]
    parts = [stream.feed(piece) for piece in pieces]
    assert [len(part) for part in parts] == [0] * 6 + [29, 0]
    np.testing.assert_array_equal(parts[6].log_probs, bytes_model.stream().feed(ids).log_probs)
    for part in parts:
        kinds = [part.index.dtype, part.tokens.dtype, part.log_probs.dtype, part.context.dtype]
        assert kinds == [np.int64, np.int64, np.float32, np.int64]


def test_text_is_fed_as_its_utf8_bytes(bytes_model: Model) -> None:
    text = "naïve – 日本"
    expected = bytes_model.stream().feed(np.frombuffer(text.encode(), np.uint8))
    for source in (text, text.encode(), list(text.encode())):
        scores = bytes_model.stream().feed(source)
        np.testing.assert_array_equal(scores.log_probs, expected.log_probs)
    assert len(expected) == len(text.encode()) - 1


def test_refused_feed_takes_nothing(bytes_model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(80)
    stream, other = bytes_model.stream(), bytes_model.stream()
    stream.feed(ids[:50])
    other.feed(ids[:50])
    with pytest.raises(TokenError, match="token 53 has id 256"):
        stream.feed([1, 2, 3, 256])
    assert stream.position == 50
    np.testing.assert_array_equal(stream.feed(ids[50:]).log_probs, other.feed(ids[50:]).log_probs)


def test_reset_stream_equals_a_new_one(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(150, seed=1)
    stream = model.stream()
    stream.feed(random_ids(95))
    stream.reset()
    assert (stream.pending, stream.position) == (None, 0)
    again, expected = stream.feed(ids), model.stream().feed(ids)
    close(again.log_probs, expected.log_probs)
    for what in ("index", "context"):
        np.testing.assert_array_equal(getattr(again, what), getattr(expected, what))


def test_context_counts_the_tokens_that_were_seen(model: Model, no_text_model: Model, random_ids: RandomIds) -> None:
    """Count only tokens of the document, not the rows of a first memory of zeros."""
    grows = np.arange(1, 60)
    with_same_length = model.stream(segment_len=7).feed(random_ids(60)).context
    np.testing.assert_array_equal(with_same_length, np.minimum(grows, 12))
    without = no_text_model.stream().feed(random_ids(60, vocab_size=29)).context
    np.testing.assert_array_equal(without, np.minimum(np.arange(59) // 10 * 10, 12) + np.arange(59) % 10 + 1)
