"""Measure `xlexport serve` under load: answers, memory, counters, throughput, and time to the first token.

    python -m benchmarks.serve_under_load BUNDLE DOCUMENT

Three parts, each with a server of its own:

- answers: many clients send requests of mixed kinds and lengths, among them requests that are cancelled, malformed
  requests, and clients that read nothing. Every answer is compared with that of the same request alone.
- throughput: tokens a second of prompts at 1, 8 and 64 clients, and of the library at these batch sizes.
- first token: time to the first event of short streams, alone and while another client's prompt of 1 MB is read.

All prompts are pieces of the document.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click
import httpx
import numpy as np

import xlruntime
from benchmarks.measuring import PATH
from benchmarks.serving_clients import (
    MALFORMED,
    Answer,
    ServerProcess,
    ask,
    cancelled_ask,
    differences,
    request_body,
    unread_ask,
)
from xlexport.bench.measuring import Clock, compared

__all__ = ["main"]

PARTS = ("answers", "throughput", "first-token")
CLIENTS = (1, 8, 64)
JSON_TYPE = {"content-type": "application/json"}
SLOW_READERS = 8
UNREAD = {"prompt": "a", "max_tokens": 60_000, "logprobs": 5, "stream": True}
LARGE = 1_000_000  # characters of the prompt that is read while short streams begin


@asynccontextmanager
async def clients_of(server: ServerProcess, connections: int) -> AsyncIterator[httpx.AsyncClient]:
    """Lend a client that keeps up to `connections` connections open."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(base_url=server.url, timeout=3_600, limits=limits) as client:
        yield client


class Load:
    """The part about answers."""

    def __init__(self, server: ServerProcess, text: str, requests: int, others: int, distinct: int, longest: int):
        """Plan `requests` requests of `distinct` kinds, and as many as `others` of cancelled and malformed ones."""
        self._server = server
        self._text = text
        self._bodies = [request_body(number, text, longest) for number in range(distinct)]
        self._plan = [("checked", n) for n in range(requests)]
        self._plan += [(kind, n) for kind in ("cancelled", "malformed") for n in range(others)]
        np.random.default_rng(0).shuffle(self._plan)
        self._alone: list[Answer] = []
        self._apart: list[float] = []
        self._statuses: Counter[int] = Counter()
        self._megabytes: list[float] = []

    async def run(self, clients: int) -> None:
        """Send everything, and print the results."""
        before = self._server.metrics()
        async with clients_of(self._server, 1) as client:
            self._alone = [await ask(client, body) for body in self._bodies]
        self._statuses.update(answer.status for answer in self._alone)
        started = time.perf_counter()
        tokens = self._tokens(self._server.metrics())
        slow = [await unread_ask(self._server.url, UNREAD) for _ in range(SLOW_READERS)]
        waiting = iter(enumerate(self._plan))
        async with clients_of(self._server, clients) as client:
            await asyncio.gather(*(self._work(client, waiting) for _ in range(clients)))
        seconds = time.perf_counter() - started
        for writer in slow:
            writer.close()
        while (after := self._server.metrics())["xlexport_requests_under_way"]:
            await asyncio.sleep(0.2)
        self._print(clients, seconds, (self._tokens(after) - tokens) / seconds, before, after)

    async def _work(self, client: httpx.AsyncClient, waiting: Iterable[tuple[int, tuple[str, int]]]) -> None:
        for at, (kind, number) in waiting:
            if kind == "checked":
                which = number % len(self._bodies)
                answer = await ask(client, self._bodies[which])
                self._statuses[answer.status] += 1
                self._apart.append(differences(answer, self._alone[which]))
            elif kind == "cancelled":
                await cancelled_ask(self._server.url, number, self._text)
            else:
                raw = MALFORMED[number % len(MALFORMED)]
                self._statuses[(await client.post("/v1/completions", content=raw, headers=JSON_TYPE)).status_code] += 1
            if at % 1_000 == 999:
                self._megabytes.append(self._server.megabytes())
                click.echo(f"{at + 1:,} of {len(self._plan):,}: {self._megabytes[-1]:,.1f} MB", err=True)

    @staticmethod
    def _tokens(metrics: dict[str, float]) -> float:
        return sum(value for name, value in metrics.items() if name.startswith("xlexport_tokens_total"))

    def _print(
        self, clients: int, seconds: float, rate: float, before: dict[str, float], after: dict[str, float]
    ) -> None:
        def grown(name: str, *labels: str) -> int:
            return round(
                sum(
                    value - before.get(key, 0)
                    for key, value in after.items()
                    if key.startswith(name) and all(label in key for label in labels)
                )
            )

        route = 'route="/v1/completions"'
        other = len(self._plan) - len(self._apart) - self._statuses_from(400)
        rows = [
            ("requests", f"{len(self._plan):,} by {clients} clients in {seconds:,.0f} s, {rate:,.0f} tokens/s"),
            ("largest difference", f"{max(self._apart, default=math.nan):.1e} nats"),
            ("answers not bit for bit equal", f"{sum(apart > 0 for apart in self._apart):,} of {len(self._apart):,}"),
            ("resident memory", ", ".join(f"{each:,.0f}" for each in self._megabytes) + " MB, after each thousand"),
            (
                "last to first",
                f"{self._megabytes[-1] / self._megabytes[0] - 1:+.1%}" if len(self._megabytes) > 1 else "-",
            ),
            ("statuses here", ", ".join(f"{status}: {count:,}" for status, count in sorted(self._statuses.items()))),
            ("cancelled and slow here", f"{other:,} and {SLOW_READERS}"),
        ]
        for status in sorted({*self._statuses, 499}):
            rows.append((f"/metrics {status}", f"{grown('xlexport_requests_total', route, str(status)):,}"))
        ends = {end: grown("xlexport_jobs_total", f'end="{end}"') for end in ("finished", "cancelled", "failed")}
        rows.append(("/metrics jobs", f"{grown('xlexport_jobs_submitted_total'):,} = {ends}"))
        rows.append(("/metrics all requests", f"{grown('xlexport_requests_total', route):,}"))
        sent = len(self._alone) + len(self._plan) + SLOW_READERS
        rows.append(("requests sent", f"{sent:,}"))
        for name, value in rows:
            click.echo(f"{name:32}{value}")

    def _statuses_from(self, least: int) -> int:
        return sum(count for status, count in self._statuses.items() if status >= least)


