"""Models that read a document in one step: no carried memory, no other rows in the batch, and a limited length.

The golden Reformer of rule `chunk` has 40 tokens and reads up to 96 tokens of a document.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.manifests import edit_manifest
from tests.runtime.conftest import Close, RandomIds, Steps
from xlruntime import Document, Model, OptionError, Sampling, TextError, TokenError, load
from xlruntime.protocols import Corpus, arrange, walk

LIMIT = 96
GREEDY = Sampling(temperature=0)
Ids = npt.NDArray[np.int64]


@pytest.fixture
def ids(random_ids: RandomIds) -> Ids:
    """Return more than twice as many tokens as the model reads."""
    return np.asarray(random_ids(250, vocab_size=40))


def pure(model: Model, ids: Ids) -> npt.NDArray[np.float32]:
    """Return log-probabilities (n - 1,) of a document from the graph alone."""
    feeds = {"tokens": ids[None, :-1], "targets": ids[None, 1:]}
    return np.asarray(model.session("score").run(feeds)["log_prob"][0])


def test_each_document_is_one_step_of_its_own(chunk_model: Model, random_ids: RandomIds, steps: Steps) -> None:
    documents = [random_ids(length, seed=length, vocab_size=40) for length in (50, 97, 1, 2, 17, 50, 0)]
    found = [scores for scores in chunk_model.score_tokens(documents, batch_size=4) if len(scores)]
    assert [shape for _, shape in steps] == [(1, 49), (1, 96), (1, 1), (1, 16), (1, 49)]
    for scores in found:
        np.testing.assert_array_equal(scores.log_probs, pure(chunk_model, documents[scores.number]))
        np.testing.assert_array_equal(scores.context, np.arange(1, len(scores) + 1))
    totals = list(chunk_model.score(documents, batch_size=4))
    assert [total.scored_tokens for total in totals] == [49, 96, 0, 1, 16, 49, 0]
    assert all(dict(total.settings) == {"n_hashes": 2} for total in totals)


def test_there_are_no_streams(chunk_model: Model) -> None:
    with pytest.raises(OptionError, match=r"one step and carries no memory, so it cannot stream.*Use Model\.score"):
        chunk_model.stream()
    assert chunk_model.new_memory(chunk_model.evaluation()).nbytes == 0


def test_document_that_is_too_long_is_refused_with_the_limit(chunk_model: Model, ids: Ids) -> None:
    assert next(chunk_model.score([ids[: LIMIT + 1]])).scored_tokens == LIMIT
    with pytest.raises(TextError, match=r"^it: more than 97 tokens, .* at most 97 .* reads 96 .* shorter, or let it"):
        list(chunk_model.score([Document("it", ids[: LIMIT + 2])]))
    with pytest.raises(TextError, match=r"at most 31 .* reads 30 tokens .* or give a larger segment_len, or let it"):
        list(chunk_model.score([ids[:32]], segment_len=30))
    with pytest.raises(TextError, match=r"reads 96 tokens"):  # a longer step does not add positions
        list(chunk_model.score([ids[: LIMIT + 2]], segment_len=1000))


@pytest.mark.parametrize("segment_len", [None, 30, 1000])
def test_longer_documents_are_read_in_parts(segment_len: int | None, chunk_model: Model, ids: Ids) -> None:
    longest = min(segment_len or LIMIT, LIMIT)
    scores = list(chunk_model.score_tokens([ids, ids[:20]], segment_len=segment_len, restart=True, batch_size=2))
    found = np.concatenate([part.log_probs for part in scores if part.number == 0])
    starts = range(0, len(ids) - 1, longest)
    expected = np.concatenate([pure(chunk_model, ids[start : start + longest + 1]) for start in starts])
    np.testing.assert_array_equal(found, expected)
    context = np.concatenate([part.context for part in scores if part.number == 0])
    np.testing.assert_array_equal(context, np.arange(len(ids) - 1) % longest + 1)


@pytest.mark.parametrize(("prompt", "restart"), [(1, False), (20, False), (60, False), (90, True), (97, True)])
@pytest.mark.full
def test_continuation_is_the_likeliest_of_the_whole_prefix(
    prompt: int, restart: bool, chunk_model: Model, ids: Ids
) -> None:
    drawn = list(chunk_model.generate(ids[:prompt], max_tokens=30, sampling=GREEDY, restart=restart))
    whole = np.concatenate([ids[:prompt], drawn])
    for place in range(prompt, len(whole)):
        part = whole[(place - 1) // LIMIT * LIMIT : place + 1]
        memory = chunk_model.new_memory(chunk_model.evaluation())
        ranks = chunk_model.step("detail", memory, part[None, :-1], part[None, 1:])["rank"]
        assert ranks[0, -1] == 1
    again = chunk_model.generate(ids[:prompt], max_tokens=30, sampling=Sampling(seed=1), restart=restart)
    assert list(again) == list(
        chunk_model.generate(ids[:prompt], max_tokens=30, sampling=Sampling(seed=1), restart=restart)
    )


def test_impossible_continuation_is_refused_at_once(chunk_model: Model, ids: Ids) -> None:
    assert len(list(chunk_model.generate(ids[:90], max_tokens=7))) == 7
    with pytest.raises(TextError, match=r"the prompt and 8 tokens after it: 98 tokens, but at most 97 are possible"):
        chunk_model.generate(ids[:90], max_tokens=8)
    with pytest.raises(TextError, match=r"nothing to continue"):
        chunk_model.generate([], max_tokens=8)
    with pytest.raises(OptionError, match=r"max_tokens is -1"):
        chunk_model.generate(ids[:3], max_tokens=-1)
    with pytest.raises(TokenError, match=r"the prompt: token 1 has id 40"):
        chunk_model.generate([1, 40], max_tokens=3)


def test_second_step_of_a_document_is_refused(chunk_model: Model, ids: Ids) -> None:
    memory = chunk_model.new_memory(chunk_model.evaluation())
    chunk_model.step("score", memory, ids[None, :10], ids[None, 1:11])
    with pytest.raises(OptionError, match=r"a row has room for 0 more.*Restart the row"):
        chunk_model.step("score", memory, ids[None, 10:11], ids[None, 11:12])
    memory.restart(0)
    chunk_model.step("score", memory, ids[None, 10:20], ids[None, 11:21])


def test_corpus_of_whole_documents(chunk_model: Model, ids: Ids, close: Close) -> None:
    corpus = Corpus("corpus", ids.astype(np.int32))
    evaluation = chunk_model.evaluation()
    with pytest.raises(OptionError, match=r"protocol nvidia warms up a memory, but this model reads in one step"):
        arrange(corpus, evaluation, "nvidia", 3)
    with pytest.raises(TextError, match=r"corpus: streams of 250 tokens, but at most 97 are possible"):
        arrange(corpus, evaluation, "document")
    rows = ids[:249].reshape(3, 83)
    found = walk(chunk_model, arrange(corpus, evaluation, "kimiyoung", 3))
    close(found.nats_per_token, -np.mean([pure(chunk_model, row) for row in rows], dtype=np.float64))
    parts = [pure(chunk_model, ids[start : start + LIMIT + 1]) for start in (0, 96, 192)]
    found = walk(chunk_model, arrange(corpus, chunk_model.evaluation(restart=True), "document"))
    close(found.nats_per_token, -np.concatenate(parts).mean(dtype=np.float64))


@pytest.fixture
def last_model(chunk_model: Model, tmp_path: Path) -> Model:
    """Return the same model with the rule of Hugging Face's loss: a document's last token is read too."""
    folder = shutil.copytree(chunk_model.folder, tmp_path / "bundle")
    edit_manifest(folder, lambda manifest: manifest["document"].update(bidirectional=True))
    return load(folder, threads=1)


def with_last(model: Model, ids: Ids) -> npt.NDArray[np.float32]:
    """Return log-probabilities (n - 1,) from the graph alone, which reads all of `ids` (n,)."""
    targets = np.append(ids[1:], 7)  # the last target does not matter
    return np.asarray(model.session("score").run({"tokens": ids[None], "targets": targets[None]})["log_prob"][0, :-1])


def test_last_token_is_read_and_its_prediction_dropped(
    last_model: Model, chunk_model: Model, random_ids: RandomIds
) -> None:
    documents = [random_ids(length, seed=length, vocab_size=40) for length in (50, 96, 1, 2, 17, 0)]
    for detail in (None, 3):
        found = [scores for scores in last_model.score_tokens(documents, top=detail) if len(scores)]
        assert [scores.number for scores in found] == [0, 1, 3, 4]
        for scores in found:
            ids = documents[scores.number]
            np.testing.assert_array_equal(scores.log_probs, with_last(chunk_model, ids))
            np.testing.assert_array_equal(scores.context, np.arange(1, len(ids)))
            if detail is not None:
                assert scores.rank is not None and len(scores.rank) == len(ids) - 1
    totals = list(last_model.score(documents, batch_size=4))
    assert [total.scored_tokens for total in totals] == [49, 95, 0, 1, 16, 0]
    assert np.abs(with_last(chunk_model, documents[0]) - pure(chunk_model, documents[0])).max() > 0.01


@pytest.mark.parametrize("at_hand", [True, False])
def test_document_has_at_most_as_many_tokens_as_positions(at_hand: bool, last_model: Model, ids: Ids) -> None:
    def given(n: int) -> Any:
        return ids[:n] if at_hand else iter([ids[:n]])

    assert next(last_model.score([given(LIMIT)])).scored_tokens == LIMIT - 1
    for length in (LIMIT + 1, LIMIT + 2):
        with pytest.raises(
            TextError, match=r"more than 96 tokens, .* at most 96 are possible: the model reads 96 tokens of"
        ):
            list(last_model.score([given(length)]))
    with pytest.raises(TextError, match=r"97 tokens, but at most 96 are possible"):
        last_model.generate(ids[:90], max_tokens=7)


@pytest.mark.parametrize("length", [96, 97, 98, 192, 193, 250])
def test_last_token_is_read_in_the_last_part(length: int, last_model: Model, chunk_model: Model, ids: Ids) -> None:
    scores = list(last_model.score_tokens([ids[:length]], restart=True))
    found = np.concatenate([part.log_probs for part in scores])
    starts = range(0, length - 1, LIMIT)
    expected = [
        (pure if length - start > LIMIT else with_last)(chunk_model, ids[start : min(start + LIMIT + 1, length)])
        for start in starts
    ]
    np.testing.assert_array_equal(found, np.concatenate(expected))


def test_corpus_whose_last_tokens_are_read(last_model: Model, chunk_model: Model, ids: Ids, close: Close) -> None:
    corpus = Corpus("corpus", ids.astype(np.int32))
    evaluation = last_model.evaluation()
    with pytest.raises(TextError, match=r"corpus: streams of 97 tokens, but at most 96 are possible"):
        arrange(Corpus("corpus", corpus.ids[:97]), evaluation, "document")
    rows = ids[:249].reshape(3, 83)
    found = walk(last_model, arrange(corpus, evaluation, "kimiyoung", 3))
    close(found.nats_per_token, -np.mean([with_last(chunk_model, row) for row in rows], dtype=np.float64))
    assert found.scored_tokens == 3 * 82
    for length in (96, 97, 250):
        corpus = Corpus("corpus", ids[:length].astype(np.int32))
        found = walk(last_model, arrange(corpus, last_model.evaluation(restart=True), "document"))
        (score,) = last_model.score([ids[:length]], restart=True)
        close(found.nats, score.nats)
