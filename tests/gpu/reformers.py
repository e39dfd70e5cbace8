"""First figures of Reformers of all rules: scores on the device against a CPU's, and the time of a token.

The bundles of the tests come first, because they need no conversion. Each figure is printed as soon as it is known.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.gpu.bundles import REFORMERS, bundle_of, make_reformers
from tests.gpu.parts import PartError, Record, Settings
from tests.helpers.ids import random_ids
from tests.helpers.paths import golden_bundle
from xlexport.quantization.gate import compare, log_probs
from xlexport.sample import sample_text
from xlruntime import load

GOLDEN_TOKENS = 100
TOKENS, TINY_TOKENS = 4096, 200
MOST_BITS = 1e-3  # per token: rounding may move a key on the edge of two buckets, which changes a few scores


def score_reformers(settings: Settings, record: Record) -> None:
    """Score with a small and with a trained Reformer of each rule, and record and print differences and times.

    Raises:
        PartError: bits per token differ from the CPU's by more than rounding.
    """
    figures: dict[str, Any] = {}
    too_far = []
    for name, folder in _bundles(settings):
        here, there = load(folder), load(folder, device=settings.device)
        if here.bundle.tokenizer.kind == "none":
            ids = random_ids(GOLDEN_TOKENS, vocab_size=here.bundle.vocab_size)
        else:
            ids = here.tokenizer.encode(sample_text().encode())[: TINY_TOKENS if settings.tiny else TOKENS]
        log_probs(there, ids)  # the first pass allocates
        started = time.perf_counter()
        scores = log_probs(there, ids)
        milliseconds = 1e3 * (time.perf_counter() - started) / len(ids)
        difference = compare(log_probs(here, ids), scores)
        figures[name] = {**asdict(difference), "ms_per_token": milliseconds}
        record({"reformers": figures})
        bits = difference.delta_bits_per_token
        print(f"  {name}: {milliseconds:.3f} ms a token, {bits:+.1e} bits to a CPU", file=sys.stderr, flush=True)
        if not difference.within(MOST_BITS):
            too_far.append(f"{name}: {bits:+.5f} bits per token, {MOST_BITS:g} allowed")
    if too_far:
        raise PartError("; ".join(too_far))


def _bundles(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield names and folders of bundles; convert the trained ones when the small ones are done."""
    for shape in REFORMERS:
        yield f"golden {shape.rule}", golden_bundle(f"reformer_{shape.rule}")
    make_reformers(settings)
    for shape in REFORMERS:
        yield shape.name, bundle_of(settings, shape.name)
