"""`verify` finds every difference, and reports where it begins."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.breaking import Arrays, after_step
from tests.helpers.tiers import thinned
from xlexport.errors import ParityError
from xlexport.verification import verify
from xlexport.verification.spans import segments_to_wrap
from xlexport.verification.tolerances import TOLERANCES
from xlruntime import Model
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import Memory

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted
    from xltraining.transformer_xl import TransformerXL

    MakeModel = Callable[..., TransformerXL]

IDS = np.random.default_rng(5).integers(0, 20, 400)
BOTH = ["bytes_bundle", "ids_bundle"]


@pytest.fixture
def bundle(bytes_bundle: Converted) -> Model:
    """Open the byte bundle again, so that a test may break it."""
    return bytes_bundle.open()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"segment_len": 1}, marks=pytest.mark.full),
        pytest.param({"segment_len": 50, "mem_len": 3}, marks=pytest.mark.full),
        {"mem_len": 90, "clamp_len": 30},
        pytest.param({"segment_len": 7, "mem_len": 1, "same_length": True}, marks=pytest.mark.full),
        pytest.param({"clamp_len": 1, "same_length": False}, marks=pytest.mark.full),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", BOTH)
def test_bundle_equals_model_under_other_settings(
    name: str, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    converted: Converted = request.getfixturevalue(name)
    model = converted.open()
    report = verify(model, lambda: converted.model, IDS, segments=30, evaluation=model.evaluation(**changes))
    report.require_passed()
    assert report.max_abs_log_prob_diff <= 2e-5
    assert report.max_abs_memory_diff <= 1e-5


def test_report_sums_its_segments(bundle: Model, bytes_bundle: Converted) -> None:
    steps: list[tuple[int, int]] = []
    report = verify(
        bundle, lambda: bytes_bundle.model, IDS[:30], segments=20, progress=lambda *step: steps.append(step)
    )
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    seen = report.per_segment  # by now including the other graphs
    assert report.tolerance == {
        "log_prob": 1e-4,
        "distribution": 1e-4,
        "memory": 1e-3,
        "delta_bits_per_token": 1e-6 * math.sqrt(1000 / 29),
        "flip_margin": 1e-4,
    }
    assert (report.bucket_flips, report.largest_flip_margin, report.overflow_fraction) == (None, None, None)
    assert [(segment.segment, segment.tokens) for segment in seen] == [(0, 8), (1, 8), (2, 8), (3, 5)]  # to the end
    assert (report.segments, report.tokens) == (4, 29)
    assert report.max_abs_log_prob_diff == max(segment.max_abs_log_prob_diff for segment in seen)
    assert report.max_distribution_diff == max(segment.max_distribution_diff or 0 for segment in seen) <= 1e-5
    assert report.max_abs_memory_diff == max(segment.max_abs_memory_diff or 0 for segment in seen)
    eager = sum(segment.eager_nats for segment in seen)
    assert report.bits_per_token == pytest.approx(eager / 29 / np.log(2))
    difference = sum(segment.graph_nats for segment in seen) - eager
    assert report.delta_bits_per_token == pytest.approx(difference / 29 / np.log(2))
    json.dumps(report.to_dict(), allow_nan=False)


def test_too_few_ids_to_compare(bundle: Model, bytes_bundle: Converted) -> None:
    for length in (0, 1):
        with pytest.raises(ParityError, match=f"the text has {length} tokens; at least 2"):
            verify(bundle, lambda: bytes_bundle.model, IDS[:length], segments=1)


def last_row(memory: Memory, name: str) -> npt.NDArray[Any]:
    """Return the row that the last token wrote, (H, d_head)."""
    entry = next(entry for entry in memory.entries if entry.input == name)
    row: npt.NDArray[Any] = memory.array(entry)[0, :, (memory.offset - 1) % memory.capacity]
    return row


def another_clamp(model: Model) -> None:
    make = model._make_constants

    def clamped(evaluation: EvaluationSettings, capacity: int) -> dict[str, Any]:
        return make(replace(evaluation, values={**evaluation.values, "clamp_len": 14}), capacity)

    model._make_constants = clamped  # type: ignore[method-assign]


def swapped_layers(model: Model) -> None:
    make = model._make_constants

    def swap(evaluation: EvaluationSettings, capacity: int) -> dict[str, Any]:
        keys = make(evaluation, capacity)
        return dict(zip(keys, reversed(keys.values()), strict=True))

    model._make_constants = swap  # type: ignore[method-assign]


def swapped_rings(model: Model) -> None:
    def swap(memory: Memory, outputs: Arrays) -> None:
        first, second = (memory.array(entry) for entry in memory.entries[::2])
        first[:], second[:] = second.copy(), first.copy()

    after_step(model, 2, swap)


def flipped_slot(model: Model) -> None:
    def flip(memory: Memory, outputs: Arrays) -> None:
        last_row(memory, "memory_value_1")[:] *= -1

    after_step(model, 2, flip)


def skipped_slot(model: Model) -> None:
    def skip(memory: Memory, outputs: Arrays) -> None:
        memory.offset += 1

    after_step(model, 2, skip)


SPOILS = [another_clamp, swapped_layers, swapped_rings, flipped_slot, skipped_slot]


@pytest.mark.parametrize("spoil", thinned(SPOILS, [skipped_slot]))
def test_small_error_is_found(spoil: Callable[[Model], None], bundle: Model, bytes_bundle: Converted) -> None:
    spoil(bundle)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=8)
    assert not report.passed
    assert report.max_abs_log_prob_diff > 1e-3
    if spoil not in (another_clamp, swapped_layers):
        assert report.first_segment_over_tolerance == 2
    with pytest.raises(ParityError, match="first segment over tolerance"):
        report.require_passed()


@pytest.mark.parametrize("error", [-1, 1])
@pytest.mark.full
def test_window_that_is_off_by_one_is_found(
    error: int, bundle: Model, bytes_bundle: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = bundle.evaluation(same_length=True)
    verify(bundle, lambda: bytes_bundle.model, IDS, segments=8, evaluation=evaluation).require_passed()
    window = evaluation.window("capacity") + error
    monkeypatch.setattr(EvaluationSettings, "window", lambda self, symbol: window)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=8, evaluation=evaluation)
    assert not report.passed
    assert report.first_segment_over_tolerance == 2  # token 20 is the first that sees one token more, or less


@pytest.mark.parametrize("first", thinned([0, 1, 5, 7], [0, 5]))
@pytest.mark.parametrize("name", ["memory_key_0", "memory_value_0", "memory_key_1", "memory_value_1"])
@pytest.mark.full
def test_memory_that_drifts_is_found_where_it_begins(
    name: str, first: int, bundle: Model, bytes_bundle: Converted
) -> None:
    def drift(memory: Memory, outputs: Arrays) -> None:
        last_row(memory, name)[1, 2] += 2e-3

    after_step(bundle, first, drift, every=True)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=8)
    assert not report.passed
    assert report.first_segment_over_tolerance == first
    assert report.max_abs_memory_diff >= 1.9e-3
    assert max((segment.max_abs_memory_diff or 0 for segment in report.per_segment[:first]), default=0) <= 1e-5


@pytest.mark.full
def test_difference_that_grows_shows_as_drift(bundle: Model, bytes_bundle: Converted) -> None:
    drift = verify(bundle, lambda: bytes_bundle.model, IDS, segments=30).drift
    assert drift is not None and 0.2 < drift < 5

    def wander(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"] += np.float32(1e-7 * memory.offset)

    after_step(bundle, 0, wander, every=True)
    drift = verify(bundle, lambda: bytes_bundle.model, IDS, segments=30).drift
    assert drift is not None and drift > 3
    assert verify(bundle, lambda: bytes_bundle.model, IDS, segments=2).drift is None


@pytest.mark.parametrize("name", ["memory_key_0", "memory_value_0", "memory_key_1", "memory_value_1"])
@pytest.mark.parametrize("bad", thinned([np.nan, np.inf], [np.inf]))
@pytest.mark.full
def test_number_that_is_not_finite_in_the_last_memory_is_found(
    bad: float, name: str, bundle: Model, bytes_bundle: Converted
) -> None:
    """Put NaN into each tensor: comparisons with NaN are false, so `max` may drop it."""

    def break_memory(memory: Memory, outputs: Arrays) -> None:
        last_row(memory, name)[0, 0] = bad

    after_step(bundle, 7, break_memory)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=8)
    assert not report.passed
    assert not np.isfinite(report.max_abs_memory_diff or 0)
    assert report.first_segment_over_tolerance == 7


def test_row_that_the_last_step_forgets_is_found(bundle: Model, bytes_bundle: Converted) -> None:
    def forget(memory: Memory, outputs: Arrays) -> None:
        memory.memory_length -= 1

    after_step(bundle, 3, forget)
    assert verify(bundle, lambda: bytes_bundle.model, IDS, segments=4).first_segment_over_tolerance == 3


def test_whole_memory_is_compared_behind_a_last_block_of_one_segment(
    bundle: Model, bytes_bundle: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = bundle.bundle.settings
    segments = segments_to_wrap(evaluation) + 1
    monkeypatch.setattr("xlexport.verification.comparison.LARGEST_BLOCK", 1)

    def spoil_older_row(memory: Memory, outputs: Arrays) -> None:
        slot = (memory.offset - evaluation.segment_len - 1) % memory.capacity
        memory.array(memory.entries[0])[0, :, slot] += 2e-3

    assert evaluation.most_rows > evaluation.segment_len
    after_step(bundle, segments - 1, spoil_older_row)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=segments)
    assert report.first_segment_over_tolerance == segments - 1


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.full
def test_segments_that_are_walked_in_parts(
    name: str, same_length: bool, positions: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walk as with a large vocabulary. Without same_length, a wrong reach within a segment would show."""
    converted: Converted = request.getfixturevalue(name)
    model = converted.open()
    monkeypatch.setattr("xlexport.verification.comparison.LARGEST_TABLE", positions * model.bundle.vocab_size)
    evaluation = model.evaluation(same_length=same_length)
    with mock.patch.object(model, "step", side_effect=model.step) as step:
        report = verify(model, lambda: converted.model, IDS, segments=12, evaluation=evaluation)
    report.require_passed()
    assert report.max_distribution_diff <= 1e-5
    assert max(call.args[2].shape[1] for call in step.mock_calls if call.args[0] == "detail") == positions


