"""The eager model and its step twin against Hugging Face, including memories, for every configuration of the table."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiers import thinned
from tests.helpers.tiny import RingDriver
from tests.oracles.comparison import Difference, Figures, eager_difference
from tests.oracles.configurations import REPRESENTATIVES, TABLE, Configuration
from tests.oracles.huggingface import Oracle
from xlexport.families.transformer_xl.step import TransformerXLStep
from xltraining.checkpoint import Checkpoint, build_model
from xltraining.transformer_xl import TransformerXL

every_configuration = pytest.mark.parametrize("configuration", thinned(TABLE, REPRESENTATIVES), ids=str)
batch_sizes = pytest.mark.parametrize("batch_size", thinned([1, 3], [3]))


def eager_model(oracle: Oracle) -> TransformerXL:
    return build_model(Checkpoint(oracle.config, oracle.state_dict()))


@every_configuration
@batch_sizes
def test_eager_against_huggingface_over_segments(
    configuration: Configuration, batch_size: int, figures: Figures
) -> None:
    oracle = Oracle(configuration.model, configuration.number)
    difference = eager_difference(oracle, eager_model(oracle), configuration.segments(batch_size))
    figures.check("eager", batch_size, difference)


@every_configuration
@batch_sizes
@torch.no_grad()
def test_step_twin_against_huggingface_over_segments(
    configuration: Configuration, batch_size: int, figures: Figures
) -> None:
    """Use a ring of the smallest size, so that every slot is written more than once."""
    oracle = Oracle(configuration.model, configuration.number)
    capacity = configuration.model.mem_len + max(configuration.lengths)
    driver = RingDriver(TransformerXLStep(eager_model(oracle)), batch_size, capacity)
    difference = Difference()
    for segment in oracle.walk(configuration.segments(batch_size)):
        difference.add_outputs(driver.run(segment.tokens, segment.targets), segment)
        wanted = oracle.keys_and_values(segment.memory)
        assert driver.rings.keys() == wanted.keys()
        for name, rows in wanted.items():
            for row in range(batch_size):
                difference.add_memory(driver.by_age(name, row), rows[row])
    assert driver.offset > 2 * capacity
    figures.check("step twin", batch_size, difference)
