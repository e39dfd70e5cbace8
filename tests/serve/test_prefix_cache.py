"""Prompts that go on from the memory of an equal beginning get the scores of a whole reading."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import BAND, CHUNK, EMPTY, ZEROS
from tests.helpers.tiers import thinned
from tests.helpers.weights import random_model
from tests.serve.conftest import Start, error_of, metric
from tests.serve.test_scheduler import CUTS_MATTER, choice, opened, some_ids
from xlexport.serve.jobs import RequestJob, StreamPosition
from xlexport.serve.options import ServeLimits
from xlexport.serve.scheduler import Scheduler
from xlexport.serve.stages import ReadStage
from xlruntime import Model, PrefixCache, Sampling, load, prefix_cache

OTHER_SLOTS = 2e-5  # nats: sums over other slots of a ring, in 32 bits
LARGE = 10**9  # bytes
SCOPE = "a key", None
Ids = npt.NDArray[np.int64]


@pytest.fixture(autouse=True)
def boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a memory every 16 tokens, so that prompts may be short."""
    monkeypatch.setattr(prefix_cache, "EVERY", 16)


def tree(model: Model, n: int, longest: int = 150) -> list[Ids]:
    """Return prompts, most of which go on from some place of an earlier one; some are repeated."""
    rng, prompts = np.random.default_rng(n), [some_ids(model, 40, 0)]
    while len(prompts) < n:
        before = prompts[rng.integers(len(prompts))]
        kept = len(before) if rng.random() < 0.4 else int(rng.integers(len(before) + 1))
        more = rng.integers(0, model.bundle.vocab_size, int(rng.choice([0, 1, 7, 8, 30])) or int(kept == 0))
        prompts.append(np.concatenate([before[:kept], more])[:longest])
    return prompts


def prompted(ids: Ids, scope: tuple[str | None, ...] = SCOPE, **work: Any) -> RequestJob:
    """Return the job of a prompt that is continued by three likeliest tokens."""
    work = work or {"scores": False, "top": 1, "max_tokens": 3, "choices": [choice(Sampling(0))]}
    job = RequestJob(ids, **work)
    job.scope = scope
    return job


def done(scheduler: Scheduler, *jobs: RequestJob) -> None:
    """Run jobs that arrive at once to their end, in this thread."""
    scheduler._thread = threading.current_thread()
    for job in jobs:
        scheduler.submit(job)
    scheduler._collect()
    while not all(job.done() for job in jobs):
        scheduler._round()
    assert all(stage.idle for stage in scheduler._stages)


def check(scheduler: Scheduler, prompts: list[Ids], rounding: float = 0) -> None:
    """Compare continuations of prompts, five at once, with those of a scheduler without the cache."""
    alone, together = Scheduler(scheduler.engine, **scheduler.evaluation.to_dict()), 5
    for begin in range(0, len(prompts), together):
        jobs = [prompted(ids) for ids in prompts[begin : begin + together]]
        done(scheduler, *jobs)
        expected = [prompted(job.ids) for job in jobs]
        done(alone, *expected)
        for job, other in zip(jobs, expected, strict=True):
            draws, others = job.choices[0].take().draws, other.choices[0].take().draws
            assert draws.tokens == others.tokens
            np.testing.assert_allclose(draws.log_probs, others.log_probs, rtol=0, atol=rounding)
    assert scheduler.prefixes is not None
    assert scheduler.counts.read + scheduler.prefixes.saved == alone.counts.read
    assert scheduler.prefixes.hits + scheduler.prefixes.misses == sum(len(ids) > 1 for ids in prompts)


@pytest.mark.parametrize(
    "case",
    thinned(
        [(EMPTY, 50), (CUTS_MATTER, 50), (EMPTY, 1_000), (CUTS_MATTER, 1_000), (ZEROS, 200), (BAND, 200)],
        ((EMPTY, 50), (CUTS_MATTER, 50)),
        pytest.mark.release,
    ),
)
@pytest.mark.full
def test_trees_of_prompts(case: tuple[str, int]) -> None:
    name, n = case
    for size in (LARGE, 60_000) if n < 1_000 else (LARGE,):  # with the smaller one, memories go all the time
        prefixes = PrefixCache(size)
        check(Scheduler(opened(name), 4, prefixes=prefixes), tree(opened(name), n))
        assert prefixes.hits > n / 5 and 0 < prefixes.nbytes <= size and len(prefixes) > 5


@pytest.mark.full
def test_trees_in_shared_steps() -> None:
    for name in (EMPTY, CUTS_MATTER):
        scheduler = Scheduler(opened(name), 4, shared_steps=True, prefixes=PrefixCache(LARGE))
        check(scheduler, tree(opened(name), 100), OTHER_SLOTS)


