"""A scorer saved between two steps goes on bit-equal; documents that fail do not change the others."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.tiers import thinned
from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import Document, Model, OptionError, StateError, TextError, TokenError, TokenScores
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import read_scorer, resume_scorer, scorer_state

Ids = npt.NDArray[np.int64]
LENGTHS = (45, 1, 130, 2, 63, 0, 9, 64, 30)


def documents_of(model: Model, random_ids: RandomIds, lengths: tuple[int, ...] = LENGTHS) -> list[Document]:
    size = model.bundle.vocab_size
    return [Document(f"of {n}", random_ids(n, seed=n, vocab_size=size)) for n in lengths]


def scorer_of(model: Model, **options: Any) -> Scorer:
    return Scorer(model, model.evaluation(), **options)


def plain(part: TokenScores) -> list[Any]:
    """Return all fields of a part except its speed."""
    total = part.summary
    arrays = (part.index, part.tokens, part.starts, part.ends, part.log_probs, part.context, part.rank, part.top_ids)
    return [
        part.document,
        part.number,
        *(None if array is None else (array.dtype, array.tobytes()) for array in arrays),
        None if part.first is None else part.first.ids.tolist(),
        None if total is None else (total.tokens, total.nats, total.bits_per_byte, total.bytes),
        repr(part.error),
    ]


def stopped_at_each_step(model: Model, documents: list[Document], options: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the parts of runs that were saved after 0, 1, 2, … steps and continued by a new scorer."""
    whole = [[plain(part) for part in parts] for parts in scorer_of(model, **options).steps(documents)]
    yield [part for parts in whole for part in parts]
    for stop in range(len(whole) + 1):
        before = scorer_of(model, **options)
        steps = before.steps(documents)
        found = [plain(part) for _ in range(stop) for part in next(steps)]
        fields, arrays = scorer_state(before)
        arrays = {name: array.copy() for name, array in arrays.items()}
        next(steps, None)  # what the other scorer does now does not matter
        after = scorer_of(model, **options)
        saved = read_scorer(after, json.loads(json.dumps(fields)), arrays)
        rest = resume_scorer(after, saved, arrays, documents)
        yield found + [plain(part) for parts in after.steps(rest) for part in parts]


