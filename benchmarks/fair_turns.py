"""Measure what one client of `xlexport serve` waits while another one asks for as much as it may.

    python -m benchmarks.fair_turns BUNDLE [--keys]

For each load: time of 8 tokens, as a share of their time beside one request for a long prompt and one for a stream, and
time to score 5 bytes. The two clients have a connection each or, with `--keys`, a key.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np

from benchmarks.serving import ROUTE, SCORING, UNDER_WAY, running
from benchmarks.sides import PATH

__all__ = ["main"]

KEYS = ("key-of-the-first-client", "key-of-the-second-client")
TEXT = "The old man walked slowly down to the river. "
EIGHT = {"prompt": "Hello", "max_tokens": 8}
FIVE = {"prompt": "Hello", **SCORING}
LONG = {"prompt": TEXT * 20_000, **SCORING}
STREAM = {"prompt": "a", "max_tokens": 60_000}
USUAL = "a long prompt and a stream"
LOADS: dict[str, list[dict[str, Any]]] = {
    "idle": [],
    USUAL: [LONG, STREAM],
    "7 prompts of 100 kB": [{"prompt": [TEXT * 2_222] * 7, **SCORING}],
    "7 requests of 100 kB": [{"prompt": TEXT * 2_222, **SCORING}] * 7,
    "100 prompts x 16 x 900 tokens": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900}],
    "the same at temperature 0": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900, "temperature": 0}],
    "2 prompts x 16 x 60,000 tokens": [{"prompt": ["a", "a"], "n": 16, "max_tokens": 60_000}],
    "1,024 prompts of 1,100 bytes": [{"prompt": [TEXT * 24] * 1_024, "max_tokens": 0}],
}


async def wait_beside(server: str, bodies: list[dict[str, Any]], keys: bool, samples: int) -> tuple[float, float]:
    """Return half's seconds for 8 tokens, and the longest for a score, of one client while another sends bodies."""
    headers = [{"authorization": f"Bearer {key}"} if keys else {} for key in KEYS]
    many = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=server, timeout=3_600, headers=headers[0], limits=many) as greedy,
        httpx.AsyncClient(base_url=server, timeout=3_600, headers=headers[1]) as other,
    ):
        loads = [asyncio.create_task(greedy.post(ROUTE, json=body)) for body in bodies]
        while f"{UNDER_WAY}{len(bodies)}.0" not in (await other.get("/metrics")).text:
            await asyncio.sleep(0.05)
        await asyncio.sleep(len(bodies) > 0)
        eight, five = [await _seconds(other, body, samples) for body in (EIGHT, FIVE)]
        for load in loads:
            click.echo("the load ended early", err=True) if load.done() else load.cancel()
            with suppress(asyncio.CancelledError):
                await load
        while f"{UNDER_WAY}0.0" not in (await other.get("/metrics")).text:
            await asyncio.sleep(0.05)
    return float(np.median(eight)), max(five)


async def _seconds(client: httpx.AsyncClient, body: dict[str, Any], samples: int) -> list[float]:
    seconds = []
    for _ in range(samples):
        began = time.perf_counter()
        (await client.post(ROUTE, json=body)).raise_for_status()
        seconds.append(time.perf_counter() - began)
    return seconds


@click.command(help=__doc__)
@click.argument("bundle", type=PATH)
@click.option("--keys", is_flag=True, help="Give each client a key.")
@click.option("--samples", default=15, show_default=True, help="Requests of the client that waits, for each load.")
def main(bundle: Path, keys: bool, samples: int) -> None:
    with running(bundle, *(f"--api-key={key}" for key in KEYS if keys)) as server:
        found = {name: asyncio.run(wait_beside(server, bodies, keys, samples)) for name, bodies in LOADS.items()}
    for name, (eight, five) in found.items():
        click.echo(f"{name:32} 8 tokens {1000 * eight:8,.1f} ms, {eight / found[USUAL][0]:5.2f}; 5 bytes {five:6.3f} s")


if __name__ == "__main__":
    main()
