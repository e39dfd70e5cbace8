"""Jobs that share steps get the numbers that each gets alone from a stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import BAND, CHUNK, EMPTY, golden_bundle
from tests.helpers.tiers import thinned
from xlexport.serve.jobs import Collected, Draw, Place, Work
from xlexport.serve.scheduler import Scheduler
from xlruntime import Model, OptionError, Sampling, TextError, TokenError, XlruntimeError, load

SLOTS = 2e-5  # nats: sums over other slots of a ring, in 32 bits
ROUNDING = 2e-5  # nats: between two graphs, and between sums in 32 and in 64 bits
CUTS_MATTER = "post_lnorm_zeros"  # without same_length, and with a memory that is full of zeros at first


def opened(name: str) -> Model:
    return load(golden_bundle(name), threads=1)


def some_ids(model: Model, n: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, model.bundle.vocab_size, n)


def scored(model: Model, ids: npt.NDArray[np.int64]) -> tuple[list[float], list[int], list[int]]:
    """Return the scores of tokens, their ranks, and the likeliest token in place of each."""
    parts = list(model.score_tokens([ids], detail=1))
    ranks = [part.rank for part in parts if part.rank is not None]
    likeliest = [part.top_ids[:, 0] for part in parts if part.top_ids is not None]
    log_probs = np.concatenate([part.log_probs for part in parts])
    return log_probs.tolist(), np.concatenate(ranks).tolist(), np.concatenate(likeliest).tolist()


class Held(Collected):
    """A listener that lets a test act while the job runs."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def drew(self, choice: int, draw: Draw) -> bool:
        self.begun.set()
        self.go_on.wait(60)
        return super().drew(choice, draw)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", thinned([EMPTY, CUTS_MATTER, BAND, "two_rings"], (CUTS_MATTER, BAND)))
def test_documents_against_streams(name: str, shared: bool) -> None:
    rounding = SLOTS if shared else 0
    model = opened(name)
    scheduler = Scheduler(model, most=4, shared_steps=shared)
    lengths = [1, 2, 3, 7, 8, 9, 10, 31, 50, 17, 5, 25]
    documents = [some_ids(model, n, seed) for seed, n in enumerate(lengths)]
    listeners = [Collected() for _ in documents]
    for number, (ids, listener) in enumerate(zip(documents, listeners, strict=True)):
        scheduler.submit(Work(ids, keep=number % 2 == 0), listener)
    for ids, listener in zip(documents, listeners, strict=True):
        expected = model.stream().feed(ids)
        np.testing.assert_allclose(listener.wait().log_probs, expected.log_probs, rtol=0, atol=rounding)
        assert np.concatenate([expected.context[:0], *(part.context for part in listener.parts)]).tolist() == (
            expected.context.tolist()
        )
    goes_on = some_ids(model, 11, 99)
    later = [Collected() for _ in documents]
    for listener, more in zip(listeners, later, strict=True):
        scheduler.submit(Work(goes_on, start=(*listener.places, None)[0]), more)
    for ids, listener, more in zip(documents, listeners, later, strict=True):
        alone = model.stream()
        if listener.places:
            alone.feed(ids)
        np.testing.assert_allclose(more.wait().log_probs, alone.feed(goes_on).log_probs, rtol=0, atol=rounding)
    scheduler.close()
    counts = scheduler.counts
    assert counts.jobs == counts.finished == 2 * len(documents)
    assert counts.read == sum(lengths) - len(lengths) + 11 * len(documents) - len(lengths) // 2
    assert counts.busy_row_steps <= counts.row_steps and scheduler.load == 0


