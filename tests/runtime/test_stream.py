"""Streams: pieces of any size, the held last token, cuts into segments, and refused feeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Close, RandomIds, Steps
from xlruntime import Model, OptionError


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


def test_context_counts_the_tokens_that_were_seen(model: Model, no_text_model: Model, random_ids: RandomIds) -> None:
    """Count only tokens of the document, not the rows of a first memory of zeros."""
    grows = np.arange(1, 60)
    with_same_length = model.stream(segment_len=7).feed(random_ids(60)).context
    np.testing.assert_array_equal(with_same_length, np.minimum(grows, 12))
    without = no_text_model.stream().feed(random_ids(60, vocab_size=29)).context
    np.testing.assert_array_equal(without, np.minimum(np.arange(59) // 10 * 10, 12) + np.arange(59) % 10 + 1)


# Cuts of a document into segments: with same_length they do not matter; without it the bundle's own apply.


@pytest.mark.parametrize("segment_len", [1, 7, 64, 500])
def test_segmentation_does_not_matter_with_same_length(
    segment_len: int, model: Model, random_ids: RandomIds, close: Close
) -> None:
    ids = random_ids(1200)
    expected = model.stream().feed(ids)
    found = model.stream(segment_len=segment_len).feed(ids)
    close(found.log_probs, expected.log_probs, within=1e-4)
    np.testing.assert_array_equal(found.context, expected.context)


def test_segment_len_is_exact_without_same_length(no_text_model: Model, random_ids: RandomIds, steps: Steps) -> None:
    ids = random_ids(26, vocab_size=29)
    stream = no_text_model.stream()
    assert stream.evaluation.segmentation_matters
    assert stream.evaluation.segment_len == no_text_model.bundle.config["tgt_len"] == 10
    log_probs = stream.feed(ids).log_probs
    assert steps == [("score", (1, length)) for length in (10, 10, 5)]
    other = no_text_model.stream(segment_len=25).feed(ids).log_probs
    np.testing.assert_allclose(other[:10], log_probs[:10], rtol=0, atol=2e-5)  # the same until the memory is full
    assert np.abs(other - log_probs)[20:].max() > 0.01


def test_batch_keeps_segments_as_they_are_without_same_length(
    no_text_model: Model, random_ids: RandomIds, close: Close
) -> None:
    documents = [random_ids(length, seed=length, vocab_size=29) for length in (33, 9, 58, 11, 70)]
    found = list(no_text_model.score(documents, batch_size=2))
    for document, score in zip(documents, found, strict=True):
        close(-score.nats / (len(document) - 1), no_text_model.stream().feed(document).log_probs.mean())


def test_feed_longer_than_the_ring_takes_is_split(
    model: Model, random_ids: RandomIds, close: Close, steps: Steps
) -> None:
    ids = random_ids(101)
    stream = model.stream(segment_len=64, capacity=model.bundle.settings["mem_len"] + 3)
    found = stream.feed(ids)
    assert steps == [("score", (1, 3))] * 33 + [("score", (1, 1))]
    list(stream.generate(ids[:8], max_tokens=1))
    assert [(purpose, shape[1]) for purpose, shape in steps[34:]] == [
        ("score", 3),
        ("score", 3),
        ("score", 2),
        ("generate", 1),
    ]
    close(found.log_probs, model.stream().feed(ids).log_probs)


@pytest.mark.parametrize("segment_len", [0, 9])
def test_step_refuses_a_segment_that_does_not_fit(segment_len: int, model: Model) -> None:
    memory = model.new_memory(model.bundle.settings)
    before = {entry.input: memory.array(entry).copy() for entry in memory.entries}
    tokens = np.zeros((1, segment_len), np.int64)
    with pytest.raises(OptionError, match=rf"a segment of {segment_len} tokens .* 20 slots .* takes 1 to 8\. Split it"):
        model.step("score", memory, tokens, tokens)
    assert memory.offset == 0
    for entry in memory.entries:
        np.testing.assert_array_equal(memory.array(entry), before[entry.input])


def test_ring_that_would_cut_segments_is_refused_without_same_length(no_text_model: Model) -> None:
    with pytest.raises(OptionError, match=r"capacity of 21 slots .* segments of 10 tokens.*at least 22"):
        no_text_model.stream(capacity=21)
    assert no_text_model.stream(capacity=22).memory.max_segment == 10
