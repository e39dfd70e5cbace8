"""Published protocols on corpora, compared with the original code's walk on Hugging Face's model.

The original code holds a corpus time-major, one stream per column, and weights the mean of each segment by its length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import xlruntime
from tests.helpers.export_cache import cached_exports
from tests.oracles.huggingface import Oracle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xlruntime import Document, Model
from xlruntime.protocols import arrange, read_corpus, walk
from xltraining.checkpoint import save_checkpoint
from xltraining.transformer_xl import TransformerXLConfig

pytestmark = pytest.mark.full

SEGMENT, MEM_LEN = 8, 20  # a warm-up of three segments
CONFIG = TransformerXLConfig(
    n_token=50,
    n_layer=2,
    n_head=2,
    d_model=24,
    d_head=9,
    d_inner=30,
    cutoffs=(9, 30, 42),
    div_val=2,
    tgt_len=SEGMENT,
    mem_len=MEM_LEN,
    clamp_len=15,
    same_length=True,
)
# The differences between the three code bases in evaluation.
RULES: dict[str, dict[str, Any]] = {
    "authors": {"first_memory": "empty", "window_extra": 0},
    "nvidia": {"first_memory": "empty", "window_extra": 1},
    "tensorflow": {"first_memory": "zeros", "window_extra": 1},
}
# float32 on both sides: means over several hundred tokens differ much less than single tokens.
TOLERANCE = 1e-5  # nats


def original_walk(oracle: Oracle, ids: Tensor, batch_size: int, warmup: int) -> float:
    """Compute the mean nats of a token as in eval.py and train_gpu.py."""
    steps = len(ids) // batch_size
    columns = ids[: steps * batch_size].view(batch_size, steps).t()  # (steps, B)
    if warmup:
        columns = torch.cat([columns.roll((warmup, 1), (0, 1))[:warmup], columns])
    memory = oracle.first_memory(batch_size)
    total, length = 0.0, 0
    for start in range(0, len(columns) - 1, SEGMENT):
        part = columns[start : start + SEGMENT + 1]
        output = oracle.step(part[:-1].t(), memory)
        memory = output.mems
        loss = -output.prediction_scores.gather(2, part[1:].t().unsqueeze(2)).mean()
        if start >= warmup:
            total += float(loss) * (len(part) - 1)
            length += len(part) - 1
    return total / length


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Export the oracle's weights under their training settings."""
    folder = tmp_path_factory.mktemp("protocols")
    trained = replace(CONFIG, tgt_len=4, mem_len=4, clamp_len=-1, same_length=False)
    save_checkpoint(folder / "checkpoint.pt", trained, Oracle(CONFIG, seed=1).state_dict())
    options = ConversionOptions(tokenizer="none", threads=1, segments=2)
    with cached_exports():
        convert(load(folder / "checkpoint.pt"), folder / "bundle", options)
    return xlruntime.load(folder / "bundle", threads=1)


@pytest.mark.parametrize(
    ("rules", "protocol", "batch_size", "warmup"),
    [("authors", "kimiyoung", 10, 0), ("nvidia", "nvidia", 16, 24), ("tensorflow", "kimiyoung", 16, 0)],
)
@torch.no_grad()
@pytest.mark.release
def test_protocol_against_the_original_walk(
    rules: str, protocol: str, batch_size: int, warmup: int, model: Model
) -> None:
    rules_of = model.bundle.evaluation
    rings = {"capacity": replace(rules_of.rings["capacity"], window=(1, 0, RULES[rules]["window_extra"]))}
    changed = replace(rules_of, rings=rings, fresh_memory=RULES[rules]["first_memory"])
    evaluation = changed.choose(SEGMENT, mem_len=MEM_LEN, clamp_len=15, same_length=True)
    oracle = Oracle(replace(CONFIG, **RULES[rules]), seed=1)
    ids = torch.randint(CONFIG.n_token, (647,), generator=torch.Generator().manual_seed(2))
    streams = arrange(read_corpus(model, Document("it", ids.numpy())), evaluation, protocol, batch_size)
    found = walk(model, streams)
    assert found.nats_per_token == pytest.approx(original_walk(oracle, ids, batch_size, warmup), abs=TOLERANCE)
    assert (found.scored_tokens, found.warmup_segments * SEGMENT) == (
        647 // batch_size * batch_size - batch_size,
        warmup,
    )
