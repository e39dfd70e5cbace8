"""Published protocols of evaluation: streams against lists, and scores against each stream walked alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.rules import ring_rules
from tests.runtime.conftest import Golden, RandomIds
from xlruntime import Document, Model, OptionError, TextError, TokenError, XlruntimeError, load, protocols
from xlruntime.evaluation import EvaluationSettings
from xlruntime.protocols import PROTOCOLS, Corpus, arrange, read_corpus, walk
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

# Seven sentences, a blank one among them, between marks that are the same token, as in the One Billion Word corpus.
SENTENCES = [[0, 1, 2, 0], [0, 3, 0], [0, 4, 5, 6, 0], [0, 7, 0], [0, 8, 9, 0], [0, 0], [0, 10, 0]]
WITHIN = 1e-4  # nats: largest difference of a row next to others; these models have large weights


def settings(segment_len: int = 4, mem_len: int = 8) -> EvaluationSettings:
    return ring_rules(segment_len, mem_len).choose()


def corpus_of(ids: Any, marks: tuple[int, int] | None = None) -> Corpus:
    return Corpus("corpus", np.array(ids, np.int32), marks=marks)


def numbered(n: int) -> Corpus:
    """Return a corpus of tokens 0 … n - 1."""
    return corpus_of(range(n))


def of_sentences(sentences: list[list[int]] = SENTENCES) -> Corpus:
    return corpus_of([token for sentence in sentences for token in sentence], marks=(0, 0))


@pytest.fixture
def word_model(golden: Golden) -> Model:
    """Return a model of 29 tokens, whose vocabulary marks lines as in the One Billion Word corpus."""
    model = load(golden("pre_lnorm_empty").folder, threads=1)
    words = ("<S>", "<UNK>", *(f"w{number}" for number in range(2, 29)))
    model.tokenizer = VocabularyTokenizer(
        Vocabulary("words", words, unk="<UNK>", line_start="<S>", line_end="<S>", lower_case=False, space=None)
    )
    return model


# Streams as lists.


def test_kimiyoung_streams_are_contiguous_and_equally_long() -> None:
    found = arrange(numbered(23), settings(), "kimiyoung", batch_size=3)
    assert found.tokens.tolist() == [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12], [14, 15, 16, 17, 18, 19]]
    assert found.targets.tolist() == [[1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 12, 13], [15, 16, 17, 18, 19, 20]]
    assert (found.warmup, found.unpredicted, found.trimmed, found.sentences) == (0, 3, 2, False)


@pytest.mark.parametrize("mem_len", [5, 8])  # both are two segments of 4
def test_nvidia_streams_begin_with_the_end_of_the_one_before(mem_len: int) -> None:
    found = arrange(numbered(23), settings(4, mem_len), "nvidia", batch_size=2)
    first = [14, 15, 16, 17, 18, 19, 20, 21, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    second = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]
    assert found.tokens.tolist() == [first[:-1], second[:-1]]
    assert found.targets.tolist() == [first[1:], second[1:]]
    assert (found.warmup, found.unpredicted, found.trimmed) == (8, 2, 1)


def test_sentences_follow_one_another_in_each_row() -> None:
    """Fill rows with sentences in turn, segment by segment; the second row of the third batch lacks one token."""
    found = arrange(of_sentences(), settings(segment_len=3), batch_size=2)
    assert found.tokens.tolist() == [[0, 1, 2, 0, 7, 0], [0, 3, 0, 4, 5, 6]]
    assert found.targets.tolist() == [[1, 2, 0, 7, 0, 8], [3, 0, 4, 5, 6, 0]]
    assert (found.unpredicted, found.trimmed, found.sentences) == (5, 7, True)  # trimmed: 9 0 | 0 0 | 0 10 0


@pytest.mark.parametrize("seed", range(20))
def test_sentences_packed_token_by_token(seed: int) -> None:
    """Apply the rule one prediction at a time: a row with one token left takes the next sentence."""
    rng = np.random.default_rng(seed)
    B, S = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    sentences = [[0, *rng.integers(1, 9, rng.integers(0, 12)).tolist(), 0] for _ in range(40)]
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(B)]
    waiting, rows, full = list(sentences), [[0]] * B, 0
    while True:
        for row in range(B):
            for _ in range(S):
                if len(rows[row]) == 1 and waiting:
                    rows[row] = waiting.pop(0)
                if len(rows[row]) > 1:
                    pairs[row].append((rows[row][0], rows[row][1]))
                    rows[row] = rows[row][1:]
        if any(len(row) < (full + 1) * S for row in pairs):
            break
        full += 1
    expected = np.array([row[: full * S] for row in pairs])  # (B, N, 2)
    found = arrange(of_sentences(sentences), settings(segment_len=S), batch_size=B)
    np.testing.assert_array_equal(np.stack([found.tokens, found.targets], axis=2), expected)


def test_sentences_between_different_marks() -> None:
    corpus = corpus_of([0, 5, 6, 1, 0, 7, 1, 0, 8, 1], marks=(0, 1))
    found = arrange(corpus, settings(segment_len=5), batch_size=1)
    assert found.tokens.tolist() == [[0, 5, 6, 0, 7]]  # the mark of the end is predicted and not read
    assert found.targets.tolist() == [[5, 6, 1, 7, 1]]
    assert (found.unpredicted, found.trimmed) == (2, 3)


def test_sentences_as_a_plain_stream() -> None:
    """Predict also the second of two marks, as TensorFlow's code does."""
    found = arrange(of_sentences(), settings(segment_len=3), batch_size=2, sentences=False)
    assert found.tokens.tolist() == [[0, 1, 2, 0, 0, 3, 0, 0, 4, 5, 6], [0, 7, 0, 0, 8, 9, 0, 0, 0, 0, 10]]
    assert (found.unpredicted, found.trimmed, found.sentences) == (2, 0, False)


