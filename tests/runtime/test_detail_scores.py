"""Ranks, entropies and likeliest tokens of documents, against full distributions of each token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import Model, OptionError, TokenScores
from xlruntime.evaluation import EvaluationSettings

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


def test_detail_against_brute_force(variant: Model, random_ids: RandomIds) -> None:
    ids = random_ids(70, vocab_size=variant.bundle.vocab_size)
    settings: dict[str, Any] = {} if variant.bundle.settings["same_length"] else {"segment_len": 1}
    other = random_ids(25, seed=1, vocab_size=variant.bundle.vocab_size)
    found = list(variant.score_tokens([ids, other], batch_size=2, detail=10, **settings))
    evaluation = variant.evaluation(segment_len=1)
    for number, document in enumerate((ids, other)):
        parts = [part for part in found if part.number == number]
        check_against(parts, document, distributions(variant, evaluation, document))


def test_detail_of_a_reformer_against_brute_force(band_model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(90, vocab_size=258)
    parts = list(band_model.score_tokens([ids], detail=10))
    check_against(parts, ids, distributions(band_model, band_model.evaluation(segment_len=1), ids))


def test_detail_of_whole_documents(chunk_model: Model, random_ids: RandomIds) -> None:
    """Compare with the generate graph: it returns a document's last distribution, which has no later tokens."""
    ids = random_ids(60, vocab_size=40)
    (part,) = chunk_model.score_tokens([ids], detail=10)
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
    detailed = list(model.score_tokens(documents, batch_size=2, detail=3))
    assert [part.number for part in plain] == [part.number for part in detailed]
    for before, after in zip(plain, detailed, strict=True):
        close(after.log_probs, before.log_probs)
        for what in ("index", "tokens", "starts", "ends", "context"):
            np.testing.assert_array_equal(getattr(after, what), getattr(before, what))
        assert (before.summary is None) == (after.summary is None)
        assert all(getattr(before, what) is None for what in DETAILS)


@pytest.mark.parametrize("k", [0, 1, 10])
def test_shapes_and_kinds(k: int, bytes_model: Model) -> None:
    parts = list(bytes_model.score_tokens([b"some text that takes several steps", b"x"], detail=k))
    for part in parts:
        n = len(part)
        found = {name: getattr(part, name) for name in DETAILS}
        assert {name: array.shape for name, array in found.items()} == {
            "rank": (n,), "entropy": (n,), "top_ids": (n, k), "top_log_probs": (n, k),
        }  # fmt: skip
        assert [str(array.dtype) for array in found.values()] == ["int64", "float64", "int64", "float64"]
    assert len(parts[-1]) == 0


@pytest.mark.parametrize("k", [-1, 11])
def test_more_alternatives_than_there_are(k: int, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=f"detail is {k}, expected 0 to 10, the likeliest tokens that this bundle"):
        bytes_model.score_tokens([b"text"], detail=k)
