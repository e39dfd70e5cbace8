"""What one request holds while its continuations are drawn."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from xlexport.serve.answers import ApiError
from xlexport.serve.jobs import Draw
from xlexport.serve.results import draw_log
from xlexport.serve.runs import UNREAD, Choice, News, Outcome
from xlexport.serve.texts import Growing
from xlruntime.tokenizers import ByteTokenizer

LIKELIEST = 5


def drawn(number: int) -> Draw:
    """Return a token with likeliest ones; all numbers are objects of their own, as in a server.

    The tuples are made from lists: Python keeps up to 2,000 freed ones made from generators.
    """
    ids = tuple([1000 + number + rank for rank in range(LIKELIEST)])
    return Draw(97 + number % 26, -1.0 - number, ids, tuple([-2.0 - number - rank for rank in range(LIKELIEST)]))


def with_news(body: Callable[[Outcome, News], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        news = News()
        await body(Outcome(0, [Choice(Growing(ByteTokenizer(), [], []), keep=False)], news), news)

    asyncio.run(run())


def test_stream_that_nobody_reads_holds_no_object_for_a_token() -> None:
    async def body(outcome: Outcome, news: News) -> None:
        outcome.drew(0, drawn(0))
        before = sys.getallocatedblocks()
        for number in range(1, UNREAD):
            assert not outcome.drew(0, drawn(number))
        assert sys.getallocatedblocks() - before < UNREAD // 10
        (delta,) = await news.take()
        assert len(delta.text) == len(delta.draws) == outcome.choices[0].drawn == UNREAD
        log = draw_log(delta.draws, LIKELIEST)
        for number in (0, 1, UNREAD - 1):
            expected = drawn(number)
            assert (log.tokens[number], log.log_probs[number]) == (expected.token, expected.log_prob)
            assert tuple(log.top_ids[number]) == expected.top_ids
            assert tuple(log.top_log_probs[number]) == expected.top_log_probs

    with_news(body)


def test_stream_that_was_read_holds_nothing() -> None:
    async def body(outcome: Outcome, news: News) -> None:
        outcome.drew(0, drawn(0))
        await news.take()
        before = sys.getallocatedblocks()
        for number in range(1, 3_000):
            outcome.drew(0, drawn(number))
            (delta,) = await news.take()
            await asyncio.sleep(0)
            assert len(delta.draws) == 1
        assert sys.getallocatedblocks() - before < 300
        assert not len(outcome.choices[0].draws) and not outcome.choices[0].texts

    with_news(body)


def test_news_before_an_error_are_not_lost() -> None:
    async def body(outcome: Outcome, news: News) -> None:
        enough = [outcome.drew(0, drawn(number)) for number in range(UNREAD + 1)]
        assert enough == [*[False] * UNREAD, True]
        outcome.finished([])
        (delta,) = await news.take()
        assert len(delta.draws) == UNREAD + 1 and not delta.last
        with pytest.raises(ApiError, match=r"not read 4,096 tokens"):
            await news.take()
        await asyncio.sleep(0)
        assert isinstance(outcome.ended.exception(), ApiError)

    with_news(body)


def test_tokens_without_text_do_not_wait_for_a_reader() -> None:
    async def body(outcome: Outcome, news: News) -> None:
        outcome.choices[0].growing = Growing(ByteTokenizer(1), [], [])  # id 0 is not a byte
        for _ in range(UNREAD + 10):
            assert not outcome.drew(0, Draw(0))
        outcome.finished([])
        (delta,) = await news.take()
        assert delta.last and len(delta.draws) == UNREAD + 10

    with_news(body)
