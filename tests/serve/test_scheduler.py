"""Jobs that share steps get the numbers that each gets alone from a stream; clients take turns."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import BAND, CHUNK, EMPTY, golden_bundle
from tests.helpers.tiers import thinned
from xlexport.serve.jobs import AnswerChoice, Draws, Owner, RequestJob
from xlexport.serve.scheduler import Scheduler
from xlruntime import GrowingText, Memory, Model, OptionError, Sampling, TextError, TokenError, XlruntimeError, load
from xlruntime.tokenizers import ByteTokenizer

SLOTS = 2e-5  # nats: sums over other slots of a ring, in 32 bits
ROUNDING = 2e-5  # nats: between two graphs, and between sums in 32 and in 64 bits
ROUNDS, STEPS = 10, 5  # that a client may wait for 8 tokens after 5, and of the model in each of them
CUTS_MATTER = "post_lnorm_zeros"  # without same_length, and with a memory that is full of zeros at first


def opened(name: str) -> Model:
    return load(golden_bundle(name), threads=1)


def some_ids(model: Model, n: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, model.bundle.vocab_size, n)


def scored(model: Model, ids: npt.NDArray[np.int64]) -> tuple[list[float], list[int], list[int]]:
    """Return the scores of tokens, their ranks, and the likeliest token in place of each."""
    parts = list(model.score_tokens([ids], top=1))
    ranks = [part.rank for part in parts if part.rank is not None]
    likeliest = [part.top_ids[:, 0] for part in parts if part.top_ids is not None]
    log_probs = np.concatenate([part.log_probs for part in parts])
    return log_probs.tolist(), np.concatenate(ranks).tolist(), np.concatenate(likeliest).tolist()


def choice(sampling: Sampling) -> AnswerChoice:
    return AnswerChoice(sampling, GrowingText(ByteTokenizer(), [], []))


def submitted(scheduler: Scheduler, ids: npt.NDArray[np.int64], *samplings: Sampling, **work: Any) -> RequestJob:
    job = RequestJob(ids, choices=[choice(sampling) for sampling in samplings], **work)
    scheduler.submit(job)
    return job


def drawn(job: RequestJob) -> list[Draws]:
    """Return the tokens of each continuation, after the end of the job."""
    job.result(60)
    return [one.take().draws for one in job.choices]


class Held(AnswerChoice):
    """A continuation that lets a test act while the job runs."""

    def __init__(self) -> None:
        super().__init__(Sampling(0), GrowingText(ByteTokenizer(), [], []))
        self.begun, self.go_on = threading.Event(), threading.Event()

    def add(self, token: int, logits: npt.NDArray[np.float32], top: int | None = None) -> bool:
        self.begun.set()
        self.go_on.wait(60)
        return super().add(token, logits, top)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", thinned([EMPTY, CUTS_MATTER, BAND, "two_rings"], (CUTS_MATTER, BAND)))
def test_documents_against_streams(name: str, shared: bool) -> None:
    rounding = SLOTS if shared else 0
    model = opened(name)
    scheduler = Scheduler(model, most=4, shared_steps=shared)
    lengths = [1, 2, 3, 7, 8, 9, 10, 31, 50, 17, 5, 25]
    documents = [some_ids(model, n, seed) for seed, n in enumerate(lengths)]
    jobs = [submitted(scheduler, ids, keep=number % 2 == 0) for number, ids in enumerate(documents)]
    places = [job.result(60) for job in jobs]
    for ids, job in zip(documents, jobs, strict=True):
        expected = model.stream().feed(ids)
        np.testing.assert_allclose(job.log_probs, expected.log_probs, rtol=0, atol=rounding)
        assert np.concatenate([expected.context[:0], *(part.context for part in job.parts)]).tolist() == (
            expected.context.tolist()
        )
    goes_on = some_ids(model, 11, 99)
    later = [submitted(scheduler, goes_on, start=(*place, None)[0]) for place in places]
    for ids, place, more in zip(documents, places, later, strict=True):
        alone = model.stream()
        if place:
            alone.feed(ids)
        more.result(60)
        np.testing.assert_allclose(more.log_probs, alone.feed(goes_on).log_probs, rtol=0, atol=rounding)
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
    jobs = [submitted(scheduler, ids, *samplings, top=3, max_tokens=12) for ids in prompts]
    for ids, job in zip(prompts, jobs, strict=True):
        for sampling, draws in zip(samplings, drawn(job), strict=True):
            tokens = draws.tokens.tolist()
            assert tokens == list(model.generate(ids, max_tokens=12, sampling=sampling))
            if name == EMPTY:  # elsewhere scores depend on the cuts, or on what follows
                log_probs, _, likeliest = scored(model, np.concatenate([ids, tokens]))
                np.testing.assert_allclose(draws.log_probs, log_probs[len(ids) - 1 :], rtol=0, atol=ROUNDING)
                assert draws.top_ids[::3].tolist() == likeliest[len(ids) - 1 :]
    scheduler.close()
    assert scheduler.counts.drawn == 12 * 3 * 4


@pytest.mark.full
def test_answers_do_not_depend_on_other_requests() -> None:
    scheduler = Scheduler(opened(EMPTY), most=4)
    documents = [some_ids(opened(EMPTY), n, n) for n in (70, 47, 30, 13, 9, 2, 1)]

    def begun(ids: npt.NDArray[np.int64]) -> RequestJob:
        rules = Sampling(0), Sampling(seed=3), Sampling(), Sampling()
        return submitted(scheduler, ids, *rules, top=2, max_tokens=40)

    alone = []
    for ids in documents:
        alone.append(begun(ids))
        alone[-1].result(60)
    together = [begun(ids) for ids in documents]
    for one, other in zip(alone, together, strict=True):
        for draws, others in zip(drawn(one)[:2], (found := drawn(other))[:2], strict=True):
            assert vars(draws) == vars(others)
        np.testing.assert_array_equal(one.log_probs, other.log_probs)
        for draws in found[2:]:  # nobody can repeat them, so they share steps
            log_probs, *_ = scored(scheduler.engine, np.concatenate([one.ids, draws.tokens]))
            np.testing.assert_allclose(draws.log_probs, log_probs[len(one.ids) - 1 :], rtol=0, atol=SLOTS + ROUNDING)
    scheduler.close()
    assert scheduler.counts.row_steps > scheduler.counts.steps


def test_place_is_shared_and_never_changes() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    (place,) = submitted(scheduler, some_ids(model, 20, 1), keep=True).result(60)
    more = some_ids(model, 9, 2)
    stream = model.stream()
    stream.feed(some_ids(model, 20, 1))
    expected = stream.feed(more).log_probs
    tokens = list(stream.generate(max_tokens=5, sampling=Sampling(0)))
    for _ in range(2):
        fed = submitted(scheduler, more, start=place, keep=True)
        continued = submitted(scheduler, more, Sampling(0), start=place, max_tokens=5, keep=True)
        fed.result(60)
        np.testing.assert_array_equal(fed.log_probs, expected)
        assert drawn(continued)[0].tokens.tolist() == tokens
        (end,) = continued.result()
        assert (end.position, end.pending) == (34, tokens[-1])
    scheduler.close()


def test_cancelled_job_ends_and_others_go_on() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model, most=2)
    held = Held()
    job = RequestJob(some_ids(model, 5, 1), max_tokens=10**9, choices=[held])
    scheduler.submit(job)
    assert held.begun.wait(60)
    other = submitted(scheduler, some_ids(model, 30, 2))
    job.cancel()
    held.go_on.set()
    other.result(60)
    assert len(other.log_probs) == 29
    scheduler.close()
    assert (scheduler.counts.cancelled, scheduler.counts.finished, scheduler.counts.failed) == (1, 1, 0)


def test_error_of_a_receiver_ends_its_job_only() -> None:
    def refuse(choice: AnswerChoice, waiting: int) -> None:
        raise TextError("nobody reads.")

    model = opened(EMPTY)
    scheduler = Scheduler(model, shared_steps=True)
    ids = some_ids(model, 5, 1)
    unread = RequestJob(
        ids, max_tokens=9, choices=[AnswerChoice(Sampling(0), GrowingText(ByteTokenizer(), [], []), refuse)]
    )
    scheduler.submit(unread)
    other = submitted(scheduler, ids, Sampling(0), max_tokens=9)
    with pytest.raises(TextError, match="nobody reads"):
        unread.result(60)
    assert drawn(other)[0].tokens.tolist() == list(model.generate(ids, max_tokens=9, sampling=Sampling(0)))
    scheduler.close()
    assert (scheduler.counts.failed, scheduler.counts.finished) == (1, 1)


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
    with pytest.raises(XlruntimeError, match="a broken step"):
        submitted(scheduler, ids).result(60)
    later = submitted(scheduler, ids)
    later.result(60)
    np.testing.assert_array_equal(later.log_probs, model.stream().feed(ids).log_probs)
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
    failing, other = submitted(scheduler, bad), submitted(scheduler, good)
    with pytest.raises(XlruntimeError, match="not finite near token 1"):
        failing.result(60)
    other.result(60)
    assert len(other.log_probs) == 29
    scheduler.close()


def test_refusals() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    with pytest.raises(TextError, match="nothing to continue"):
        submitted(scheduler, np.zeros(0, np.int64))
    with pytest.raises(TokenError, match="token 1 has id 256"):
        submitted(scheduler, np.array([0, 256]))
    with pytest.raises(OptionError, match="top is 99"):
        submitted(scheduler, np.array([0]), top=99)
    with pytest.raises(OptionError, match="batch size is 0"):
        Scheduler(model, most=0)
    scheduler.close()
    with pytest.raises(XlruntimeError, match="shutting down"):
        submitted(scheduler, np.array([0]))
    whole = Scheduler(opened(CHUNK))
    with pytest.raises(OptionError, match="no sessions"):
        submitted(whole, np.array([0]), keep=True)
    with pytest.raises(TextError, match="at most"):
        submitted(whole, np.zeros(90, np.int64), max_tokens=10)
    whole.close()


def test_close_fails_what_is_under_way() -> None:
    model = opened(EMPTY)
    scheduler = Scheduler(model)
    held = Held()
    job = RequestJob(some_ids(model, 5, 1), max_tokens=10**9, choices=[held])
    scheduler.submit(job)
    assert held.begun.wait(60)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    held.go_on.set()
    with pytest.raises(XlruntimeError, match="shutting down"):
        job.result(60)
    closing.join(60)
    assert not closing.is_alive()


def asked(
    number: int, length: int, tokens: int = 0, n: int = 0, client: str = "greedy", **rule: Any
) -> list[RequestJob]:
    """Return the jobs of one request."""
    owner, jobs = Owner(client), list[RequestJob]()
    for _ in range(number):
        choices = [choice(Sampling(**rule)) for _ in range(n)]
        jobs.append(RequestJob(np.arange(length) % 256, max_tokens=tokens, choices=choices))
        jobs[-1].owner = owner
    return jobs


LOADS: dict[str, Callable[[], list[RequestJob]]] = {
    "requests with long prompts": lambda: [job for _ in range(7) for job in asked(1, 10_000)],
    "many prompts": lambda: asked(1_024, 1_100),
    "choices of many prompts": lambda: asked(100, 3, 10**6, 16),
    "seeded choices": lambda: asked(100, 3, 10**6, 16, seed=1),
    "requests with choices": lambda: [job for _ in range(20) for job in asked(2, 30, 10**6, 16, temperature=0)],
    "both": lambda: [*asked(100, 30, 10**6, 16, temperature=0), *asked(7, 10_000)],
}


def run_rounds(scheduler: Scheduler, number: int, jobs: list[RequestJob]) -> None:
    scheduler._thread = threading.current_thread()
    for job in jobs:
        scheduler.submit(job)
    scheduler._collect()
    for _ in range(number):
        scheduler._round()


def n_memories() -> int:
    return sum(type(one) is Memory for one in gc.get_objects())


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.full
def test_another_client_waits_for_few_rounds(name: str) -> None:
    scheduler, memories = Scheduler(opened(EMPTY)), n_memories()
    run_rounds(scheduler, 100, LOADS[name]())
    assert n_memories() - memories < 60  # choices that wait share theirs
    before, (other,) = scheduler.counts.steps, asked(1, 5, 8, 1, "other")
    run_rounds(scheduler, ROUNDS, [other])
    assert other.result(0) == () and scheduler.counts.steps - before <= STEPS * ROUNDS


def test_another_document_waits_for_one_turn_where_each_is_read_in_one_step() -> None:
    scheduler, (other,) = Scheduler(opened(CHUNK)), asked(1, 5, 8, 1, "other")
    run_rounds(scheduler, 10, [*asked(50, 20), *asked(1, 20, 70, 16)])
    run_rounds(scheduler, 2 * ROUNDS + 5, [other])
    assert other.result(0) == ()


@pytest.mark.parametrize("rule", [{}, {"seed": 1}])
@pytest.mark.full
def test_clients_get_equal_shares(rule: dict[str, int]) -> None:
    requests = [asked(3, 3, 10**6, 16, "greedy", **rule), asked(1, 3, 10**6, 16, "other", **rule)]
    run_rounds(Scheduler(opened(EMPTY)), 400, [job for jobs in requests for job in jobs])
    greedy, other = [sum(choice.drawn for job in jobs for choice in job.choices) for jobs in requests]
    assert other >= 0.9 * greedy > 0
