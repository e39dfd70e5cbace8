"""Documents with equal contexts: a cache reads each context once, and changes no score."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import BAND, CHUNK, EMPTY, golden_bundle
from tests.helpers.tiers import thinned
from tests.runtime.conftest import PLACES, VARIANTS, Golden
from xlruntime import Document, Model, OptionError, PrefixCache, load, prefix_cache
from xlruntime.bundle import Bundle
from xlruntime.bundle_files import digest_file
from xlruntime.errors import ArgumentError, StepTimeoutError
from xlruntime.fitting import BatchSize
from xlruntime.scorer import Scorer

OTHER_SLOTS = 1e-5  # nats: sums over other slots of a ring, in 32 bits
LARGE = 10**9  # bytes


@pytest.fixture(autouse=True)
def boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a memory every 16 tokens, so that contexts may be short."""
    monkeypatch.setattr(prefix_cache, "EVERY", 16)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of tokens of each step that any model runs."""
    sizes, step = list[int](), Model.step

    def counting(self: Model, purpose: str, memory: Any, tokens: npt.NDArray[np.int64], targets: Any) -> Any:
        sizes.append(tokens.size)
        return step(self, purpose, memory, tokens, targets)

    monkeypatch.setattr(Model, "step", counting)
    return sizes


def few_shot(model: Model, n: int, length: int = 90) -> list[Document]:
    """Return documents whose contexts are examples, equal for all, and a question, equal for three of them each."""
    size = model.bundle.vocab_size
    examples, documents = random_ids(length, seed=1, vocab_size=size), []
    for number in range(n):
        question = random_ids(2 + number // 3, seed=2 + number // 3, vocab_size=size)
        answer = random_ids(5, seed=number, vocab_size=size)
        documents.append(Document(str(number), answer, context=np.concatenate([examples, question])))
    return documents


def log_probs(scorer: Scorer, documents: list[Document]) -> list[npt.NDArray[np.float32]]:
    found: dict[int, list[npt.NDArray[np.float32]]] = {}
    for part in scorer.tokens(documents):
        found.setdefault(part.number, []).append(part.log_probs)
    return [np.concatenate(found[number]) for number in sorted(found)]


@pytest.mark.parametrize("top", [None, 1])
@pytest.mark.parametrize("batch_size", [1, 3, "auto"])
@pytest.mark.parametrize("name", thinned([*VARIANTS, PLACES, BAND], (EMPTY, BAND)))
def test_few_shot_documents(name: str, batch_size: BatchSize, top: int | None, golden: Golden, run: list[int]) -> None:
    model = golden(name)
    evaluation, documents = model.evaluation(), few_shot(model, 12, 4 if name == PLACES else 90)
    expected = log_probs(Scorer(model, evaluation, batch_size, top), documents)
    whole, prefixes = sum(run), PrefixCache(LARGE)
    for _ in range(2):
        run.clear()
        found = log_probs(Scorer(model, evaluation, batch_size, top, prefixes=prefixes), documents)
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=0 if batch_size == 1 else OTHER_SLOTS)
        if name != PLACES:
            assert sum(run) < whole / 2
    assert prefixes.saved > 0


def test_texts_and_begin_tokens(golden: Golden, run: list[int]) -> None:
    model, prefixes = golden(EMPTY), PrefixCache(LARGE)
    documents = [Document(word, word, context="It was the best of times, it was the ") for word in ("worst", "age")]
    for bos in (None, 3, 4):
        expected = [score.nats for score in model.score(documents, bos=bos)]
        found = [score for score in model.score(documents, bos=bos, prefixes=prefixes)]
        assert [score.nats for score in found] == expected
        assert [score.tokens for score in found] == [5, 3]
    assert (prefixes.hits, prefixes.misses) == (3, 3)  # no begin token has the memory of another
    run.clear()
    list(model.score([Document("again", "wisdom", context="It was the best of times, it was the ")], prefixes=prefixes))
    assert sum(run) == len(f"{documents[0].context!s}wisdom") - 1 - 32  # from the last whole step of the context


def with_zeros(folder: Path) -> None:
    """Let the documents of a bundle begin with full rings."""
    edit_manifest(folder, lambda manifest: manifest["document"].update(fresh_memory="zeros"))


def with_other_weights(folder: Path) -> None:
    """Scale the weights of a bundle, whose manifest then has their digest and the old fingerprint."""
    weights = folder / "weights.data"
    (np.fromfile(weights, np.float32) * 0.5).tofile(weights)
    digest = digest_file(weights).sha256
    edit_manifest(folder, lambda manifest: manifest["files"][weights.name].update(sha256=digest))


@pytest.mark.parametrize("change", [with_zeros, with_other_weights])
def test_bundles_with_one_fingerprint_share_nothing(change: Callable[[Path], None], tmp_path: Path) -> None:
    shutil.copytree(golden_bundle(EMPTY), tmp_path / "other")
    change(tmp_path / "other")
    model, other = load(golden_bundle(EMPTY), threads=1), load(tmp_path / "other", threads=1)
    assert model.bundle.fingerprint == other.bundle.fingerprint
    documents, prefixes = few_shot(model, 1, 12), PrefixCache(LARGE)  # so few that they depend on fresh memory
    own, expected = ([score.nats for score in each.score(documents)] for each in (model, other))
    assert own != expected
    assert [score.nats for score in model.score(documents, prefixes=prefixes)] == own
    assert [score.nats for score in other.score(documents, prefixes=prefixes)] == expected
    assert (prefixes.hits, prefixes.misses) == (0, 2)


def test_memory_that_is_not_finite_is_not_kept(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prefixes = golden(EMPTY), PrefixCache(LARGE)
    step = Model.step

    def poisoned(self: Model, *given: Any) -> Any:
        outputs = step(self, *given)
        return {**outputs, "log_prob": outputs["log_prob"] * np.nan}

    monkeypatch.setattr(Model, "step", poisoned)
    with pytest.warns(RuntimeWarning, match="not finite"):
        list(model.score(few_shot(model, 1), prefixes=prefixes))
    assert len(prefixes) == prefixes.nbytes == 0


def test_fault_of_the_graph_is_no_unreadable_document(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Model, *given: Any) -> Any:
        raise StepTimeoutError("the step took too long")

    monkeypatch.setattr(Model, "step", failing)
    model = golden(EMPTY)
    scorer = Scorer(model, model.evaluation(), keep_going=True, prefixes=PrefixCache(LARGE))
    with pytest.raises(StepTimeoutError):
        list(scorer.tokens(few_shot(model, 1)))
    context = Document("unreadable", "It", context=np.array([model.bundle.vocab_size]))
    assert next(scorer.tokens([context])).error is not None


def test_size(golden: Golden) -> None:
    with pytest.raises(OptionError, match="a prefix cache of 0 bytes"):
        PrefixCache(0)
    model, documents = golden(EMPTY), few_shot(golden(EMPTY), 1)
    size = model.new_memory(model.evaluation()).nbytes + prefix_cache.ENTRY_BYTES
    list(model.score(documents, prefixes=(cache := PrefixCache(size))))
    assert cache.nbytes == size
    with pytest.raises(OptionError, match=f"a prefix cache of {size - 1:,} bytes, but .* takes {size:,}"):
        model.score(documents, prefixes=PrefixCache(size - 1))


def test_where_nothing_could_be_kept(golden: Golden) -> None:
    model, whole, cache = golden(EMPTY), golden(CHUNK), PrefixCache(LARGE)
    with pytest.raises(OptionError, match="each document in one step, or several in batches"):
        whole.score(few_shot(whole, 1), prefixes=cache)
    with pytest.raises(OptionError, match="continuous documents"):
        Scorer(model, model.evaluation(), continuous=True, prefixes=cache)
    with pytest.raises(ArgumentError, match=r"expected an xlruntime\.PrefixCache, found 1000000"):
        model.score(few_shot(model, 1), prefixes=1_000_000)  # type: ignore[arg-type]


def test_fixed_batches(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "fixed", {"batch": 2})
    with pytest.raises(OptionError, match="several in batches of a fixed size"):
        golden(EMPTY).score([], prefixes=PrefixCache(LARGE))