@pytest.mark.release
def test_trees_of_a_mamba(tmp_path: Path, cached_exports: None) -> None:
    from xlexport.conversion import convert
    from xlexport.conversion_options import ConversionOptions
    from xlexport.formats import load as load_checkpoint
    from xltraining.architectures import new_model
    from xltraining.checkpoint import save_checkpoint
    from xltraining.recurrent import MambaConfig

    config = MambaConfig(
        n_token=20, n_layer=2, d_model=6, tie_weight=False, dropout=0.0, d_state=3, d_conv=3, tgt_len=5
    )
    model = random_model(lambda: new_model(config))
    save_checkpoint(tmp_path / "model.pt", model.config, model.state_dict(), tokenizer=None)
    options = ConversionOptions.of(tokenizer="none", threads=1, segments=50)
    convert(load_checkpoint(tmp_path / "model.pt"), tmp_path / "bundle", options)
    opened_model = load(tmp_path / "bundle", threads=1)
    check(Scheduler(opened_model, 4, prefixes=PrefixCache(LARGE)), tree(opened_model, 200))


@pytest.mark.release
def test_trees_of_int8_rings(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.helpers.bundles import convert_tiny
    from xlexport.conversion_options import ConversionOptions
    from xlexport.quantization.options import QuantizeOptions
    from xlexport.quantization.run import quantize

    sizes = {"d_model": 24, "d_head": 12, "d_inner": 32, "clamp_len": 15}
    source = convert_tiny(tmp_path_factory, "rings", ConversionOptions(), n_token=256, **sizes)
    options = QuantizeOptions("int8", max_delta_bits=1.0, memory_dtype="int8", tokens=512, threads=1)
    quantize(source.folder, tmp_path / "int8", options)
    model = load(tmp_path / "int8", threads=1)
    scheduler = Scheduler(model, 4, prefixes=PrefixCache(LARGE), same_length=True)
    check(scheduler, tree(model, 200))


def test_prompts_with_one_beginning_at_once_read_it_once() -> None:
    model = opened(EMPTY)
    beginning = some_ids(model, 100, 1)
    for n, more, most in ((8, 0, 8), (8, 9, 8), (3, 9, 1)):
        scheduler = Scheduler(model, most, prefixes=PrefixCache(LARGE))
        prompts = [np.concatenate([beginning, some_ids(model, more, seed)]) for seed in range(n)]
        done(scheduler, *(jobs := [prompted(ids) for ids in prompts]))
        assert scheduler.counts.read <= 99 + n * (more + 8 * (more > 0))  # the last cut before 100 is at 96
        assert [job.cached > 90 for job in jobs].count(True) == n - 1
    leader, follower = prompted(beginning), prompted(prompts[1])
    scheduler = Scheduler(model, 2, prefixes=PrefixCache(LARGE))
    scheduler._thread = threading.current_thread()
    for job in (leader, follower):
        scheduler.submit(job)
    scheduler._collect()
    scheduler._round()
    leader.cancel()  # the other one reads on
    done(scheduler, other := prompted(prompts[2]))
    while not follower.done():
        scheduler._round()
    assert follower.result() == other.result() == ()


def test_cancelled_follower_does_not_wait_for_its_leader() -> None:
    scheduler = Scheduler(opened(EMPTY), prefixes=PrefixCache(LARGE))
    stage, scheduler._thread = scheduler._first, threading.current_thread()
    leader, follower = (prompted(some_ids(opened(EMPTY), 100, 1)) for _ in range(2))
    for job in (leader, follower):
        scheduler.submit(job)
    scheduler._collect()
    scheduler._round()
    assert isinstance(stage, ReadStage) and [one.reader.job for one in stage._followers] == [follower]
    follower.cancel()
    scheduler._round()
    assert not stage._followers and not leader.done()
    done(scheduler, prompted(leader.ids))


@pytest.mark.parametrize("name", [EMPTY, CUTS_MATTER])
def test_sessions_go_on_from_prompts(name: str) -> None:
    model = opened(name)
    scheduler, alone = Scheduler(model, prefixes=PrefixCache(LARGE)), Scheduler(model)
    fed, prompt, more = (some_ids(model, n, n) for n in (37, 50, 9))
    for parts in ([fed, prompt], [np.append(fed, prompt)], [fed, prompt]):
        places: list[tuple[StreamPosition | None, ...]] = [(None,), (None,)]
        for part in parts:
            jobs = [prompted(part, start=place[0], keep=True, scores=part is fed) for place in places]
            done(scheduler, jobs[0])
            done(alone, jobs[1])
            places = [job.result() for job in jobs]
        found, expected = (RequestJob(more, place[0]) for place in places)
        done(scheduler, found)
        done(alone, expected)
        np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    assert scheduler.prefixes is not None and scheduler.prefixes.saved > 0


def test_scopes_settings_and_graphs_share_nothing() -> None:
    model, prefixes = opened(EMPTY), PrefixCache(LARGE)
    scheduler, ids = Scheduler(model, prefixes=prefixes), some_ids(model, 60, 1)
    for scope in (SCOPE, ("a key", "salt"), ("another", None), (None, "a key"), (None, None)):
        done(scheduler, job := prompted(ids, scope))
        assert job.cached == 0
    done(Scheduler(model, prefixes=prefixes, mem_len=5), job := prompted(ids))
    assert job.cached == 0
    done(scheduler, job := prompted(ids, top=3, scores=True))  # reads all, with another graph
    assert job.cached == 0 and len(job.log_probs) == 59
    known = len(prefixes)
    done(scheduler, prompted(some_ids(model, 60, 2), top=3, scores=True))
    assert len(prefixes) == known
    done(scheduler, job := prompted(ids))
    assert job.cached == 59
    nobody = prompted(ids)
    nobody.scope = None
    done(scheduler, nobody)
    assert nobody.cached == 0


def test_oldest_memories_go_first_and_idle_ones_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(EMPTY)
    each = model.new_memory(model.evaluation()).nbytes + prefix_cache.ENTRY_BYTES
    prefixes = PrefixCache(3 * each, 100)
    scheduler, (first, second, third, fourth) = (
        Scheduler(model, prefixes=prefixes),
        (some_ids(model, 9, s) for s in range(4)),
    )
    for ids in (first, second, third, first, fourth):
        done(scheduler, prompted(ids))
    assert (len(prefixes), prefixes.nbytes, prefixes.hits, prefixes.misses, prefixes.saved) == (3, 3 * each, 1, 4, 8)
    for ids, cached in ((first, 8), (second, 0), (fourth, 8), (first, 8), (third, 0)):
        done(scheduler, job := prompted(ids))
        assert job.cached == cached
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 99)
    done(scheduler, prompted(first))
    monkeypatch.setattr(time, "monotonic", lambda: now + 150)
    prefixes.expire()
    assert len(prefixes) == 1 and prefixes.nbytes == each
    monkeypatch.setattr(time, "monotonic", lambda: now + 300)
    done(scheduler, job := prompted(first))
    assert job.cached == 0
    small = PrefixCache(each - 1)
    done(Scheduler(model, prefixes=small), prompted(first))
    assert len(small) == 0


