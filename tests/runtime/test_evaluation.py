"""How far a token sees: what may be chosen, what is refused, and that choices stay with their stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xlruntime import Model, OptionError, load
from xlruntime.spec import UNBOUNDED_WINDOW, Evaluation
from xlruntime.stream import Stream

OURS = Evaluation(segment_len=8, mem_len=12, clamp_len=-1, same_length=True)


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
            "evaluation settings: segment_len is 0, at least 1 is needed; mem_len is -3, at least 1 is needed; "
            "clamp_len is 0, expected -1 (not clamped) or at least 1."
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mem_len": 0}, "mem_len is 0"),
        ({"clamp_len": -2}, "clamp_len is -2"),
        ({"segment_len": -1}, "segment_len is -1"),
        ({"first_memory": "ones"}, "first_memory is 'ones', expected 'empty' or 'zeros'"),
        ({"window_extra": 2}, "window_extra is 2, expected 0 or 1"),
        ({"n_hashes": 0}, "n_hashes is 0, at least 1 is needed"),
        ({"max_positions": 0}, "max_positions is 0, at least 1 is needed"),
        ({"restart": True}, "restart is chosen, but documents may be of any length"),
        ({"whole": True}, "mem_len is 12, but a document is read in one step"),
    ],
)
def test_setting_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(OURS, **settings)


def test_options_that_are_none_are_kept() -> None:
    assert OURS.with_options() == OURS
    assert OURS.with_options(mem_len=30) == dataclasses.replace(OURS, mem_len=30)
    assert OURS.with_options(3, 4, 5, False) == Evaluation(3, 4, 5, False)


def test_window_is_what_a_query_sees_at_most() -> None:
    assert OURS.window == 12
    assert dataclasses.replace(OURS, window_extra=1).window == 13
    assert OURS.with_options(same_length=False).window == UNBOUNDED_WINDOW
    assert not OURS.segmentation_matters
    assert OURS.with_options(same_length=False).segmentation_matters


def test_longest_part_of_a_document() -> None:
    def longest(**fields: Any) -> int | None:
        return dataclasses.replace(OURS, **fields).longest_part

    assert longest() is None
    assert longest(max_positions=100) == 100
    assert longest(max_positions=3) == 3
    assert longest(whole=True, mem_len=0) == OURS.segment_len
    assert longest(whole=True, mem_len=0, max_positions=100) == OURS.segment_len
    assert longest(whole=True, mem_len=0, max_positions=3) == 3


def test_no_segment_is_longer_than_a_document_can_be() -> None:
    short = dataclasses.replace(OURS, max_positions=100)
    assert short.with_options(segment_len=101).segment_len == 100
    assert short.with_options(segment_len=100).segment_len == 100
    assert dataclasses.replace(short, segment_len=300).with_options().segment_len == 100
    assert OURS.with_options(segment_len=300).segment_len == 300


def test_whole_document_is_seen_whole() -> None:
    whole = dataclasses.replace(OURS, whole=True, mem_len=0)
    assert whole.window == UNBOUNDED_WINDOW
    assert not whole.segmentation_matters
    assert whole.max_segment(whole.capacity()) == OURS.segment_len


def test_capacity_and_longest_segment_belong_together() -> None:
    assert OURS.capacity() == 20
    assert OURS.max_segment(OURS.capacity()) == OURS.segment_len
    assert OURS.max_segment(OURS.capacity(100)) == 100


def test_bundle_settings_are_the_default(variant: Model) -> None:
    config, evaluation = variant.bundle.config, variant.stream().evaluation
    assert evaluation == variant.bundle.evaluation
    assert (evaluation.segment_len, evaluation.mem_len) == (config["tgt_len"], config["mem_len"])
    assert (evaluation.same_length, evaluation.first_memory) == (config["same_length"], config["first_memory"])


def test_settings_of_one_stream_do_not_reach_another(model: Model, random_ids: Callable[..., Any]) -> None:
    ids = random_ids(100)
    before = model.stream().feed(ids).log_probs
    for settings in ({"mem_len": 3}, {"mem_len": 40}, {"clamp_len": 2}, {"same_length": False}):
        other = model.stream(**settings).feed(ids).log_probs
        assert np.abs(other - before).max() > 0.01
    np.testing.assert_array_equal(model.stream().feed(ids).log_probs, before)


def test_window_of_one_more_equals_a_memory_of_one_more(
    model: Model, random_ids: Callable[..., Any], close: Callable[..., None]
) -> None:
    """The rule of NVIDIA and TensorFlow at mem_len 11 sees what the authors' rule sees at mem_len 12."""
    ids = random_ids(90)
    evaluation = dataclasses.replace(model.bundle.evaluation, mem_len=11, window_extra=1)
    found, expected = Stream(model, evaluation).feed(ids), model.stream(mem_len=12).feed(ids)
    close(found.log_probs, expected.log_probs)
    np.testing.assert_array_equal(found.context, expected.context)


def test_malformed_device_or_threads_are_refused(model: Model) -> None:
    with pytest.raises(OptionError, match="threads is 0, at least 1 is needed"):
        load(model.folder, threads=0)
    with pytest.raises(OptionError, match="device 'gpu': expected cpu, cuda or cuda:N"):
        load(model.folder, device="gpu")


def test_purpose_that_the_bundle_lacks_is_refused(model: Model) -> None:
    with pytest.raises(OptionError, match="no graph for 'train'; this bundle has detail, generate, positions, score"):
        model.session("train")


def test_empty_batch_is_refused(model: Model) -> None:
    with pytest.raises(OptionError, match="batch size is 0"):
        model.new_memory(model.bundle.evaluation, batch_size=0)