@pytest.mark.parametrize("name", thinned([EMPTY, CUTS_MATTER, BAND, CHUNK], (EMPTY,)))
def test_continuations_against_generate(name: str) -> None:
    model = opened(name)
    scheduler = Scheduler(model, most=2)
    prompts = [some_ids(model, n, seed) for seed, n in enumerate([1, 13, 8, 30])]
    samplings = (Sampling(0), Sampling(0.7, top_k=5, seed=3), Sampling(seed=4))
    listeners = [Collected(len(samplings)) for _ in prompts]
    for ids, listener in zip(prompts, listeners, strict=True):
        scheduler.submit(Work(ids, top=3, max_tokens=12, samplings=samplings), listener)
    for ids, listener in zip(prompts, listeners, strict=True):
        listener.wait()
        for sampling, draws in zip(samplings, listener.draws, strict=True):
            tokens = [draw.token for draw in draws]
            assert tokens == list(model.generate(ids, max_tokens=12, sampling=sampling))
            if name == EMPTY:  # elsewhere scores depend on the cuts, or on what follows
                log_probs, _, likeliest = scored(model, np.concatenate([ids, tokens]))
                found = np.array([draw.log_prob for draw in draws])
                np.testing.assert_allclose(found, np.array(log_probs[len(ids) - 1 :]), rtol=0, atol=ROUNDING)
                assert [draw.top_ids[0] for draw in draws] == likeliest[len(ids) - 1 :]
    scheduler.close()
    assert scheduler.counts.drawn == 12 * 3 * 4


def test_answers_do_not_depend_on_other_requests() -> None:
    scheduler = Scheduler(opened(EMPTY), most=4)
    documents = [some_ids(opened(EMPTY), n, n) for n in (70, 47, 30, 13, 9, 2, 1)]
    works = [Work(ids, top=2, max_tokens=40, samplings=(Sampling(0), Sampling(seed=3))) for ids in documents]
    alone, together = ([Collected(2) for _ in works] for _ in range(2))
    for work, listener in zip(works, alone, strict=True):
        scheduler.submit(work, listener)
        listener.wait()
    for work, listener in zip(works, together, strict=True):
        scheduler.submit(work, listener)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.log_probs, other.wait().log_probs)
        assert one.draws == other.draws
    scheduler.close()


def test_shared_steps_are_fewer() -> None:
    model, steps = opened(EMPTY), []
    for shared in (False, True):
        scheduler = Scheduler(model, most=4, shared_steps=shared)
        first, listeners = Held(), [Collected() for _ in range(3)]
        for n, listener in enumerate([first, *listeners]):
            scheduler.submit(Work(some_ids(model, n + 1, n), max_tokens=40, samplings=(Sampling(0),)), listener)
            first.begun.wait(60)  # and stays there until all have been submitted
        first.go_on.set()
        found = [[draw.token for draw in listener.wait().draws[0]] for listener in [first, *listeners]]
        assert found == [
            list(model.generate(some_ids(model, n + 1, n), max_tokens=40, sampling=Sampling(0))) for n in range(4)
        ]
        scheduler.close()
        steps.append(scheduler.counts.steps)
    assert steps[1] < steps[0] / 2


def test_place_is_shared_and_never_changes() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    first = Collected()
    scheduler.submit(Work(some_ids(model, 20, 1), keep=True), first)
    (place,) = first.wait().places
    more = some_ids(model, 9, 2)
    stream = model.stream()
    stream.feed(some_ids(model, 20, 1))
    expected = stream.feed(more).log_probs
    tokens = list(stream.generate(max_tokens=5, sampling=Sampling(0)))
    for _ in range(2):
        fed, drawn = Collected(), Collected()
        scheduler.submit(Work(more, start=place, keep=True), fed)
        scheduler.submit(Work(more, start=place, max_tokens=5, samplings=(Sampling(0),), keep=True), drawn)
        np.testing.assert_array_equal(fed.wait().log_probs, expected)
        assert [draw.token for draw in drawn.wait().draws[0]] == tokens
        (end,) = drawn.places
        assert (end.position, end.pending) == (34, tokens[-1])
    scheduler.close()


def test_detail_of_some_rows_does_not_change_others() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    ids = some_ids(model, 30, 5)
    plain, detailed = Collected(), Collected()
    scheduler.submit(Work(ids), plain)
    scheduler.submit(Work(ids, top=2), detailed)
    np.testing.assert_allclose(plain.wait().log_probs, detailed.wait().log_probs, rtol=0, atol=ROUNDING)
    assert plain.parts[0].rank is None
    ranks = [part.rank for part in detailed.parts if part.rank is not None]
    assert np.concatenate(ranks).tolist() == scored(model, ids)[1]
    scheduler.close()