@pytest.mark.parametrize(("protocol", "packs"), [("kimiyoung", True), ("nvidia", False), ("document", False)])
def test_sentences_are_packed_if_protocol_and_vocabulary_have_them(protocol: str, packs: bool) -> None:
    assert arrange(of_sentences(), settings(3, 3), protocol, 1).sentences is packs
    assert arrange(numbered(23), settings(3, 3), protocol, 1).sentences is False


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("n", [320, 321, 335, 799])
def test_every_token_is_accounted_for(protocol: str, n: int) -> None:
    streams = arrange(numbered(n), settings(), protocol)
    predicted = streams.targets[:, streams.warmup :]
    assert streams.tokens.shape[0] == {"kimiyoung": 10, "nvidia": 16, "document": 1}[protocol]
    assert predicted.size + streams.unpredicted + streams.trimmed == n
    assert len(np.unique(predicted)) == predicted.size  # each once


# Settings and corpora that do not fit together.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "paper"}, "protocol is 'paper', expected one of kimiyoung, nvidia, document."),
        ({"batch_size": 0}, "batch size is 0, at least 1 is needed."),
        (
            {"sentences": True},
            "sentences are asked for, but the vocabulary marks neither their beginning nor their end.",
        ),
        (
            {"protocol": "document", "batch_size": 2, "sentences": True},
            "batch size is 2, but protocol document is one stream; protocol document does not pack sentences; "
            "sentences are asked for, but the vocabulary marks neither their beginning nor their end.",
        ),
    ],
)
def test_settings_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        arrange(numbered(23), settings(), **options)
    assert str(caught.value) == message


def test_warmup_longer_than_a_stream_is_refused() -> None:
    """Refuse it: the original would rotate the previous stream, and count from a later place."""
    with pytest.raises(TextError) as caught:
        arrange(numbered(23), settings(), "nvidia", batch_size=3)
    assert str(caught.value) == (
        "corpus: 23 tokens make 3 streams of 7, at least 8 each are needed, to warm up a memory of 8 rows. "
        "Give a longer text, or a smaller batch size or memory."
    )


@pytest.mark.parametrize("n", [0, 1, 19])
def test_corpus_too_short_for_its_streams(n: int) -> None:
    with pytest.raises(
        TextError, match=f"^corpus: {n} tokens make 10 streams of {n // 10}, at least 2 each are needed"
    ):
        arrange(numbered(n), settings())


def test_too_few_sentences() -> None:
    with pytest.raises(TextError, match="do not fill one segment of 13 tokens in each of 2 rows"):
        arrange(of_sentences(), settings(segment_len=13), batch_size=2)
    with pytest.raises(TextError, match="do not fill one segment"):
        arrange(corpus_of([], marks=(0, 0)), settings())


@pytest.mark.parametrize(
    ("ids", "marks"),
    [
        ([0, 5, 0, 0, 6], (0, 0)),  # no end
        ([5, 0, 6, 0], (0, 0)),  # something before
        ([0, 5, 0, 7, 0, 6, 0], (0, 0)),  # something between
        ([0, 5, 0, 7], (0, 0)),  # something after
        ([0, 5, 0, 6, 1], (0, 1)),  # a beginning in a sentence
        ([0, 5, 1, 6, 1], (0, 1)),
    ],
)
def test_corpus_that_does_not_consist_of_sentences(ids: list[int], marks: tuple[int, int]) -> None:
    with pytest.raises(TokenError, match=r"expected sentences one after the other, .* add --set sentences=false\.$"):
        arrange(corpus_of(ids, marks), settings(segment_len=2), batch_size=1)


# Corpora.


def test_corpus_of_bytes(bytes_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "READ_TOKENS", 7)
    path = tmp_path / "corpus"
    path.write_bytes(b"one line\nand another\n")
    found = read_corpus(bytes_model, Document("it", path))
    assert (found.name, found.unit, found.bytes, found.marks) == ("it", "byte", 21, None)
    assert found.ids.tolist() == list(path.read_bytes())


def test_corpus_of_sentences(word_model: Model) -> None:
    found = read_corpus(word_model, Document("it", "w2 w3\n\nw4 more\n"))
    assert (found.unit, found.bytes, found.marks, found.unknown_tokens) == ("word", 15, (0, 0), 1)
    assert found.ids.tolist() == [0, 2, 3, 0, 0, 0, 0, 4, 1, 0]


