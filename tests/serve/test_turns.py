"""A client waits for few rounds, no matter what others ask for."""

from __future__ import annotations

import gc
import hashlib
import json
import threading
from collections.abc import Callable
from socket import create_connection
from typing import Any

import numpy as np
import pytest

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from tests.serve.conftest import Start, error_of, metric, start
from xlexport.serve.jobs import Choice, Job, Owner
from xlexport.serve.scheduler import Scheduler
from xlruntime import GrowingText, Memory, Sampling, load
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["start"]

ROUNDS = 10  # that a client may wait for 8 tokens after 5
STEPS = 5  # of the model in each of them
KEYS = ("the-greedy-key", "the-other-key")


def asked(number: int, length: int, tokens: int = 0, n: int = 0, client: str = "greedy", **rule: Any) -> list[Job]:
    """Return the jobs of one request."""
    owner, jobs = Owner(client), []
    for _ in range(number):
        choices = [Choice(Sampling(**rule), GrowingText(ByteTokenizer(), [])) for _ in range(n)]
        jobs.append(Job(np.arange(length) % 256, max_tokens=tokens, choices=choices))
        jobs[-1].owner = owner
    return jobs


LOADS: dict[str, Callable[[], list[Job]]] = {
    "requests with long prompts": lambda: [job for _ in range(7) for job in asked(1, 10_000)],
    "many prompts": lambda: asked(1_024, 1_100),
    "choices of many prompts": lambda: asked(100, 3, 10**6, 16),
    "seeded choices": lambda: asked(100, 3, 10**6, 16, seed=1),
    "requests with choices": lambda: [job for _ in range(20) for job in asked(2, 30, 10**6, 16, temperature=0)],
    "both": lambda: [*asked(100, 30, 10**6, 16, temperature=0), *asked(7, 10_000)],
}


def held(bundle: str) -> Scheduler:
    """Return a scheduler whose rounds a test runs."""
    scheduler = Scheduler(load(golden_bundle(bundle), threads=1))
    scheduler._thread = threading.current_thread()
    return scheduler


def run_rounds(scheduler: Scheduler, most: int, job: Job | None = None) -> None:
    """Run so many rounds, or fewer if a job ends before."""
    while most and not (job is not None and job.done()):
        scheduler._collect()
        scheduler._round()
        most -= 1


@pytest.mark.parametrize("name", LOADS)
def test_another_client_waits_for_few_rounds(name: str) -> None:
    scheduler = held(EMPTY)
    for job in LOADS[name]():
        scheduler.submit(job)
    run_rounds(scheduler, 100)
    before = scheduler.counts.steps
    (other,) = asked(1, 5, 8, 1, "other")
    scheduler.submit(other)
    run_rounds(scheduler, ROUNDS, other)
    assert other.result(0) == () and scheduler.counts.steps - before <= STEPS * ROUNDS


def test_another_document_waits_for_one_turn_where_each_is_read_in_one_step() -> None:
    scheduler = held(CHUNK)
    for job in [*asked(50, 20), *asked(1, 20, 70, 16)]:
        scheduler.submit(job)
    run_rounds(scheduler, 10)
    (other,) = asked(1, 5, 8, 1, "other")
    scheduler.submit(other)
    run_rounds(scheduler, 2 * ROUNDS + 5, other)
    assert other.result(0) == ()


@pytest.mark.parametrize("rule", [{}, {"seed": 1}])
def test_clients_get_equal_shares(rule: dict[str, int]) -> None:
    scheduler = held(EMPTY)
    requests = [asked(3, 3, 10**6, 16, "greedy", **rule), asked(1, 3, 10**6, 16, "other", **rule)]
    for job in [job for jobs in requests for job in jobs]:
        scheduler.submit(job)
    run_rounds(scheduler, 400)
    greedy, other = [sum(choice.drawn for job in jobs for choice in job.choices) for jobs in requests]
    assert other >= 0.9 * greedy > 0


def test_choices_that_wait_share_their_memory() -> None:
    scheduler = held(EMPTY)
    before = sum(isinstance(one, Memory) for one in gc.get_objects())
    for job in [job for _ in range(4) for job in asked(100, 30, 10**6, 16, seed=1)]:
        scheduler.submit(job)
    for _ in range(20):
        run_rounds(scheduler, 20)
        assert sum(isinstance(one, Memory) for one in gc.get_objects()) - before < 60
    assert scheduler.counts.drawn > 100


def test_client_is_answered_beside_a_greedy_one(start: Start) -> None:
    client = start(keys=KEYS, sessions=0)
    labels = [f'client="{hashlib.sha256(key.encode()).hexdigest()[:16]}"' for key in KEYS]
    client.headers["authorization"] = f"Bearer {KEYS[1]}"
    body = json.dumps({"prompt": ["a", "a"], "n": 16, "max_tokens": 60_000})
    head = f"Authorization: Bearer {KEYS[0]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with create_connection((client.base_url.host, client.base_url.port)) as greedy:
        greedy.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{head}{body}".encode())
        while metric(client, f'xlexport_client_jobs{{{labels[0]},model="{EMPTY}",state="drawing"}}') != 1:
            assert metric(client, "xlexport_jobs_total") == 0
        for fields in ({"max_tokens": 8}, {"max_tokens": 0, "echo": True, "logprobs": 0}):
            assert client.post("/v1/completions", json={"prompt": "Hello", **fields}).status_code == 200
    assert error_of(client.post("/v1/sessions", json={}), 429)
    assert [metric(client, f"xlexport_refusals_total{{{label}}}") for label in labels] == [0, 1]


def test_continuations_of_all_prompts_are_bounded_and_counted(start: Start) -> None:
    client = start(request_bytes=5_000_000)
    body = {"prompt": ["a"] * 1_024, "n": 16, "max_tokens": 1}
    assert (
        "16,384 continuations of all prompts together, at most 2,048"
        in error_of(client.post("/v1/completions", json=body), 400)["message"]
    )
    body["prompt"] = ["a"] * 100
    error_of(client.post("/v1/completions", json=body), 413)