def test_parts_of_a_session_and_scores_are_kept_at_boundaries_only() -> None:
    model = opened(EMPTY)
    each = model.new_memory(model.evaluation()).nbytes + prefix_cache.ENTRY_BYTES
    prefixes = PrefixCache(3 * each)
    scheduler, ids = Scheduler(model, prefixes=prefixes), some_ids(model, 9, 1)
    done(scheduler, prompted(ids))
    places: tuple[StreamPosition | None, ...] = (None,)
    for number in range(12):
        part = some_ids(model, 2, number + 2)
        done(scheduler, job := prompted(part, start=places[0], keep=True, scores=number % 2 == 0))
        done(scheduler, prompted(part, scores=True))
        places = job.result()
    assert len(prefixes) == 2  # of the prompt, and of the session after 16 tokens
    done(scheduler, job := prompted(ids))
    assert job.cached == 8


@pytest.mark.full
def test_server(start: Start) -> None:
    prompt = "It was the best of times, it was the worst of times"
    asked, answers = {"model": EMPTY, "prompt": prompt, "seed": 1, "logprobs": 1}, []
    for cache in (0, 10**6, 10**6):  # the last server begins with an empty cache, as after a restart
        client = start(EMPTY, CHUNK, keys=("secret", "other key"), prefix_cache=cache)
        client.headers["authorization"] = "Bearer secret"
        cached = []
        for own in ({}, {}, {"cache_salt": "x" * 64}, {"cache_salt": "ü"}, {"cache_salt": "ü"}, {"echo": True}):
            answer = client.post("/v1/completions", json={**asked, **own}).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            if not own:
                answers.append(answer["choices"])
        read = len(prompt) - 1
        assert cached == ([0, read, 0, 0, read, 0] if cache else [0] * 6)
        whole = client.post("/v1/completions", json={"model": CHUNK, "prompt": [1, 2], "max_tokens": 1}).json()
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}, whole
        session = client.post("/v1/sessions", json={"model": EMPTY, "cache_salt": "ü"}).json()["id"]
        body = {"prompt": f"{prompt}, it", "max_tokens": 2, "temperature": 0}
        assert client.post(f"/v1/sessions/{session}/generate", json=body).status_code == 200
        if cache:
            assert metric(client, "xlexport_prefix_hits_total") == 3
            assert metric(client, "xlexport_prefix_misses_total") == 3  # a request for scores does not look
            assert metric(client, "xlexport_prefix_tokens_saved_total") == 2 * read + 48
            assert 0 < metric(client, "xlexport_prefix_bytes") < 10**6 and metric(client, "xlexport_prefix_entries") > 3
            client.headers["authorization"] = "Bearer other key"
            answer = client.post("/v1/completions", json=asked).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for salt in ("", "x" * 65, "a\nb"):
            refused = error_of(client.post("/v1/completions", json={**asked, "cache_salt": salt}), 400)
            assert refused["message"] == "cache_salt: expected 1 to 64 printable characters."
    assert all(choices == answers[0] for choices in answers)


def test_idle_time_of_a_server_without_sessions() -> None:
    assert ServeLimits(sessions=0, session_seconds=60, prefix_cache=1000).session_seconds == 60
