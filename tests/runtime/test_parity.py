"""The graphs against the eager model, whose log-probabilities are stored with each golden bundle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open

from tests.helpers.paths import GOLDEN, WHOLE
from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import Model


@dataclass(frozen=True)
class Case:
    """A document, the settings of its walk, and the eager model's log-probabilities."""

    name: str
    settings: dict[str, Any]
    ids: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]

    def __str__(self) -> str:
        chosen = [f"{key}={value}" for key, value in self.settings.items()]
        return "-".join([self.name, f"{len(self.ids)}_tokens", *chosen])


def read_cases() -> list[Case]:
    cases = []
    for path in sorted(GOLDEN.glob("*/expected.safetensors")):
        if not (path.parent / "bundle").is_dir():
            continue  # a translator
        with safe_open(path, "numpy") as file:
            for number, (document, settings) in enumerate(json.loads(file.metadata()["cases"])):
                ids, log_probs = (file.get_tensor(name) for name in (f"ids.{document}", f"log_probs.{number}"))
                cases.append(Case(path.parent.name, settings, ids, log_probs))
    return cases


CASES = read_cases()
STREAMS = [case for case in CASES if case.name not in WHOLE]


@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_stream_against_eager_over_segments(case: Case, golden: Golden, close: Close) -> None:
    stream = golden(case.name).stream(**case.settings)
    scores = stream.feed(case.ids)
    close(scores.log_probs, case.log_probs)
    np.testing.assert_array_equal(scores.tokens, case.ids[1:])
    if len(case.ids) > 100:
        assert stream.memory.offset > 5 * stream.memory.capacity  # the ring wrapped several times


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scorer_against_eager_over_segments(case: Case, golden: Golden, close: Close) -> None:
    other = np.zeros(90, np.int64)  # a neighbour in the batch
    total, _ = golden(case.name).score([case.ids, other], batch_size=2, **case.settings)
    close(total.nats / len(case.log_probs), -case.log_probs.mean(dtype=np.float64))
    assert total.scored_tokens == len(case.log_probs)


def test_graphs_of_all_purposes_agree(variant: Model, random_ids: RandomIds, close: Close) -> None:
    """Start `score`, `detail` and `generate` from one filled and wrapped memory, and compare them."""
    vocab_size = variant.bundle.vocab_size
    ids = random_ids(90, vocab_size=vocab_size)
    stream = variant.stream()
    stream.feed(ids[:80])
    memory, S = stream.memory, 8
    tokens, targets = ids[None, 79 : 79 + S], ids[None, 80 : 80 + S]
    outputs = {
        purpose: variant.step(purpose, memory.take([0]), tokens, targets) for purpose in ("score", "detail", "generate")
    }
    log_prob, detail = outputs["score"]["log_prob"], outputs["detail"]
    logits = outputs["generate"]["logits"].astype(np.float64)
    last = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    close(detail["log_prob"], log_prob)
    close(last[0, targets[0, -1]], log_prob[0, -1])
    assert detail["rank"][0, -1] == 1 + (last[0] > last[0, targets[0, -1]]).sum()
    close(detail["entropy"][0, -1], -(np.exp(last) * last).sum())
    best = np.argsort(-last[0], kind="stable")[: detail["top_ids"].shape[2]]
    np.testing.assert_array_equal(detail["top_ids"][0, -1], best)
    close(detail["top_log_probs"][0, -1], last[0, best])