def test_corpus_of_ids(no_text_model: Model) -> None:
    found = read_corpus(no_text_model, Document("it", [3, 1, 28]))
    assert (found.unit, found.bytes, found.ids.tolist()) == ("token", 0, [3, 1, 28])
    with pytest.raises(TokenError, match="it: token 2 has id 29, expected 0 to 28"):
        read_corpus(no_text_model, Document("it", [3, 1, 29]))


# Scores.


def alone(model: Model, ids: npt.ArrayLike, **options: Any) -> npt.NDArray[np.float32]:
    """Return log-probabilities (n - 1,) of a stream that is walked alone."""
    return model.stream(**options).feed(np.asarray(ids, np.int64)).log_probs


def test_kimiyoung_is_the_mean_over_streams_walked_alone(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(327, vocab_size=variant.bundle.vocab_size)
    found = walk(variant, arrange(corpus_of(ids), variant.bundle.settings, batch_size=5))
    expected = np.concatenate([alone(variant, ids[65 * row : 65 * (row + 1)]) for row in range(5)])
    assert len(expected) == found.scored_tokens == 5 * 64
    assert (found.tokens, found.unpredicted_tokens, found.trimmed_tokens) == (327, 5, 2)
    assert found.nats_per_token == pytest.approx(-expected.mean(dtype=np.float64), abs=WITHIN)
    assert found.nats == pytest.approx(found.nats_per_token * 320)
    assert found.perplexity == pytest.approx(math.exp(found.nats_per_token))
    assert found.bits_per_token == pytest.approx(found.nats_per_token / math.log(2))


def test_nvidia_is_the_mean_over_streams_walked_alone_after_their_warmup(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(327, vocab_size=variant.bundle.vocab_size)
    evaluation = variant.evaluation(segment_len=8, mem_len=20)
    found = walk(variant, arrange(corpus_of(ids), evaluation, "nvidia", 5))
    rows = [ids[65 * row : 65 * (row + 1)] for row in range(5)]
    walks = [np.concatenate([rows[row - 1][-24:], rows[row]]) for row in range(5)]  # 24: three segments for 20
    expected = np.concatenate([alone(variant, ids, segment_len=8, mem_len=20)[24:] for ids in walks])
    assert len(expected) == found.scored_tokens == 5 * 64
    assert (found.warmup_segments, found.stream_len, found.batch_size) == (3, 64, 5)
    assert found.nats_per_token == pytest.approx(-expected.mean(dtype=np.float64), abs=WITHIN)
    cold = walk(variant, arrange(corpus_of(ids), evaluation, "kimiyoung", 5))
    assert abs(cold.nats_per_token - found.nats_per_token) > 100 * WITHIN  # the warm-up matters


def test_document_equals_score(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(203, vocab_size=variant.bundle.vocab_size)
    found = walk(variant, arrange(corpus_of(ids), variant.evaluation(mem_len=9), "document"))
    (expected,) = variant.score([ids], mem_len=9)
    assert (found.tokens, found.scored_tokens, found.stream_len) == (203, expected.scored_tokens, 202)
    for name in ("nats", "bits_per_token", "perplexity"):  # the same steps, added up in the same order
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)


def test_sentences_are_scored_without_a_reset_between_them(word_model: Model, random_ids: RandomIds) -> None:
    """Compare a row with one stream that has each mark once, as both marks are the same token."""
    lengths = random_ids(60, seed=1, vocab_size=9)
    text = "".join(" ".join(f"w{2 + token % 27}" for token in random_ids(n, seed=n)) + "\n" for n in lengths)
    streams = arrange(read_corpus(word_model, Document("it", text)), word_model.bundle.settings, batch_size=3)
    found = walk(word_model, streams)
    rows = [np.append(tokens, targets[-1]) for tokens, targets in zip(streams.tokens, streams.targets, strict=True)]
    expected = np.concatenate([alone(word_model, row) for row in rows])
    assert len(expected) == found.scored_tokens == 3 * found.stream_len > 100
    assert found.nats_per_token == pytest.approx(-expected.mean(dtype=np.float64), abs=WITHIN)
    assert (found.sentences, found.unit, found.bytes) == (True, "word", len(text))


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("protocol", ["kimiyoung", "nvidia"])  # nvidia: in the warm-up, whose memory the rest sees
def test_score_that_is_not_finite_is_an_error(
    bad: float, protocol: str, no_text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Model, purpose: str, memory: Any, tokens: Any, targets: Any) -> dict[str, Any]:
        log_prob = np.full(tokens.shape, -1.0, np.float32)
        log_prob[1, 2] = bad
        return {"log_prob": log_prob}

    monkeypatch.setattr(Model, "step", step)
    with pytest.raises(
        XlruntimeError, match=rf"^corpus: stream 2 of 2, token 3: a log-probability of {bad}, so the text cannot be"
    ):
        walk(no_text_model, arrange(numbered(23), settings(), protocol, 2))
