"""Measure `xlexport serve`: throughput beside the library's, and time to the first token beside a large prompt.

    python -m benchmarks.serving BUNDLE DOCUMENT [--shared-steps]

- score: tokens a second of prompts at 1, 8 and 64 clients, and of the library at these batch sizes.
- generate: the same of random streams without a seed, and the time from a token to the next as clients see it.
- waits: what a client waits for the first and the eighth token of a stream, and for a score of 5 bytes, alone and while
  another one is greedy.

All prompts are pieces of the document. `tests/serve` compares answers under load.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import numpy.typing as npt

import xlruntime
from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, compared, take_turns

__all__ = ["main"]

ROUTE = "/v1/completions"
CLIENTS = (1, 8, 64)
PROMPT = 40  # tokens before those that are drawn
SCORING = {"max_tokens": 0, "echo": True, "logprobs": 0}
UNDER_WAY = "xlexport_requests_under_way "
LARGE = {"prompt": "a, " * 333_333, **SCORING}  # 1 MB
LOADS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a prompt of 1 MB": [LARGE],
    "a prompt of 1 MB and a stream": [LARGE, {"prompt": "a", "max_tokens": 60_000}],
    "7 prompts of 100 kB": [{"prompt": ["a, " * 33_333] * 7, **SCORING}],
    "7 requests of 100 kB": [{"prompt": "a, " * 33_333, **SCORING}] * 7,
    "100 prompts x 16 x 900 tokens": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900}],
    "the same with a seed": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900, "seed": 1}],
    "2 prompts x 16 x 60,000 tokens": [{"prompt": ["a", "a"], "n": 16, "max_tokens": 60_000}],
    "1,024 prompts of 1,100 bytes": [{"prompt": ["a, " * 366] * 1_024, "max_tokens": 0}],
}


@contextmanager
def running(bundle: Path, *options: str) -> Iterator[str]:
    """Run a server of one thread while the block runs, and end it as Ctrl-C does; yield its address."""
    command = [sys.executable, "-m", "xlexport", "serve", str(bundle), "--port", "0", "--json", "--quiet"]
    process = subprocess.Popen([*command, "--threads", "1", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"].removesuffix("/v1")
    finally:
        process.send_signal(2)
        process.wait(120)


@asynccontextmanager
async def client_of(server: str, connections: int) -> AsyncIterator[httpx.AsyncClient]:
    """Lend a client that keeps up to `connections` connections open."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(base_url=server, timeout=3_600, limits=limits) as client:
        yield client


def compare(name: str, tokens: int, serve: Callable[[], object], run: Callable[[], object]) -> None:
    """Let server and library take turns; print their tokens a second, and the server's share of the library's."""
    served, alone = Clock(elsewhere=True), Clock()
    take_turns([partial(served.round, serve, 1), partial(alone.round, run, 1)], 3)
    shares = [library / service for library, service in zip(alone.runs, served.runs, strict=True)]
    rates = [tokens / clock.quantile(0.5) for clock in (served, alone)]
    share = f"{rates[0] / rates[1]:.2f}  ({min(shares):.2f} to {max(shares):.2f})"
    click.echo(f"{name:14} {rates[0]:12,.0f} {rates[1]:12,.0f}     {compared(share, served, alone)}")


def throughput(server: str, model: xlruntime.Model, text: str, length: int, number: int) -> None:
    """Compare scores of the same documents."""
    click.echo(f"score documents of {length} characters: clients, server, library, share")
    for clients in CLIENTS:
        documents = [text[index * length :][:length] for index in range(max(number, 2 * clients))]
        tokens = sum(len(model.tokenizer.encode(document)) - 1 for document in documents)
        compare(
            f"{clients:14}",
            tokens,
            lambda: asyncio.run(_score_all(server, clients, iter(documents))),  # noqa: B023  # called in this turn
            lambda: list(model.score(documents, batch_size=clients)),  # noqa: B023
        )