@pytest.mark.parametrize(
    "options",
    thinned(
        [{}, {"batch_size": 3}, {"batch_size": 2, "top": 2}, {"continuous": True}],
        [{"batch_size": 3}, {"batch_size": 2, "top": 2}],
    ),
)
@pytest.mark.parametrize("name", ["post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "reformer_band"])
@pytest.mark.full
def test_saved_after_any_step(name: str, options: dict[str, Any], golden: Golden, random_ids: RandomIds) -> None:
    model = golden(name)
    lengths = (45, 1, 60, 2, 9) if name == "reformer_band" else LENGTHS
    uninterrupted, *runs = stopped_at_each_step(model, documents_of(model, random_ids, lengths), options)
    assert len(runs) > 5
    for run in runs:
        assert run == uninterrupted


def test_whole_documents_saved_between_them(chunk_model: Model, random_ids: RandomIds) -> None:
    documents = documents_of(chunk_model, random_ids, (20, 1, 30, 96))
    uninterrupted, *runs = stopped_at_each_step(chunk_model, documents, {})
    assert runs == [uninterrupted] * 5


def test_documents_that_changed_are_refused(bytes_model: Model, random_ids: RandomIds) -> None:
    documents = documents_of(bytes_model, random_ids)
    before = scorer_of(bytes_model, batch_size=2)
    steps = before.steps(documents)
    for _ in range(6):
        next(steps)
    fields, arrays = scorer_state(before)
    saved = read_scorer(scorer_of(bytes_model, batch_size=2), json.loads(json.dumps(fields)), arrays)
    changed = Document("of 130", np.zeros(130, np.int64))
    for others, message in (
        (documents[:2], r"^2 documents, expected the 3 that the saved run had read"),
        ([*documents[:2], changed, *documents[3:]], r"^of 130: not the text that was left there"),
        ([*documents[:2], Document("other", documents[2].source)], r"^other: not the text that was left there"),
        ([*documents[:2], Document("of 130", [1, 2])], r"^of 130: not the text that was left there"),
        ([*documents[:2], Document("of 130", [1, 999])], r"^of 130: cannot be read again \(of 130: token 1 has id 999"),
    ):
        with pytest.raises(StateError, match=message):
            resume_scorer(scorer_of(bytes_model, batch_size=2), saved, arrays, others)


class Breaking(io.BytesIO):
    """A file that cannot be read beyond its first bytes."""

    def read(self, size: int | None = -1) -> bytes:
        raw = super().read(size)
        if not raw:
            raise OSError(5, "Input/output error", "it")
        return raw


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_documents_that_fail_do_not_change_the_others(
    batch_size: int, bytes_model: Model, random_ids: RandomIds
) -> None:
    good = [random_ids(n, seed=n) for n in (70, 33, 51)]
    bad: list[Any] = [[1, 999], [*range(100), 256], Breaking(b"forty bytes, and then the disk is broken"), "\ud800"]
    documents = [good[0], bad[0], bad[1], good[1], bad[2], bad[3], good[2]]
    parts = list(scorer_of(bytes_model, batch_size=batch_size, keep_going=True).tokens(documents))
    errors = {part.number: part.error for part in parts if part.error is not None}
    assert {number: type(error) for number, error in errors.items()} == {
        1: TokenError, 2: TokenError, 4: OSError, 5: TextError,
    }  # fmt: skip
    assert {part.number for part in parts if part.summary is not None} == {0, 3, 6}
    for number, ids in zip((0, 3, 6), good, strict=True):
        found = np.concatenate([part.log_probs for part in parts if part.number == number])
        np.testing.assert_allclose(found, bytes_model.stream().feed(ids).log_probs, rtol=0, atol=2e-5)
    scored = sum(len(part) for part in parts if part.number == 4)
    assert 0 < scored < 40  # the text before the failure


def test_documents_too_long_for_the_model_leave_the_others(band_model: Model, random_ids: RandomIds) -> None:
    documents: list[Any] = [random_ids(50), random_ids(300), iter([random_ids(300)]), random_ids(60)]
    parts = list(scorer_of(band_model, batch_size=2, keep_going=True).tokens(documents))
    assert {part.number for part in parts if part.summary is not None} == {0, 3}
    assert all("at most 201 are possible" in str(part.error) for part in parts if part.error is not None)


@pytest.mark.parametrize("cut", [0, 1, 20, 64])
def test_continuous_documents_are_one(cut: int, model: Model, random_ids: RandomIds, close: Close) -> None:
    """Cut a text into documents: with same_length, cuts only change the documents' totals."""
    ids = random_ids(150)
    parts = list(scorer_of(model, continuous=True).tokens([ids[:cut], ids[cut:100], ids[100:]]))
    close(np.concatenate([part.log_probs for part in parts]), model.stream().feed(ids).log_probs)
    np.testing.assert_array_equal(np.concatenate([part.tokens for part in parts]), ids[1:])
    totals = [part.summary for part in parts if part.summary is not None]
    assert [total.tokens for total in totals] == [cut, 100 - cut, 50]
    assert sum(total.scored_tokens for total in totals) == 149
    last = next(part for part in parts if part.number == 2)
    assert (last.index[0], last.context[0], last.first) == (0, model.stream().feed(ids).context[99], None)


def test_continuous_bytes_of_later_documents_all_count(bytes_model: Model) -> None:
    parts = scorer_of(bytes_model, continuous=True).tokens([b"first", b"second"])
    first, second = (part.summary for part in parts if part.summary is not None)
    assert (first.bytes, first.scored_bytes, second.bytes, second.scored_bytes) == (5, 4, 6, 6)


def test_continuous_is_refused_if_it_is_not_possible(bytes_model: Model, chunk_model: Model) -> None:
    with pytest.raises(OptionError, match="reads each document in one step and carries no memory"):
        scorer_of(chunk_model, continuous=True)
    with pytest.raises(OptionError, match="batch size must be 1, not 2"):
        scorer_of(bytes_model, continuous=True, batch_size=2)


def test_first_token_is_reported_once(bytes_model: Model) -> None:
    for documents in ([b"some longer text of several steps"], [b"x"], [b"x", b"yz"]):
        parts = list(scorer_of(bytes_model).tokens(documents))
        firsts = [part.first for part in parts if part.first is not None]
        assert [first.ids.tolist() for first in firsts] == [[document[0]] for document in documents]
        assert parts[0].first is not None and (parts[0].first.starts[0], parts[0].first.ends[0]) == (0, 1)
