"""What one request holds while its continuations are drawn."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from xlexport.extras import missing_packages
from xlexport.serve.jobs import AnswerChoice, Delta, RequestJob
from xlexport.serve.logprobs import TokenTexts
from xlruntime import GrowingText, Sampling, load
from xlruntime.tokenizers import ByteTokenizer

pytestmark = pytest.mark.skipif(bool(missing_packages("serve")), reason="the extra serve is not installed")

LIKELIEST = 5
LOGITS = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)


def draw(choice: AnswerChoice, number: int, token: int | None = None) -> bool:
    """Add a token with likeliest ones."""
    return choice.add(97 + number % 26 if token is None else token, LOGITS[number % 64], LIKELIEST)


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    scores = logits.astype(np.float64)
    return np.asarray(scores - np.log(np.exp(scores).sum()))


class Held:
    """A scheduler whose jobs a test runs."""

    def submit(self, job: RequestJob) -> None:
        pass


def with_stream(
    body: Callable[[RequestJob, Any], Coroutine[Any, Any, None]], tokenizer: ByteTokenizer | None = None
) -> None:
    from xlexport.serve.runs import Run

    async def run() -> None:
        request = Run(Held(), 60)  # type: ignore[arg-type]
        text = GrowingText(tokenizer or ByteTokenizer(), [], [])
        job = RequestJob(np.array([1]), max_tokens=10**9, choices=[AnswerChoice(Sampling(0), text, request.on_news)])
        request.add(job)
        await body(job, request.news())

    asyncio.run(run())


async def next_of(news: Any) -> Delta:
    index, delta = await anext(news)
    assert index == 0 and isinstance(delta, Delta)
    return delta


def test_stream_that_nobody_reads_holds_no_object_for_a_token() -> None:
    from xlexport.serve.logprobs import draw_log
    from xlexport.serve.runs import UNREAD

    async def body(job: RequestJob, news: Any) -> None:
        (choice,) = job.choices
        draw(choice, 0)
        before = sys.getallocatedblocks()
        for number in range(1, UNREAD):
            assert not draw(choice, number)
        assert sys.getallocatedblocks() - before < UNREAD // 10
        delta = await next_of(news)
        assert len(delta.text) == len(delta.draws) == choice.drawn == UNREAD
        log = draw_log(delta.draws, LIKELIEST, delta.logged)
        for number in (0, 1, UNREAD - 1):
            token, expected = 97 + number % 26, log_softmax(LOGITS[number % 64])
            assert log.tokens[number] == token
            assert log.log_probs[number] == pytest.approx(expected[token], rel=1e-12)
            assert log.top_ids[number].tolist() == np.argsort(-expected)[:LIKELIEST].tolist()
            assert log.top_log_probs[number] == pytest.approx(np.sort(expected)[: -LIKELIEST - 1 : -1], rel=1e-12)

    with_stream(body)


def test_news_before_an_error_are_not_lost() -> None:
    from xlexport.serve.errors import ApiError
    from xlexport.serve.runs import UNREAD

    async def body(job: RequestJob, news: Any) -> None:
        (choice,) = job.choices
        for number in range(UNREAD):
            assert not draw(choice, number)
        with pytest.raises(ApiError, match=r"not read 4,096 tokens") as caught:
            draw(choice, UNREAD)
        job.fail(caught.value)
        job.finish()
        delta = await next_of(news)
        assert len(delta.draws) == UNREAD + 1 and not delta.last
        with pytest.raises(ApiError, match=r"not read 4,096 tokens"):
            await next_of(news)

    with_stream(body)


def test_each_continuation_ends_once() -> None:
    from xlexport.serve.runs import Run

    async def run() -> None:
        request = Run(Held(), 5)  # type: ignore[arg-type]
        texts = [GrowingText(ByteTokenizer(), [], []) for _ in range(3)]
        jobs = [RequestJob(np.array([1]), choices=[AnswerChoice(Sampling(0), text, request.on_news)]) for text in texts]
        for job in jobs:
            request.add(job)
        for job in jobs:
            draw(job.choices[0], 0)
            draw(job.choices[0], 1)
            job.finish()
        news = [(place, delta.text, delta.last) async for place, delta in request.news()]
        assert news == [(place, "ab", True) for place in range(3)]

    asyncio.run(run())


def test_tokens_without_text_do_not_wait_for_a_reader() -> None:
    from xlexport.serve.runs import UNREAD

    async def body(job: RequestJob, news: Any) -> None:
        for number in range(UNREAD + 10):
            assert not draw(job.choices[0], number, token=0)
        job.finish()
        delta = await next_of(news)
        assert delta.last and len(delta.draws) == UNREAD + 10

    with_stream(body, ByteTokenizer(1))  # id 0 is not a byte


def test_end_of_a_request_cancels_its_jobs() -> None:
    from xlexport.serve.runs import Run
    from xlexport.serve.scheduler import Scheduler

    scheduler = Scheduler(load(golden_bundle(EMPTY), threads=1))
    first, second = (RequestJob(np.array([1]), max_tokens=10**9, choices=[choice]) for choice in map(endless, range(2)))

    async def run() -> None:
        request = Run(scheduler, 0.05)
        request.add(first)
        with pytest.raises(Exception, match=r"longer than 0\.05 seconds"):
            await request.wait()
        assert first.cancelled()
        request = Run(scheduler, 60)
        request.add(second)
        request.close()
        assert second.cancelled()

    asyncio.run(run())
    scheduler.close()
    assert scheduler.counts.cancelled == 2


def endless(number: int) -> AnswerChoice:
    return AnswerChoice(Sampling(0), GrowingText(ByteTokenizer(), [], []))


def test_texts_of_tokens_differ() -> None:
    texts = TokenTexts(ByteTokenizer())
    assert [texts[token] for token in (97, 10, 0xE4, 0xFF)] == ["a", "\n", "bytes:\\xe4", "bytes:\\xff"]
    assert len(set(texts.keys(list(range(256))))) == 256
    ids = TokenTexts(load(golden_bundle(CHUNK), threads=1).tokenizer)
    assert ids.keys([3, 14]) == ["3", "14"]


def test_session_does_not_expire_while_a_request_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from xlexport.serve import sessions
    from xlexport.serve.options import ServeLimits

    now = 0.0
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: 0))
    evaluation = SimpleNamespace(full_document=False)
    model: Any = SimpleNamespace(session_bytes=1, scheduler=SimpleNamespace(evaluation=evaluation))
    store = sessions.SessionStore(ServeLimits())
    session = store.create(model, ttl=10)
    with store.changing(session.id):
        now = 25.0
        assert store.all() == [session]
    now = 34.0  # it was used at the end of the request
    assert store.get(session.id) is session
    now = 45.0
    assert not store.all()
