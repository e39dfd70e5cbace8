"""Bundles of rule `chunk`, converted from the code bases' checkpoints, against the code bases.

Graphs are compared number by number, and `score` with the loss that Hugging Face's own model computes for the same
document. That model reads all T tokens, and the loss drops the prediction after the last one. The last token moves the
borders of chunks, so a bundle that reads only T - 1 tokens has another score.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import xlruntime
from tests.oracles.comparison import Difference, Figures
from tests.oracles.huggingface import OracleSegment
from tests.oracles.reformer_configurations import HUGGING_FACE, REFORMER_PYTORCH, ReformerCase
from tests.oracles.reformers import Buckets, HuggingFaceReformer, PyTorchReformer, ReformerOracle
from tests.oracles.test_reformer import FLIP_MARGIN, document
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xlruntime.model import Model
from xltraining.reformer import LSHTrace, Reformer

pytestmark = pytest.mark.full  # an export costs seconds

Kind = Callable[[ReformerCase], ReformerOracle]

QUICK = HUGGING_FACE[0]
CASES = [
    pytest.param(
        kind,
        case,
        id=f"{name}-{case}",
        marks=[pytest.mark.release] * (case != QUICK),
    )
    for name, kind, cases in (
        ("huggingface", HuggingFaceReformer, HUGGING_FACE),
        ("reformer_pytorch", PyTorchReformer, REFORMER_PYTORCH),
    )
    for case in cases
]
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


def graphs(model: Model, ids: Tensor) -> dict[str, Tensor]:
    """Return the outputs of all three graphs for documents (B, T + 1): tokens without the last, and their targets."""
    feeds = {"tokens": ids[:, :-1].numpy(), "targets": ids[:, 1:].numpy()}
    made: dict[str, np.ndarray] = {}
    for purpose in ("detail", "generate", "score"):
        made |= model.session(purpose).run({name: feeds[name] for name in model.bundle.graphs[purpose].inputs})
    return {name: torch.from_numpy(array) for name, array in made.items()}


@torch.no_grad()
def check_flips(eager: Reformer, tokens: Tensor, buckets: Buckets) -> None:
    """Check that if eager model and graph would choose different buckets, both are almost equally good."""
    trace: list[LSHTrace] = []
    eager(tokens, buckets=buckets, trace=trace)
    for one in trace:
        assert (one.margin[one.own != one.buckets] < FLIP_MARGIN).all()


@torch.no_grad()
def check_loss(oracle: HuggingFaceReformer, model: Model, length: int) -> None:
    """Compare a score with the loss as a user of transformers gets it: the labels are the input."""
    assert model.bundle.evaluation.bidirectional
    ids = document(oracle, 1, length)[0].numpy()
    (score,) = model.score([ids])
    assert score.scored_tokens == length - 1
    tokens = torch.from_numpy(ids)[None]
    with torch.random.fork_rng(devices=[]):
        loss = float(oracle.model(tokens, labels=tokens).loss)
    assert abs(score.nats / score.scored_tokens - loss) <= TOLERANCE, length


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_graphs_and_scores_against_the_code_base(
    kind: Kind, case: ReformerCase, tmp_path: Path, figures: Figures
) -> None:
    """Compare every number of every graph, under the graph's own buckets, and scores of whole documents."""
    oracle = kind(case)
    source = load(oracle.save(tmp_path / "checkpoint"), config=oracle.config)
    convert(source, tmp_path / "bundle", ConversionOptions(tokenizer="none", threads=1, segments=2))
    model, eager = xlruntime.load(tmp_path / "bundle", threads=1), source.build_model()
    difference = Difference()
    for length in case.lengths:
        ids = document(oracle, case.batch_size, length + 1)
        made = graphs(model, ids)
        found = [made.get(f"bucket_{layer}") for layer in range(eager.config.n_layer)]
        buckets = [None if ids is None else ids.long() for ids in found]
        tokens, targets = ids[:, :-1], ids[:, 1:]
        check_flips(eager, tokens, buckets)
        logits, _ = oracle.run(tokens, buckets)
        difference.add_outputs(made, OracleSegment(tokens, targets, logits.log_softmax(dim=2), []))
    figures.check(f"graphs of {type(oracle).__name__}", case.batch_size, difference)
    if isinstance(oracle, HuggingFaceReformer):
        for length in LENGTHS.get(case.name, ()):
            check_loss(oracle, model, length)