def generation(server: str, model: xlruntime.Model, text: str, tokens: int) -> None:
    """Compare continuations of different prompts; print the times between tokens. The library takes the likeliest."""
    click.echo(f"draw {tokens} tokens after {PROMPT}: clients, server, library, share")
    for clients in CLIENTS:
        prompts = model.tokenizer.encode(text)[: clients * PROMPT].reshape(clients, PROMPT)
        gaps = list[float]()

        def draw(prompts: npt.NDArray[np.int64] = prompts) -> None:
            memory, new = model.new_memory(model.evaluation(), len(prompts)), prompts[:, -1:]
            model.step("score", memory, prompts[:, :-1], prompts[:, 1:])
            for _ in range(tokens):
                new = model.step("generate", memory, new, new)["logits"].argmax(axis=1)[:, None]

        compare(
            f"{clients:14}",
            clients * tokens,
            lambda: gaps.extend(asyncio.run(_draw_all(server, prompts, tokens))),  # noqa: B023
            draw,
        )
        _print_times(f"from a token to the next, {clients} clients", gaps)


async def _draw_all(server: str, prompts: npt.NDArray[np.int64], tokens: int) -> list[float]:
    async with client_of(server, len(prompts)) as client:
        streams = await asyncio.gather(*(_times(client, prompt.tolist(), tokens, 1) for prompt in prompts))
    return [gap for times in streams for gap in np.diff(times)]


async def _score_all(server: str, clients: int, waiting: Iterable[str]) -> None:
    async def score(client: httpx.AsyncClient) -> None:
        for document in waiting:
            await _score(client, document)

    async with client_of(server, clients) as client:
        await asyncio.gather(*(score(client) for _ in range(clients)))


async def _score(client: httpx.AsyncClient, document: str) -> float:
    """Return the seconds until a document is scored."""
    began = time.perf_counter()
    (await client.post(ROUTE, json={"prompt": document, **SCORING})).raise_for_status()
    return time.perf_counter() - began


async def waits(server: str, text: str, number: int) -> None:
    """Print how long a client waits while each load of another one runs."""
    async with client_of(server, 7) as greedy, client_of(server, 1) as client:
        for load, bodies in LOADS.items():
            asked = asyncio.gather(*(greedy.post(ROUTE, json=body) for body in bodies))
            await _until(client, len(bodies))
            await asyncio.sleep(1)
            streams = [await _times(client, text[40 * index :][:40], 8) for index in range(number)]
            scores = [await _score(client, "Hello") for _ in range(number)]
            _print_times(f"first token beside {load}", [times[0] for times in streams])
            _print_times(f"8 tokens beside {load}", [times[-1] for times in streams])
            _print_times(f"5 bytes beside {load}{', which ended' if bodies and asked.done() else ''}", scores)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked
            await _until(client, 0)


async def _until(client: httpx.AsyncClient, under_way: int) -> None:
    while f"{UNDER_WAY}{under_way}.0" not in (await client.get("/metrics")).text:
        await asyncio.sleep(0.05)


async def _times(client: httpx.AsyncClient, prompt: str | list[int], tokens: int, heat: float = 0) -> list[float]:
    """Return the seconds from a request to each event of its stream that has text."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": heat, "stream": True}
    started = time.perf_counter()
    async with client.stream("POST", ROUTE, json=body) as stream:
        events = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: {"))
        return [time.perf_counter() - started async for event in events if event["choices"][0]["text"]]


def _print_times(name: str, seconds: Sequence[float]) -> None:
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    click.echo(f"{name:49} p50 {1000 * p50:,.1f} ms, p95 {1000 * p95:,.1f} ms of {len(seconds):,}")


@click.command(help=__doc__)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--longest", default=600, show_default=True, help="Characters of a document of the throughput.")
@click.option("--samples", default=100, show_default=True, help="Streams, and documents of a throughput.")
@click.option("--shared-steps", is_flag=True, help="Give the server this setting.")
def main(bundle: Path, document: Path, longest: int, samples: int, shared_steps: bool) -> None:
    text, model = document.read_text("utf-8"), xlruntime.load(bundle, threads=1)
    with running(bundle, "--batch-size", str(max(CLIENTS)), *["--set=shared_steps=true"] * shared_steps) as server:
        throughput(server, model, text, longest, samples)
        generation(server, model, text, samples)
    with running(bundle) as server:
        asyncio.run(waits(server, text, samples))


if __name__ == "__main__":
    main()