Spoil = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
SPOIL: dict[str, Spoil] = {
    "scaled": lambda array: array * np.float32(1.001),
    "reversed": lambda array: array[..., ::-1],
    "first lost": lambda array: np.where(np.arange(array.shape[-1]) == 0, np.float32(np.nan), array),
    "one more": lambda array: array + 1,
    "one less": lambda array: array - 1,
}


@pytest.mark.parametrize(
    ("purpose", "output", "spoil"),
    [
        *(("generate", "logits", spoil) for spoil in ("scaled", "reversed", "first lost")),
        *(("detail", output, spoil) for output in ("log_prob", "top_log_probs") for spoil in ("scaled", "first lost")),
        ("detail", "top_ids", "reversed"),
        *(("detail", "rank", spoil) for spoil in ("one more", "one less")),
    ],
)
@pytest.mark.full
def test_each_graph_is_compared(purpose: str, output: str, spoil: str, bundle: Model, bytes_bundle: Converted) -> None:
    def change(memory: Memory, outputs: Arrays) -> None:
        outputs[output] = SPOIL[spoil](outputs[output])

    after_step(bundle, 3, change, of=purpose)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=6)
    assert report.first_segment_over_tolerance == 3
    assert not report.passed


def test_missing_most_probable_token_is_found(bundle: Model, bytes_bundle: Converted) -> None:
    def leave_out(memory: Memory, outputs: Arrays) -> None:  # the listed tokens are right
        for output in ("top_ids", "top_log_probs"):
            outputs[output] = outputs[output][..., [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]]

    after_step(bundle, 3, leave_out, of="detail")
    assert verify(bundle, lambda: bytes_bundle.model, IDS, segments=6).first_segment_over_tolerance == 3