def test_cancelled_job_ends_and_others_go_on() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model, most=2)
    held, other = Held(), Collected()
    work = Work(some_ids(model, 5, 1), max_tokens=10**9, samplings=(Sampling(0),))
    job = scheduler.submit(work, held)
    assert held.begun.wait(60)
    scheduler.submit(Work(some_ids(model, 30, 2)), other)
    scheduler.cancel(job)
    held.go_on.set()
    assert len(other.wait().log_probs) == 29
    scheduler.close()
    assert (scheduler.counts.cancelled, scheduler.counts.finished, scheduler.counts.failed) == (1, 1, 0)
    assert not job.over


def test_listener_ends_a_continuation() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    listener = Collected(stop_at=lambda tokens: len(tokens) == 3)
    scheduler.submit(Work(some_ids(model, 5, 1), max_tokens=10, samplings=(Sampling(0),)), listener)
    assert len(listener.wait().draws[0]) == 3
    scheduler.close()


def test_failed_step_fails_its_jobs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    ids = some_ids(model, 30, 5)
    step = model.step
    broken = [True]

    def fail_once(purpose: str, *arguments: object) -> object:
        if broken.pop() if broken else False:
            raise XlruntimeError("a broken step.")
        return step(purpose, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "step", fail_once)
    failing, later = Collected(), Collected()
    scheduler.submit(Work(ids), failing)
    with pytest.raises(XlruntimeError, match="a broken step"):
        failing.wait()
    scheduler.submit(Work(ids), later)
    np.testing.assert_array_equal(later.wait().log_probs, model.stream().feed(ids).log_probs)
    scheduler.close()
    assert (scheduler.counts.failed, scheduler.counts.finished) == (1, 1)


def test_scores_that_are_not_finite_fail_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    good, bad = np.full(30, 7), np.full(30, 9)
    step = model.step

    def poisoned(purpose: str, memory: object, tokens: npt.NDArray[np.int64], targets: object) -> object:
        outputs = step(purpose, memory, tokens, targets)  # type: ignore[arg-type]
        outputs["log_prob"][tokens[:, 0] == 9] = np.nan
        return outputs

    monkeypatch.setattr(model, "step", poisoned)
    failing, other = Collected(), Collected()
    scheduler.submit(Work(bad), failing)
    scheduler.submit(Work(good), other)
    with pytest.raises(XlruntimeError, match="not finite near token 1"):
        failing.wait()
    assert len(other.wait().log_probs) == 29
    scheduler.close()


def test_refusals() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)

    def refused(work: Work) -> None:
        scheduler.submit(work, Collected())

    with pytest.raises(TextError, match="nothing to continue"):
        refused(Work(np.zeros(0, np.int64)))
    with pytest.raises(TokenError, match="token 1 has id 256"):
        refused(Work(np.array([0, 256])))
    with pytest.raises(OptionError, match="detail is 99"):
        refused(Work(np.array([0]), top=99))
    with pytest.raises(OptionError, match="batch size is 0"):
        Scheduler(model, most=0)
    scheduler.close()
    with pytest.raises(XlruntimeError, match="shutting down"):
        refused(Work(np.array([0])))
    whole = Scheduler(opened(CHUNK))
    with pytest.raises(OptionError, match="no sessions"):
        whole.submit(Work(np.array([0]), keep=True), Collected())
    with pytest.raises(TextError, match="at most"):
        whole.submit(Work(np.zeros(90, np.int64), max_tokens=10), Collected())
    whole.close()


def test_close_fails_what_is_under_way() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    held = Held()
    scheduler.submit(Work(some_ids(model, 5, 1), max_tokens=10**9, samplings=(Sampling(0),)), held)
    assert held.begun.wait(60)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    held.go_on.set()
    with pytest.raises(XlruntimeError, match="shutting down"):
        held.wait()
    closing.join(60)
    assert not closing.is_alive()


def places(found: Sequence[Place]) -> list[int]:
    return [place.position for place in found]


def test_each_continuation_has_its_own_place() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    listener = Collected(3)
    samplings = (Sampling(0), Sampling(seed=1), Sampling(seed=2))
    scheduler.submit(Work(some_ids(model, 6, 1), max_tokens=4, samplings=samplings, keep=True), listener)
    assert places(listener.wait().places) == [10, 10, 10]
    assert [place.pending for place in listener.places] == [draws[-1].token for draws in listener.draws]
    scheduler.close()
