"""Evaluation settings: declarations of a bundle, valid and invalid choices, and the streams they apply to."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.helpers.rules import ring_rules
from tests.runtime.conftest import Close, RandomIds
from xlruntime import Model, OptionError
from xlruntime.evaluation import UNBOUNDED_WINDOW, EvaluationRules, Ring
from xlruntime.stream import Stream

OURS = ring_rules()
WHOLE = EvaluationRules(segment_len=8, full_document=True)


def test_all_settings_out_of_range_are_listed(model: Model) -> None:
    def stream(**settings: Any) -> Any:
        return model.stream(**settings)

    def score(**settings: Any) -> Any:
        return model.score([], **settings)

    def tokens(**settings: Any) -> Any:
        return model.score_tokens([], **settings)

    def generate(**settings: Any) -> Any:
        return model.generate(b"prompt", max_tokens=1, **settings)

    for refused in (stream, score, tokens, generate):
        with pytest.raises(OptionError) as caught:
            refused(segment_len=0, mem_len=-3, clamp_len=0)
        assert str(caught.value) == (
            f"{model.folder}: evaluation settings: segment_len is 0, expected 1 to 1073741824; "
            "mem_len is -3, expected 1 to 1073741824 (rows of memory that a layer keeps); "
            "clamp_len is 0, expected 1 to 1073741824, or -1 for none (largest distinct distance, in tokens)."
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mem_len": 0}, "mem_len is 0, expected 1 to"),
        ({"mem_len": True}, "mem_len is True, expected a whole number"),
        ({"mem_len": 2**31}, "mem_len is 2147483648, expected 1 to 1073741824"),
        ({"clamp_len": -2}, "clamp_len is -2, expected 1 to 1073741824, or -1 for none"),
        ({"same_length": 1}, "same_length is 1, expected true or false"),
        ({"segment_len": -1}, "segment_len is -1"),
        ({"restart": True}, "restart is chosen, but documents may be of any length"),
        ({"n_hashes": 2}, r"n_hashes: not among the settings of this bundle \(segment_len, mem_len, clamp_len, same_l"),
    ],
)
def test_choice_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        OURS.choose(**settings)


def test_numbers_of_a_ring_depend_on_memory_and_segment() -> None:
    ring = Ring(rows=(2, 1, 3), slots=(2, 3, 4), window=(3, 0, -1))
    rules = dataclasses.replace(OURS, rings={"C": ring})
    chosen = rules.choose(segment_len=5, mem_len=10)
    assert (chosen.rows("C"), chosen.slots("C"), chosen.window("C")) == (28, 39, 29)
    assert (chosen.capacity(), chosen.max_segment(39), chosen.slots("C", 50), chosen.max_segment(50)) == (
        39,
        11,
        50,
        22,
    )


@pytest.mark.parametrize("longest", [1, 5, 8, 11, 12, 40])
def test_rings_for_short_documents_keep_all_of_them(longest: int) -> None:
    rings = {"near": Ring((1, 0, 0), (1, 1, 0), (1, 0, 1)), "far": Ring((3, 0, -2), (3, 1, -2), (3, 0, -1))}
    rules = dataclasses.replace(OURS, rings=rings)
    before, after = rules.choose(), rules.choose().for_documents(longest)
    assert after["mem_len"] == min(max(longest, (longest + 2 + 2) // 3), 12)
    assert all(after.rows(name) >= min(longest, before.rows(name)) for name in rings)
    assert all(after.window(name) >= min(longest, before.window(name)) for name in rings)


def test_rings_stay_where_queries_see_fresh_rows() -> None:
    chosen = dataclasses.replace(OURS, fresh_memory="zeros").choose()
    assert chosen.for_documents(1) is chosen


def test_none_keeps_the_default() -> None:
    own = {"segment_len": 8, "restart": False, "mem_len": 12, "clamp_len": -1, "same_length": True}
    assert OURS.choose().to_dict() == OURS.choose(mem_len=None).to_dict() == own
    assert OURS.choose(3, mem_len=30).to_dict() == own | {"segment_len": 3, "mem_len": 30}


def test_chosen_values_can_become_the_defaults() -> None:
    chosen = OURS.choose(3, mem_len=30, same_length=False)
    assert OURS.adopt(chosen).choose().to_dict() == chosen.to_dict()
    assert OURS.adopt(chosen).settings["mem_len"].minimum == 1


def test_window_is_the_most_keys_that_a_query_sees() -> None:
    assert OURS.choose().window("capacity") == 12
    assert ring_rules(window_extra=1).choose().window("capacity") == 13
    assert OURS.choose(same_length=False).window("capacity") == UNBOUNDED_WINDOW
    assert not OURS.choose().segmentation_matters
    assert OURS.choose(same_length=False).segmentation_matters


@pytest.mark.parametrize(
    ("rules", "part", "document"),
    [
        (OURS, None, None),
        (ring_rules(max_positions=100), 100, 101),
        (ring_rules(max_positions=3), 3, 4),
        (WHOLE, 8, 9),
        (dataclasses.replace(WHOLE, max_positions=100), 8, 9),
        (dataclasses.replace(WHOLE, max_positions=3), 3, 4),
        (dataclasses.replace(WHOLE, bidirectional=True), 8, 8),
    ],
)
def test_longest_part_and_document(rules: EvaluationRules, part: int | None, document: int | None) -> None:
    assert (rules.choose().longest_part, rules.choose().longest_document) == (part, document)


def test_no_segment_is_longer_than_a_document_can_be() -> None:
    short = ring_rules(max_positions=100)
    assert short.choose(segment_len=101).segment_len == 100
    assert short.choose(segment_len=100).segment_len == 100
    assert ring_rules(300, max_positions=100).choose().segment_len == 100
    assert OURS.choose(segment_len=300).segment_len == 300


def test_settings_of_one_stream_do_not_reach_another(model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(100)
    before = model.stream().feed(ids).log_probs
    choices: list[dict[str, Any]] = [{"mem_len": 3}, {"mem_len": 40}, {"clamp_len": 2}, {"same_length": False}]
    for settings in choices:
        other = model.stream(**settings).feed(ids).log_probs
        assert np.abs(other - before).max() > 0.01
    np.testing.assert_array_equal(model.stream().feed(ids).log_probs, before)


def test_window_of_one_more_equals_a_memory_of_one_more(model: Model, random_ids: RandomIds, close: Close) -> None:
    """Compare the rule of NVIDIA and TensorFlow at mem_len 11 with the authors' rule at mem_len 12."""
    ids = random_ids(90)
    rules = model.bundle.evaluation
    rings = {"capacity": dataclasses.replace(rules.rings["capacity"], window=(1, 0, 1))}
    evaluation = dataclasses.replace(rules, rings=rings).choose(mem_len=11)
    found, expected = Stream(model, evaluation).feed(ids), model.stream(mem_len=12).feed(ids)
    close(found.log_probs, expected.log_probs)
    np.testing.assert_array_equal(found.context, expected.context)


def test_purpose_that_the_bundle_lacks_is_refused(model: Model) -> None:
    with pytest.raises(OptionError, match="no graph for 'train'; this bundle has detail, generate, positions, score"):
        model.session("train")


def test_empty_batch_is_refused(model: Model) -> None:
    with pytest.raises(OptionError, match="batch size is 0"):
        model.new_memory(model.bundle.settings, batch_size=0)