@pytest.mark.parametrize("purpose", ["detail", "generate"])
@pytest.mark.full
def test_memory_of_the_other_graphs_is_compared_at_their_end(
    purpose: str, bundle: Model, bytes_bundle: Converted
) -> None:
    def change(memory: Memory, outputs: Arrays) -> None:
        last_row(memory, "memory_value_1")[:] += 2e-3

    walked = 20
    assert walked > segments_to_wrap(bundle.bundle.settings)
    after_step(bundle, walked - 1, change, of=purpose)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=24)
    assert report.detail_segments == walked
    assert report.first_segment_over_tolerance == walked - 1
    assert report.max_abs_memory_diff >= 1.9e-3
    assert [segment.top1_agreement is None for segment in report.per_segment] == [False] * walked + [True] * 4


# Checkpoints of other models.


def test_checkpoint_of_other_sizes_is_refused(bundle: Model, make_model: MakeModel) -> None:
    """Expect all differences in one line, before any error about shapes."""
    config = bundle.bundle.config
    other = make_model(n_token=257, n_layer=config["n_layer"] + 1, d_head=config["d_head"] + 2)
    with pytest.raises(ParityError) as caught:
        verify(bundle, lambda: other, IDS, segments=3)
    assert str(caught.value) == (
        f"n_token is 256 in the bundle, 257 in the trained model; n_layer is {config['n_layer']} in the bundle, "
        f"{config['n_layer'] + 1} in the trained model; d_head is {config['d_head']} in the bundle, "
        f"{config['d_head'] + 2} in the trained model. Give the checkpoint that the bundle was converted from."
    )


def test_tolerances_are_those_of_the_design() -> None:
    assert astuple(TOLERANCES["float32"]) == (1e-4, 1e-4, 1e-3, 1e-6, 1e-4, 2, 4)
    lower = [tolerance for name, tolerance in TOLERANCES.items() if name != "float32"]
    # Twice the limit of `quantize` on its own text; single tokens differ by more than the mean.
    assert {tolerance.delta_bits_per_token for tolerance in lower} == {0.02}
    assert {(tolerance.rms_ratio, tolerance.largest_ratio) for tolerance in lower} == {(math.inf, math.inf)}
