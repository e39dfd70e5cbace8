"""Documents with a context: text that the model reads before, without a score of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.manifests import with_tokenizer, with_vocabulary
from tests.helpers.paths import BAND, CHUNK, EMPTY, ZEROS, golden_bundle
from tests.runtime.test_scorer_state import stopped_at_each_step
from xlruntime import Document, Model, OptionError, TokenScores, load
from xlruntime.documents import TextCounts, TokenPiece
from xlruntime.scorer import Scorer
from xlruntime.token_reader import TokenReader
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

CONTEXT, TEXT = "Der Koch rührte lange. ", "Die Suppe wurde süß.\n"
CLOSE: Any = {"rtol": 0, "atol": 2e-6}  # the same probabilities from steps of other lengths


def parts(model: Model, *documents: Document, **options: Any) -> list[TokenScores]:
    """Return the parts of each document together, in the order of the documents."""
    batch_size = options.pop("batch_size", 1)
    found: dict[int, list[TokenScores]] = {}
    for part in Scorer(model, model.evaluation(), batch_size, **options).tokens(documents):
        found.setdefault(part.number, []).append(part)
    return [joined(found[number]) for number in sorted(found)]


def joined(several: list[TokenScores]) -> TokenScores:
    names = ("index", "tokens", "starts", "ends", "log_probs", "context")
    values: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in several]) for name in names}
    first = next((part.first for part in several if part.first is not None), None)
    last = several[-1]
    return TokenScores(last.document, last.number, **values, summary=last.summary, first=first, error=last.error)


@pytest.mark.parametrize("name", [EMPTY, ZEROS])
def test_scores_are_those_of_a_continuation_and_of_the_whole_text(name: str) -> None:
    model = load(golden_bundle(name), threads=1)
    given, whole = Document("it", TEXT, context=CONTEXT), Document("whole", CONTEXT + TEXT)
    found, together = parts(model, given)[0], parts(model, whole)[0]
    own = together.starts >= len(CONTEXT.encode())
    np.testing.assert_array_equal(found.log_probs, together.log_probs[own])
    np.testing.assert_array_equal(found.context, together.context[own])
    stream = model.stream()
    stream.feed(CONTEXT)
    continuation = stream.score_continuation(TEXT)
    np.testing.assert_array_equal(found.tokens, continuation.tokens)
    np.testing.assert_allclose(found.log_probs, continuation.log_probs, **CLOSE)
    assert found.summary is not None
    assert found.summary.nats == pytest.approx(-float(continuation.log_probs.sum(dtype=np.float64)), abs=1e-4)


@pytest.mark.parametrize("name", [BAND, CHUNK])
def test_token_ids_of_reformers_have_a_context_too(name: str) -> None:
    """Compare also for a model that reads a document in one step."""
    model = load(golden_bundle(name), threads=1)
    ids = [number % model.bundle.vocab_size for number in range(1, 15)]
    found, together = parts(model, Document("it", ids[9:], context=ids[:9]), Document("whole", ids))
    np.testing.assert_array_equal(found.log_probs, together.log_probs[-5:])
    assert found.starts.tolist() == [0, 1, 2, 3, 4]


def test_counts_and_places_are_those_of_the_document_alone(bytes_model: Model) -> None:
    (alone,) = parts(bytes_model, Document("it", TEXT))
    (found,) = parts(bytes_model, Document("it", TEXT, context=CONTEXT))
    assert alone.summary is not None and found.summary is not None
    n = len(TEXT.encode())
    np.testing.assert_array_equal(found.index, np.arange(n))
    np.testing.assert_array_equal(found.starts, np.arange(n))
    assert (found.first, found.summary.tokens, found.summary.scored_tokens) == (None, n, n)
    assert (found.summary.scored_bytes, found.summary.scored_chars) == (n, len(TEXT))
    for name in ("tokens", "words", "chars", "bytes", "dropped_bytes"):
        assert getattr(found.summary, name) == getattr(alone.summary, name)


def test_documents_in_a_batch_have_their_own_contexts(bytes_model: Model) -> None:
    given = [
        Document("a", TEXT, context=CONTEXT),
        Document("b", TEXT * 3),
        Document("c", TEXT[:5], context=CONTEXT * 4),
        Document("d", TEXT, context=""),
    ]
    alone = [parts(bytes_model, document)[0] for document in given]
    for batch_size in (2, 4):
        for found, expected in zip(parts(bytes_model, *given, batch_size=batch_size), alone, strict=True):
            np.testing.assert_array_equal(found.index, expected.index)
            np.testing.assert_allclose(found.log_probs, expected.log_probs, **CLOSE)


def read(text: str, context: Any, tokenizer: Any) -> tuple[TokenPiece, TextCounts]:
    reader = TokenReader(Document("it", text, context=context), tokenizer, tokenizer.vocab_size)
    pieces = []
    while not reader.at_end:
        piece = reader.take(3)
        pieces.append(TokenPiece(*(values[piece.context :] for values in (piece.ids, piece.starts, piece.ends))))
    names = ("ids", "starts", "ends")
    return TokenPiece(*(np.concatenate([getattr(p, name) for p in pieces]) for name in names)), reader.counts


WORDS = Vocabulary("words", ("<unk>", "a", "b", "<eos>"), unk="<unk>", line_end="<eos>")
LETTERS = Vocabulary("characters", ("a", "b", "_"), space="_")


@pytest.mark.parametrize("context", ["b a ", "b\na\n", "b ", "a b\n\n", "\n", " ", "", [1, 2]], ids=repr)
@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), VocabularyTokenizer(WORDS), VocabularyTokenizer(LETTERS)],
    ids=["bytes", "words", "characters"],
)
def test_tokens_and_counts_do_not_depend_on_the_context(context: Any, tokenizer: Any) -> None:
    for text in ("a b\na", "ab  a\n", "a"):
        (own, counts), (alone, expected) = (read(text, given, tokenizer) for given in (context, None))
        for name in ("ids", "starts", "ends"):
            np.testing.assert_array_equal(getattr(own, name), getattr(alone, name))
        for name in ("bytes", "chars", "words", "dropped_bytes", "dropped_chars", "unknown_tokens"):
            assert getattr(counts, name) == getattr(expected, name), name


def test_token_with_text_of_both_is_the_documents(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["?", "the", "Ġthe", "Ġ", "cat", "Ġcat", "."])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(tmp_path / "tokenizer.json"))
    bundle = with_tokenizer(
        golden_bundle("pre_lnorm_empty"), tmp_path / "it.bundle", tmp_path / "tokenizer.json", kind="tokenizers"
    )
    model = load(bundle, threads=1)
    (found,) = parts(model, Document("it", "the cat.", context="the cat. "))
    assert found.tokens.tolist() == [2, 5, 6]
    assert found.starts.tolist() == [0, 3, 7] and found.ends.tolist() == [3, 7, 8]
    assert found.summary is not None and (found.summary.tokens, found.summary.bytes) == (3, 8)
    (whole,) = parts(model, Document("it", "the cat. the cat."))
    np.testing.assert_array_equal(found.log_probs, whole.log_probs[-3:])


def test_context_of_token_ids(bytes_model: Model) -> None:
    ids = list(CONTEXT.encode())
    (expected,) = parts(bytes_model, Document("it", TEXT, context=CONTEXT))
    for source in (TEXT, list(TEXT.encode())):
        for context in (ids, np.array(ids)):
            (found,) = parts(bytes_model, Document("it", source, context=context))
            np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    (found,) = parts(bytes_model, Document("it", list(TEXT.encode()), context=CONTEXT))
    np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    with pytest.raises(ValueError, match="it, in its context: token 1 has id 300, expected 0 to 255"):
        parts(bytes_model, Document("it", TEXT, context=[1, 300]))


def test_document_without_text_after_its_context(bytes_model: Model) -> None:
    (found,) = parts(bytes_model, Document("it", "", context=CONTEXT))
    assert found.summary is not None
    assert (len(found), found.summary.tokens, found.summary.scored_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (("One.", "Two.", "Three."), "One.\nTwo.\nThree."),
        (("One. ", "Two.\n", "Three."), "One. Two.\nThree."),
        (("One.", "", "Two."), "One.\nTwo."),
        (("O", "T"), "O\nT"),
    ],
)
def test_separator_is_read_and_not_scored(texts: tuple[str, ...], whole: str, bytes_model: Model) -> None:
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    found = parts(bytes_model, *documents, continuous=True, separator="\n")
    (together,) = parts(bytes_model, Document("whole", whole))
    at = 0
    for part, text in zip(found, texts, strict=True):
        if text:
            at = whole.index(text, at)
        assert part.summary is not None and part.summary.bytes == len(text)
        own = (together.starts >= at) & (together.starts < at + len(text))
        np.testing.assert_allclose(part.log_probs, together.log_probs[own], **CLOSE)
        assert part.tokens.tolist() == together.tokens[own].tolist()


def test_separator_after_a_line_end_of_the_vocabulary(no_text_model: Model, tmp_path: Path) -> None:
    """Put nothing after a token that ends the line, though the text has no newline."""
    model = load(with_vocabulary(no_text_model.folder, tmp_path / "bundle", WORDS), threads=1)
    scorer = Scorer(model, model.evaluation(), continuous=True, separator="\n")
    list(scorer.tokens([Document("a", "a b")]))
    assert (scorer.last, scorer.spaced) == (3, True)


def test_separator_that_the_vocabulary_lacks(no_text_model: Model, tmp_path: Path) -> None:
    model = load(with_vocabulary(no_text_model.folder, tmp_path / "bundle", LETTERS), threads=1)
    with pytest.raises(OptionError, match=r"separator: .*'\|' in line 1 not in the vocabulary"):
        Scorer(model, model.evaluation(), continuous=True, separator="|")


@pytest.mark.parametrize(
    "options", [{"batch_size": 2}, {"continuous": True, "separator": "\n"}, {"continuous": True, "separator": " – "}]
)
@pytest.mark.full
def test_resumed_after_each_step(options: dict[str, Any], bytes_model: Model) -> None:
    documents = [
        Document("a", TEXT.strip(), context=CONTEXT),
        Document("b", TEXT),
        Document("c", TEXT.strip() * 2, context=CONTEXT * 2),
        Document("d", TEXT),
    ]

    uninterrupted, *runs = stopped_at_each_step(bytes_model, documents, options)
    assert len(runs) > 8
    assert all(run == uninterrupted for run in runs)