def throughput(server: ServerProcess, bundle: Path, text: str, length: int, number: int) -> None:
    """Print tokens a second of the server and of the library, for the same documents."""
    model = xlruntime.load(bundle, threads=1)
    click.echo(f"{'documents of':>14} {length} characters: clients, server, library, share")
    for clients in CLIENTS:
        documents = [text[at * length :][:length] for at in range(max(number, 2 * clients))]
        tokens = sum(len(model.tokenizer.encode(document)) - 1 for document in documents)
        served, alone = Clock(elsewhere=True), Clock()
        for _ in range(3):
            served.round(lambda: asyncio.run(_score_all(server, clients, iter(documents))), 1)  # noqa: B023
            alone.round(lambda: list(model.score(documents, batch_size=clients)), 1)  # noqa: B023
        shares = [library / service for library, service in zip(alone.runs, served.runs, strict=True)]
        rates = [tokens / clock.quantile(0.5) for clock in (served, alone)]
        share = f"{rates[0] / rates[1]:.2f}  ({min(shares):.2f} to {max(shares):.2f})"
        click.echo(f"{clients:14} {rates[0]:12,.0f} {rates[1]:12,.0f}     {compared(share, served, alone)}")


async def _score_all(server: ServerProcess, clients: int, waiting: Iterable[str]) -> None:
    async def score(client: httpx.AsyncClient) -> None:
        for document in waiting:
            await ask(client, {"prompt": document, "max_tokens": 0, "echo": True, "logprobs": 0})

    async with clients_of(server, clients) as client:
        await asyncio.gather(*(score(client) for _ in range(clients)))


async def first_token(server: ServerProcess, text: str, number: int) -> None:
    """Print the time to the first event of streams, alone and while a large prompt is read."""
    async with clients_of(server, 2) as client:
        await _print_first(client, text, number, "alone")
        large = {"prompt": (text * (LARGE // len(text) + 1))[:LARGE], "max_tokens": 0, "echo": True, "logprobs": 0}
        reading = asyncio.create_task(client.post("/v1/completions", json=large))
        while not server.metrics()["xlexport_requests_under_way"]:
            await asyncio.sleep(0.05)
        await _print_first(client, text, number, "while 1 MB is read")
        click.echo(f"{'':24}the large prompt was {'done before' if reading.done() else 'still being read'}")
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _print_first(client: httpx.AsyncClient, text: str, number: int, when: str) -> None:
    seconds = []
    for at in range(number):
        body = {"prompt": text[40 * at :][:40], "max_tokens": 2, "temperature": 0, "stream": True}
        started = time.perf_counter()
        async with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            seconds.append(time.perf_counter() - started)
            async for _ in lines:
                pass
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    click.echo(f"first token, {when:24} p50 {1000 * p50:,.1f} ms, p95 {1000 * p95:,.1f} ms of {number}")


@click.command(help=__doc__)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Parts to run.")
@click.option("--clients", default=64, show_default=True, help="Clients at once.")
@click.option("--requests", default=10_000, show_default=True, help="Requests whose answers are compared.")
@click.option("--others", default=1_000, show_default=True, help="Cancelled requests, and malformed ones.")
@click.option("--distinct", default=250, show_default=True, help="Different requests among those compared.")
@click.option("--longest", default=600, show_default=True, help="Characters of the longest prompt.")
@click.option("--samples", default=100, show_default=True, help="Streams, and documents of a throughput.")
def main(
    bundle: Path,
    document: Path,
    parts: tuple[str, ...],
    clients: int,
    requests: int,
    others: int,
    distinct: int,
    longest: int,
    samples: int,
) -> None:
    text = document.read_text("utf-8")
    if "answers" in parts:
        with ServerProcess.running(bundle, "--threads", "1") as server:
            asyncio.run(Load(server, text, requests, others, distinct, longest).run(clients))
    if "throughput" in parts:
        with ServerProcess.running(bundle, "--threads", "1", "--batch-size", str(max(CLIENTS))) as server:
            throughput(server, bundle, text, longest, samples)
    if "first-token" in parts:
        with ServerProcess.running(bundle, "--threads", "1") as server:
            asyncio.run(first_token(server, text, samples))


if __name__ == "__main__":
    main()
