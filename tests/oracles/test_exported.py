"""Exported graphs, run by the runtime with carried memory, against Hugging Face.

An export costs seconds, so only the configurations that have every value of every option are exported.
`test_eager_and_twin.py` compares the traced code with Hugging Face for all pairs of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import xlruntime
from tests.helpers.export_cache import cached_exports
from tests.oracles.comparison import Difference, Figures
from tests.oracles.configurations import REPRESENTATIVES, Configuration
from tests.oracles.huggingface import Oracle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xlruntime.memory import Memory
from xlruntime.model import Model
from xltraining.checkpoint import save_checkpoint

Exported = Callable[[Configuration], tuple[Oracle, Model]]

pytestmark = pytest.mark.full

exported_configurations = pytest.mark.parametrize(
    "configuration",
    REPRESENTATIVES,
    ids=str,
    scope="module",  # pytest then runs all tests of a configuration in turn, so a worker exports it once
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a function that makes an oracle and the open bundle of its weights, once for each configuration."""
    made: dict[int, tuple[Oracle, Model]] = {}

    def export(configuration: Configuration) -> tuple[Oracle, Model]:
        if configuration.number not in made:
            oracle = Oracle(configuration.model, configuration.number)
            folder = tmp_path_factory.mktemp("exported")
            save_checkpoint(folder / "checkpoint.pt", oracle.config, oracle.state_dict())
            options = ConversionOptions(tokenizer="none", threads=1, segments=2)
            with cached_exports():
                convert(load(folder / "checkpoint.pt"), folder / "bundle", options)
            made[configuration.number] = oracle, xlruntime.load(folder / "bundle", threads=1)
        return made[configuration.number]

    return export


def run_pure(model: Model, purpose: str, memory: Memory, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return a graph's outputs for a segment without changing the memory."""
    session = model.session(purpose)
    segment = {"tokens": tokens.numpy(), "targets": targets.numpy()}
    feeds: dict[str, npt.NDArray[Any]] = {**memory.feeds(session.graph, segment)}
    feeds |= {entry.input: memory.array(entry) for entry in memory.entries}
    feeds |= {name: value.numpy() for name, value in memory.constants.items()}
    return {name: torch.from_numpy(array) for name, array in session.run(feeds).items()}


@pytest.mark.parametrize("batch_size", [1, 3])
@exported_configurations
@torch.no_grad()
@pytest.mark.full(cases=1)
def test_graphs_against_huggingface_over_segments(
    configuration: Configuration, batch_size: int, exported: Exported, figures: Figures
) -> None:
    """Compare all three graphs at every segment; `score` updates the memory, in a ring without spare slots."""
    oracle, model = exported(configuration)
    memory = model.new_memory(model.bundle.settings, batch_size)
    difference = Difference()
    for segment in oracle.walk(configuration.segments(batch_size)):
        made = run_pure(model, "generate", memory, segment.tokens, segment.targets)
        made |= run_pure(model, "detail", memory, segment.tokens, segment.targets)
        difference.add_outputs(made, segment)
        scored = model.step("score", memory, segment.tokens.numpy(), segment.targets.numpy())
        difference.add_log_probs(torch.from_numpy(scored["log_prob"]), segment.target_log_probs)
        wanted = oracle.keys_and_values(segment.memory)
        assert [entry.input for entry in memory.entries] == list(wanted)
        for entry in memory.entries:
            for row in range(batch_size):
                difference.add_memory(torch.from_numpy(memory.by_age(entry, row)), wanted[entry.input][row])
    assert memory.offset > 2 * memory.capacity
    figures.check("exported graphs", batch_size, difference)


@exported_configurations
@pytest.mark.release
def test_documents_that_share_a_batch_against_huggingface_on_each_alone(
    configuration: Configuration, exported: Exported, figures: Figures
) -> None:
    """Walk five documents of different lengths on three rows, which restart while the other rows continue."""
    oracle, model = exported(configuration)
    S = model.bundle.settings.segment_len
    generator = torch.Generator().manual_seed(configuration.number)
    documents = [torch.randint(oracle.config.n_token, (n,), generator=generator) for n in (90, 17, 55, 2, 70)]
    found: dict[int, list[np.ndarray]] = {number: [] for number in range(len(documents))}
    for scores in model.score_tokens([ids.numpy() for ids in documents], batch_size=3):
        found[scores.number].append(scores.log_probs)
    difference = Difference()
    for number, ids in enumerate(documents):
        segments = zip(ids[None, :-1].split(S, dim=1), ids[None, 1:].split(S, dim=1), strict=True)
        wanted = torch.cat([segment.target_log_probs for segment in oracle.walk(segments)], dim=1)
        difference.add_log_probs(torch.from_numpy(np.concatenate(found[number])), wanted[0])
    figures.check("documents that share", 3, difference)
