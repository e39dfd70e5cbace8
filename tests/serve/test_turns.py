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


def n_memories() -> int:
    return sum(isinstance(one, Memory) for one in gc.get_objects())


def run_rounds(scheduler: Scheduler, number: int, jobs: list[Job]) -> None:
    for job in jobs:
        scheduler.submit(job)
    scheduler._collect()
    for _ in range(number):
        scheduler._round()


def held(bundle: str) -> Scheduler:
    """Return a scheduler whose rounds a test runs."""
    scheduler = Scheduler(load(golden_bundle(bundle), threads=1))
    scheduler._thread = threading.current_thread()
    return scheduler


@pytest.mark.parametrize("name", LOADS)
def test_another_client_waits_for_few_rounds(name: str) -> None:
    scheduler, memories = held(EMPTY), n_memories()
    run_rounds(scheduler, 100, LOADS[name]())
    assert n_memories() - memories < 60  # choices that wait share theirs
    before, (other,) = scheduler.counts.steps, asked(1, 5, 8, 1, "other")
    run_rounds(scheduler, ROUNDS, [other])
    assert other.result(0) == () and scheduler.counts.steps - before <= STEPS * ROUNDS


def test_another_document_waits_for_one_turn_where_each_is_read_in_one_step() -> None:
    scheduler, (other,) = held(CHUNK), asked(1, 5, 8, 1, "other")
    run_rounds(scheduler, 10, [*asked(50, 20), *asked(1, 20, 70, 16)])
    run_rounds(scheduler, 2 * ROUNDS + 5, [other])
    assert other.result(0) == ()


@pytest.mark.parametrize("rule", [{}, {"seed": 1}])
def test_clients_get_equal_shares(rule: dict[str, int]) -> None:
    requests = [asked(3, 3, 10**6, 16, "greedy", **rule), asked(1, 3, 10**6, 16, "other", **rule)]
    run_rounds(held(EMPTY), 400, [job for jobs in requests for job in jobs])
    greedy, other = [sum(choice.drawn for job in jobs for choice in job.choices) for jobs in requests]
    assert other >= 0.9 * greedy > 0


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
