"""Limited positions: longer documents are refused with the limit, or position and memory are reset.

The golden Reformer of rule `band` reads 200 tokens of a document, and predicts one more.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.ids import random_ids
from tests.helpers.paths import BAND
from tests.runtime.conftest import Close, open_golden
from xlruntime import Document, Model, NonFiniteScoreWarning, OptionError, Sampling, Scores, TextError
from xlruntime.protocols import Corpus, arrange, walk

LIMIT = 200
GREEDY = Sampling(temperature=0)
Ids = npt.NDArray[np.int64]


@pytest.fixture
def ids() -> Ids:
    """Return almost four times as many tokens as the model reads."""
    return np.asarray(random_ids(777, vocab_size=258))


def parts_alone(model: Model, ids: Ids) -> npt.NDArray[np.float32]:
    """Return the expected scores of restarts: of each part and its next token as a separate document."""
    starts = range(0, len(ids) - 1, LIMIT)
    return np.concatenate([model.stream().feed(ids[start : start + LIMIT + 1]).log_probs for start in starts])


@pytest.mark.parametrize("fed", [0, 1, 100, LIMIT, LIMIT + 1])
def test_one_token_too_many_is_refused_and_nothing_is_taken(
    fed: int, band_model: Model, ids: Ids, close: Close
) -> None:
    stream = band_model.stream()
    stream.feed(ids[:fed])
    before = stream.position, stream.pending, stream.memory.offset
    message = (
        "the document: 202 tokens, but at most 201 are possible: the model reads 200 tokens of a document and predicts "
        "one more. Make it shorter, or let it begin again every 200 tokens (restart=True, --restart)."
    )
    with pytest.raises(TextError) as caught:
        stream.feed(ids[fed : LIMIT + 2])
    assert str(caught.value) == message
    assert (stream.position, stream.pending, stream.memory.offset) == before
    rest = stream.feed(ids[fed : LIMIT + 1]).log_probs
    close(rest, band_model.stream().feed(ids[: LIMIT + 1]).log_probs[max(0, fed - 1) :])
    stream.reset()
    assert len(stream.feed(ids[: LIMIT + 1])) == LIMIT


def test_restart_scores_each_token_from_its_own_part(band_model: Model, ids: Ids, close: Close) -> None:
    found = band_model.stream(restart=True).feed(ids)
    close(found.log_probs, parts_alone(band_model, ids))
    np.testing.assert_array_equal(found.index, np.arange(1, 777))
    np.testing.assert_array_equal(found.tokens, ids[1:])
    # Token 200 is still scored from the part before it, token 201 from token 200 alone.
    assert found.context[LIMIT - 2 : LIMIT + 2].tolist() == [13, 13, 1, 2]


def test_feeds_may_end_anywhere_about_a_restart(band_model: Model, ids: Ids, close: Close) -> None:
    stream = band_model.stream(restart=True)
    cuts = [0, 1, 199, 200, 201, 202, 399, 402, 402, 600, 777]
    parts = [stream.feed(ids[start:end]).log_probs for start, end in itertools.pairwise(cuts)]
    close(np.concatenate(parts), band_model.stream(restart=True).feed(ids).log_probs)


@pytest.mark.parametrize("fed", [0, 1, 5, 150, 199, 200, 201, 202, 430])
@pytest.mark.full
def test_saved_stream_restarts_at_the_same_place(
    fed: int, band_model: Model, ids: Ids, tmp_path: Any, close: Close
) -> None:
    stream, ids = band_model.stream(restart=True), ids[:610]
    stream.feed(ids[:fed])
    stream.save(tmp_path / "state")
    restored = band_model.restore(tmp_path / "state")
    moved = [band_model.restore(tmp_path / "state", capacity=capacity) for capacity in (13, 50)]
    expected = stream.feed(ids[fed:])
    found = restored.feed(ids[fed:])
    np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    np.testing.assert_array_equal(found.context, expected.context)
    for other in moved:
        close(other.feed(ids[fed:]).log_probs, expected.log_probs)


def test_generation_that_could_get_too_long_is_refused_at_once(band_model: Model, ids: Ids) -> None:
    assert len(list(band_model.generate(ids[:150], max_tokens=51))) == 51
    for generate in (band_model.generate, band_model.stream().generate):
        with pytest.raises(TextError, match=r"with 52 tokens more: 202 tokens, but at most 201 are possible"):
            generate(ids[:150], max_tokens=52)


@pytest.mark.parametrize("prompt", [1, 199, 200, 201, 250])
def test_generation_goes_on_after_a_restart(prompt: int, band_model: Model, ids: Ids) -> None:
    drawn = list(band_model.generate(ids[:prompt], max_tokens=220, sampling=GREEDY, restart=True))
    whole = np.concatenate([ids[:prompt], drawn])
    ranks: list[int] = []
    for start in range(0, len(whole) - 1, LIMIT):
        part = whole[start : start + LIMIT + 1]
        memory = band_model.new_memory(band_model.evaluation(segment_len=LIMIT))
        ranks += band_model.step("detail", memory, part[None, :-1], part[None, 1:])["rank"][0].tolist()
    assert ranks[prompt - 1 :] == [1] * 220


@functools.cache
def alone(length: int) -> tuple[Ids, Scores]:
    """Return a document, and its scores."""
    document = random_ids(length, seed=length, vocab_size=258)
    return document, open_golden(BAND).stream(restart=True).feed(document)


@pytest.mark.parametrize("segment_len", [8, 7, 64, 300])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 20])
@pytest.mark.full
def test_ragged_batch_restarts_row_by_row(batch_size: int, segment_len: int, band_model: Model, close: Close) -> None:
    """Short documents leave rows idle for far more steps than there are positions."""
    lengths = (5, 777, 777, 1, 150, 201, 202, 2, 399, 400, 401, 402, 60)
    documents, expected = zip(*map(alone, lengths), strict=True)
    found: dict[int, list[Any]] = defaultdict(list)
    for scores in band_model.score_tokens(documents, batch_size=batch_size, segment_len=segment_len, restart=True):
        found[scores.number].append(scores)
    for number, (document, wanted) in enumerate(zip(documents, expected, strict=True)):
        of = found[number]
        close(np.concatenate([scores.log_probs for scores in of]), wanted.log_probs)
        for what in ("index", "tokens", "context"):
            together = np.concatenate([getattr(scores, what) for scores in of])
            np.testing.assert_array_equal(together, getattr(wanted, what))
        assert of[-1].summary.tokens == len(document)


def test_document_that_is_too_long_is_named_before_it_is_scored(band_model: Model, ids: Ids) -> None:
    documents = [Document("short", ids[:20]), Document("long", ids[: LIMIT + 2]), Document("other", ids[:20])]
    scores = band_model.score_tokens(documents)
    seen = []
    with pytest.raises(TextError, match=r"^long: more than 201 tokens, but at most 201 are possible"):
        seen += [one.document for one in scores]
    seen += [one.document for one in band_model.score_tokens([documents[0], Document("fits", ids[: LIMIT + 1])])]
    assert set(seen) == {"short", "fits"}


def test_document_of_unknown_length_is_refused_when_it_gets_too_long(bytes_of_band: Model) -> None:
    """Score text from a pipe as it arrives, up to the limit."""
    asked = 0

    class Pipe(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            nonlocal asked
            asked += 1
            return b"ten bytes " * 5

    endless: Any = Pipe()
    scores = bytes_of_band.score_tokens([Document("pipe", endless)], segment_len=50)
    assert len(next(scores)) == 50
    assert asked <= 3
    with pytest.raises(TextError, match=r"^pipe: more than 201 tokens"):
        list(scores)
    fits = Document("fits", io.BytesIO(b"x" * (LIMIT + 1)))
    assert next(bytes_of_band.score([fits])).tokens == LIMIT + 1


def test_step_beyond_the_positions_is_refused(band_model: Model, ids: Ids) -> None:
    memory = band_model.new_memory(band_model.evaluation(segment_len=64), batch_size=2)
    memory.position[1] = 190
    tokens = np.stack([ids[:11], ids[:11]])
    with pytest.raises(OptionError, match=r"a row has room for 10 more.* at most 200 tokens"):
        band_model.step("score", memory, tokens, tokens)
    assert memory.position.tolist() == [0, 190]
    band_model.step("score", memory, tokens[:, :10], tokens[:, :10])


def test_row_that_was_not_finite_begins_at_the_first_position(band_model: Model, ids: Ids, close: Close) -> None:
    stream = band_model.stream()
    stream.feed(ids[:150])
    for entry in stream.memory.entries:
        if entry.dtype == "float32":
            stream.memory.array(entry)[:] = np.nan
    with pytest.warns(NonFiniteScoreWarning):
        stream.feed(ids[150:158])
    assert all(np.isfinite(stream.memory.array(entry)).all() for entry in stream.memory.entries)
    assert stream.memory.position.tolist() == [0]
    found, fresh = stream.feed(ids[158:350]), band_model.stream().feed(ids[157:350])
    close(found.log_probs, fresh.log_probs)
    np.testing.assert_array_equal(found.context, fresh.context)


def test_corpus_is_walked_with_restarts_or_refused(band_model: Model, ids: Ids, close: Close) -> None:
    corpus = Corpus("corpus", ids.astype(np.int32))
    with pytest.raises(TextError, match=r"^corpus: streams of 777 tokens, but at most 201 are possible"):
        arrange(corpus, band_model.evaluation(), "document")
    with pytest.raises(TextError, match=r"streams of 259 tokens"):
        arrange(corpus, band_model.evaluation(), "kimiyoung", 3)
    assert walk(band_model, arrange(corpus, band_model.evaluation(), "kimiyoung", 7)).scored_tokens == 7 * 110

    restarting = band_model.evaluation(restart=True, segment_len=48)
    found = walk(band_model, arrange(corpus, restarting, "document"))
    close(found.nats_per_token, -parts_alone(band_model, ids).mean(dtype=np.float64))
    assert found.restart
    streams = arrange(corpus, restarting, "kimiyoung", 3)
    expected = [parts_alone(band_model, row) for row in ids[: 3 * 259].reshape(3, 259)]
    close(walk(band_model, streams).nats_per_token, -np.mean(expected, dtype=np.float64))


@pytest.mark.parametrize(("mem_len", "warmup"), [(40, 48), (220, 224)])
def test_warmup_is_not_scored_if_streams_restart(
    mem_len: int, warmup: int, band_model: Model, ids: Ids, close: Close
) -> None:
    """Walk rows of 259 tokens and their warm-up: they restart after 200 tokens, warm-up included."""
    evaluation = band_model.evaluation(restart=True, segment_len=16, mem_len=mem_len)
    streams = arrange(Corpus("corpus", ids.astype(np.int32)), evaluation, "nvidia", 3)
    assert streams.warmup == warmup
    rows = np.concatenate([streams.tokens, streams.targets[:, -1:]], axis=1).astype(np.int64)
    expected = [band_model.stream(restart=True, mem_len=mem_len).feed(row).log_probs[warmup:] for row in rows]
    found = walk(band_model, streams)
    assert found.scored_tokens == 3 * 258
    close(found.nats_per_token, -np.mean(expected, dtype=np.float64))
