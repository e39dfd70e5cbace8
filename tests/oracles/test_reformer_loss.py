"""`score` of converted bundles against the loss that Hugging Face's own model computes for the same document.

The model reads all T tokens, and the loss drops the prediction after the last one. Under rule `chunk` that token moves
the borders of chunks, so a bundle that reads only T - 1 tokens has another score.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import xlruntime
from tests.oracles.reformer_configurations import HUGGING_FACE, ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from tests.oracles.test_reformer import document
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlruntime.model import Model

# Nats a token: both sides compute in float32, with sums in another order. Differences found are below 1e-6.
TOLERANCE = 1e-5
LENGTHS = {
    "one round": (2, 17, 64, 65, 500, 2048),
    "two rounds": (9, 17, 100, 101, 512, 777),
    "three rounds, two factors": (16, 33, 95, 511, 512, 1000),
    "four rounds, three factors": (32, 33, 64, 65, 700, 2048),
    "longer local chunks": (17, 64, 65, 129, 200, 1025),
    "shorter local chunks": (9, 57, 65, 130, 333, 2047),
    "chunks of no common length": (17, 25, 49, 97, 300, 1920),
    "plain positions, gelu": (31, 65, 66, 640, 1023, 1024),
}
CASES = [case for case in HUGGING_FACE if str(case) in LENGTHS]


def test_eight_configurations_of_six_lengths() -> None:
    assert [len(LENGTHS[str(case)]) for case in CASES] == [6] * 8


def converted(oracle: HuggingFaceReformer, folder: Path) -> Model:
    source = load(oracle.save(folder / "checkpoint"))
    convert(source, folder / "bundle", ConversionOptions(tokenizer="none", threads=1, verify_segments=2))
    return xlruntime.load(folder / "bundle", threads=1)


@torch.no_grad()
def own_loss(oracle: HuggingFaceReformer, ids: np.ndarray) -> float:
    """Return the loss as a user of transformers gets it: the labels are the input."""
    tokens = torch.from_numpy(ids)[None]
    with torch.random.fork_rng(devices=[]):
        return float(oracle.model(tokens, labels=tokens).loss)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_score_equals_the_model_s_own_loss(case: ReformerCase, tmp_path: Path) -> None:
    oracle = HuggingFaceReformer(case)
    model = converted(oracle, tmp_path)
    assert model.bundle.evaluation.bidirectional
    found = {}
    for length in LENGTHS[str(case)]:
        ids = document(oracle, 1, length)[0].numpy()
        (score,) = model.score([ids])
        assert score.scored_tokens == length - 1
        found[length] = score.nats / score.scored_tokens - own_loss(oracle, ids)
    assert max(map(abs, found.values())) <= TOLERANCE, found
