"""The table covers all required values; otherwise the tests that use it would check too little."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.oracles.configurations import OPTIONS, REPRESENTATIVES, TABLE, Configuration
from xltraining.transformer_xl import TransformerXLConfig


def test_every_pair_of_values_of_every_two_options() -> None:
    assert len(TABLE) >= 24
    for left, right in itertools.combinations(OPTIONS, 2):
        found = {(row.values[left], row.values[right]) for row in TABLE}
        assert found == set(itertools.product(OPTIONS[left], OPTIONS[right])), (left, right)


def test_a_few_have_every_value() -> None:
    assert len(REPRESENTATIVES) == 6
    for name, values in OPTIONS.items():
        assert {row.values[name] for row in REPRESENTATIVES} == set(values), name


def ties(config: TransformerXLConfig) -> bool:
    """Return whether projections exist and some are shared."""
    width = config.d_embed or config.d_model
    return any(config.tie_projs) and (config.div_val > 1 or width != config.d_model)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda c: c.cutoffs and c.div_val == 4 and c.tie_projs == (False, True, True, True),
        lambda c: c.cutoffs and c.div_val > 1 and all(c.tie_projs) and c.tie_projs,
        lambda c: c.cutoffs and c.div_val == 1 and ties(c) and not all(c.tie_projs),
        lambda c: c.cutoffs and c.div_val == 1 and ties(c) and all(c.tie_projs),
        lambda c: c.cutoffs and c.div_val == 1 and c.d_embed and not ties(c),
        lambda c: c.cutoffs and c.div_val == 1 and c.d_embed is None and not c.tie_weight,
        lambda c: c.div_val > 1 and not c.proj_same_dim and c.d_embed is None and c.cutoffs,
        lambda c: c.div_val == 2 and not c.proj_same_dim and c.d_embed == 2 * c.d_model and c.cutoffs,
        lambda c: c.pre_lnorm and c.first_memory == "zeros" and c.same_length and c.window_extra,
        lambda c: c.pre_lnorm and c.first_memory == "zeros" and not c.same_length,
        lambda c: c.same_length and c.window_extra and c.first_memory == "empty",
        lambda c: c.same_length and not c.window_extra and c.mem_len == 3,
        lambda c: c.n_layer > 2 and c.mem_len > max(c.tgt_len, 16) and not c.untie_r,
    ],
)
def test_options_that_matter_only_together(wanted: Callable[[TransformerXLConfig], object]) -> None:
    assert any(wanted(row.model) for row in TABLE)


@pytest.mark.parametrize("row", [row for row in TABLE if row.model.cutoffs], ids=str)
def test_segments_hit_every_cluster_and_miss_every_cluster(row: Configuration) -> None:
    segments = row.segments(1)
    assert len(segments) >= 6
    for first, end in row.model.cluster_bounds:
        hits = [bool(((targets >= first) & (targets < end)).any()) for _, targets in segments]
        assert any(hits) and not all(hits)
    assert any(
        all(((targets >= first) & (targets < end)).any() for first, end in row.model.cluster_bounds)
        for _, targets in segments
    )
