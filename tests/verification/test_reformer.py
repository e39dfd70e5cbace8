"""`verify` for Reformers: equality under the graphs' buckets, and failures for a broken bundle or another model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.helpers.native import installed_package
from tests.helpers.tiers import thinned
from xlexport.errors import ParityError
from xlexport.verification import verify
from xlexport.verification.parity import ParityReport
from xlruntime import Model
from xlruntime.memory import Memory
from xltraining.reformer import LSHTrace, Reformer, ReformerConfig
from xltraining.reformer.attention import SharedAttention

if TYPE_CHECKING:
    from tests.helpers.bundles import ConvertedReformer

Arrays = dict[str, npt.NDArray[Any]]

pytestmark = pytest.mark.full
IDS = np.random.default_rng(5).integers(0, 30, 1400)
PURPOSES = ["score", "detail", "generate", "score_few"]


def check(
    converted: ConvertedReformer, model: Model | None = None, eager: Reformer | None = None, **options: Any
) -> ParityReport:
    """Verify `model` against `eager`, by default the model's own."""
    options = {"segments": 8, **options}
    return verify(model or converted.open(), lambda: eager or converted.model, IDS, **options)


Change = Callable[[Memory, Arrays, int], object]


def on_step(model: Model, purpose: str, change: Change, number: int | None = None) -> None:
    """Apply `change` to the results of each step of one graph, or only of step `number`."""
    open_session, done = model.session, [0]

    class Changed:
        graph = model.bundle.graphs[purpose]
        nodes = ()  # none, so a report counts no kernels

        def step(self, feeds: Arrays, memory: Memory) -> Arrays:
            outputs, advance = open_session(purpose).step(feeds, memory), memory.advance

            def advance_and_change(S: int) -> None:
                del memory.advance
                advance(S)
                if number is None or done[0] == number:
                    change(memory, outputs, S)
                done[0] += 1

            memory.advance = advance_and_change  # type: ignore[assignment, method-assign]
            return outputs

    def session(of: str) -> Any:
        return Changed() if of == purpose else open_session(of)

    model.session = session  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize(
    "changes",
    [
        {"segment_len": 5, "mem_len": 7},
        {"n_hashes": 1},
        *thinned(
            [
                {"segment_len": 1},
                {"segment_len": 33, "mem_len": 3},
                {"segment_len": 64, "mem_len": 300},
                {"segment_len": 100, "restart": True},
            ],
            [],
        ),
    ],
    ids=str,
)
def test_band_equals_model_under_other_settings(changes: dict[str, Any], band: ConvertedReformer) -> None:
    model = band.open()
    report = check(band, model, segments=14, evaluation=model.evaluation(**changes))
    report.require_passed()
    assert report.max_abs_log_prob_diff <= 2e-5
    assert report.max_abs_memory_diff <= 1e-5


def test_documents_end_with_the_positions(band: ConvertedReformer) -> None:
    """Walk 1,399 tokens with 1,024 positions: segments of 100 end at 1,000, 1,024, 1,124 and so on."""
    model = band.open()
    report = check(band, model, segments=20, evaluation=model.evaluation(segment_len=100))
    report.require_passed()
    assert [one.tokens for one in report.per_segment] == [100] * 10 + [24] + [100] * 3 + [75]


@pytest.mark.parametrize("name", ["chunk", pytest.param("paper", marks=pytest.mark.full)])
def test_whole_documents_of_several_lengths(name: str, request: pytest.FixtureRequest) -> None:
    report = check(request.getfixturevalue(name), segments=12)
    report.require_passed()
    assert {one.tokens for one in report.per_segment} == {128, 125, 2, 4, 5}
    assert report.max_abs_log_prob_diff <= 2e-5
    assert (report.mem_len, report.max_abs_memory_diff) == (0, 0.0)
    assert report.bucket_flips is not None
    if name == "chunk":
        assert report.overflow_fraction is None
    else:
        assert report.overflow_mismatches == 0 and 0 < (report.overflow_fraction or 0) < 1


def test_document_length_that_is_asked_for(chunk: ConvertedReformer) -> None:
    model = chunk.open()
    report = check(chunk, model, evaluation=model.evaluation(segment_len=77))
    assert max(one.tokens for one in report.per_segment) == 77
    report.require_passed()


def test_every_graph_is_walked(band: ConvertedReformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that graphs for few tokens walk with a small and with the full memory, and that their rings wrap twice."""
    monkeypatch.setattr("xlexport.verification.comparison.FEW_MEMORY", 10)
    walked: dict[str, list[tuple[int, int]]] = {}
    model = band.open()

    def seen_by(purpose: str) -> Change:
        return lambda memory, outputs, S: walked.setdefault(purpose, []).append((S, memory.evaluation.most_rows))

    for purpose in model.bundle.graphs:
        on_step(model, purpose, seen_by(purpose))
    check(band, model, segments=20).require_passed()
    assert walked["score"] == walked["detail"] == [(8, 24)] * 20
    assert walked["score_batched"] == [(8, 24)] * 2
    assert walked.keys().isdisjoint({"score_fused", "detail_fused"}) != installed_package()  # with their kernels
    for purpose in ("generate", "score_few"):
        most = model.bundle.max_segment(purpose)
        assert most is not None
        small = [S for S, mem_len in walked[purpose] if mem_len == 10]
        assert sum(small) == 2 * (10 + most)
        assert set(small) >= {most, 1, most // 2 + 1}
        assert [S for S, mem_len in walked[purpose] if mem_len == 24] == [8]


def test_error_of_a_few_tokens_on_the_full_memory_is_found(
    band: ConvertedReformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.verification.comparison.FEW_MEMORY", 10)

    def worsen(memory: Memory, outputs: Arrays, S: int) -> None:
        if memory.evaluation.most_rows == 24:
            outputs["log_prob"] -= 0.5

    model = band.open()
    on_step(model, "score_few", worsen)
    report = check(band, model)
    assert not report.passed
    assert report.max_abs_log_prob_diff == pytest.approx(0.5, abs=1e-4)


# The report.


def direct_overflow(config: ReformerConfig, trace: list[LSHTrace]) -> list[int]:
    """Count for each layer the (query, head, round) with more than W keys of their bucket within reach, one by one."""
    counts = []
    for one in trace:
        buckets = one.own[0]  # (H, R, T)
        count = 0
        for row in buckets.flatten(0, 1).tolist():
            for i, bucket in enumerate(row):
                count += row[max(0, i - config.mem_len) : i].count(bucket) > config.chunk_length
        counts.append(count)
    return counts


def test_overflow_against_direct_count(band: ConvertedReformer) -> None:
    report = check(band, segments=20)
    trace: list[LSHTrace] = []
    with torch.no_grad():
        band.model(torch.from_numpy(IDS[None, :160]), trace=trace)
    assert report.bucket_flips == 0
    wanted = [count / (160 * 2 * 2) for count in direct_overflow(band.model.config, trace)]
    assert min(wanted) > 0
    assert report.overflow_fraction_per_layer == pytest.approx(wanted)
    assert report.overflow_fraction == pytest.approx(np.mean(wanted))


def turned(model: Reformer, size: float) -> Reformer:
    """Return the model with rotations changed by a relative `size`."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    for layer in other.layers:
        rotations = getattr(layer.attention, "rotations", None)
        if rotations is not None:
            rotations += size * rotations.norm(dim=2, keepdim=True) * torch.randn(rotations.shape, generator=generator)
    return other


def nearly_tied(model: Reformer, ids: npt.NDArray[np.int64], by: float) -> Reformer:
    """Return the model with the closest decision of its first LSH layer reversed, by a relative margin near `by`."""
    other = copy.deepcopy(model)
    attention = cast(SharedAttention, cast(Any, other.layers[1]).attention)
    inputs: list[torch.Tensor] = []
    hook = attention.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    with torch.no_grad():
        other(torch.from_numpy(ids[None]))
        hook.remove()
        query = attention.query_key(attention.norm(inputs[0])).view(len(ids), 2, 6)  # (T, H, d)
        values = torch.einsum("thd,hrdc->thrc", query, attention.rotations[..., :2])  # of the first factor
        best = torch.cat([values, -values], dim=3).topk(2, dim=3)
        gap = (best.values[..., 0] - best.values[..., 1]) / best.values[..., 0]
        t, h, r = (int(place) for place in np.unravel_index(int(gap.argmin()), tuple(gap.shape)))
        column = int(best.indices[t, h, r, 1])
        wanted = best.values[t, h, r, 0] * (gap[t, h, r] + by) * (1 if column < 2 else -1)
        attention.rotations[h, r, :, column % 2] += query[t, h] * wanted / query[t, h].square().sum()
    return other


@pytest.mark.release
def test_flips_of_tiny_margin_are_counted_and_allowed(band: ConvertedReformer) -> None:
    report = check(band, eager=nearly_tied(band.model, IDS[:800], by=3e-5), segments=100)
    report.require_passed()
    assert report.bucket_flips is not None and report.bucket_flips > 0
    assert report.largest_flip_margin is not None and 1e-5 < report.largest_flip_margin <= 1e-4
    assert report.max_abs_log_prob_diff <= 2e-5  # under the graph's buckets
    assert report.flip_effect_bits_per_token is not None and 0 < abs(report.flip_effect_bits_per_token) < 0.1
    assert report.overflow_mismatches == 0


@pytest.mark.parametrize("name", ["band", "chunk"])
def test_other_rotations_are_found(name: str, request: pytest.FixtureRequest) -> None:
    """Check that wrong rotations fail although scores agree under the graph's buckets."""
    converted: ConvertedReformer = request.getfixturevalue(name)
    report = check(converted, eager=turned(converted.model, 0.1))
    assert report.max_abs_log_prob_diff <= 2e-5
    assert report.largest_flip_margin is not None and report.largest_flip_margin > 1e-4
    assert not report.passed
    with pytest.raises(ParityError, match=r"buckets by a margin of up to .* \(0\.0001\)"):
        report.require_passed()


# Differences that `verify` must find.


WEIGHTS = [
    *("word_emb.weight", "positions.weights.0", "positions.weights.1", "norm.weight", "head.bias"),
    *("layers.0.attention.query.weight", "layers.0.attention.key.weight", "layers.0.attention.norm.bias"),
    *("layers.1.attention.query_key.weight", "layers.1.attention.value.weight", "layers.2.attention.query_key.weight"),
    *("layers.3.attention.output.weight", "layers.2.feed_forward.inner.bias", "layers.3.feed_forward.norm.weight"),
]


@pytest.mark.parametrize("weight", thinned(WEIGHTS, ["head.bias", "layers.0.attention.query.weight"]))
def test_other_weights_are_found(weight: str, band: ConvertedReformer) -> None:
    other = copy.deepcopy(band.model)
    with torch.no_grad():
        other.get_parameter(weight).view(-1)[::3] += 2e-2
    report = check(band, eager=other)
    assert not report.passed
    assert report.max_abs_log_prob_diff > 1e-4


def entry_of(memory: Memory, name: str) -> Any:
    return next(entry for entry in memory.entries if entry.input == name)


def newest(memory: Memory, name: str) -> npt.NDArray[Any]:
    """Return the row of the last token in a memory of keys or values: (H, d_head)."""
    entry = entry_of(memory, name)
    array = memory.array(entry)[0]
    return array[:, -1] if entry.layout == "window" else array[:, (memory.offset - 1) % memory.capacity]


@pytest.mark.parametrize("purpose", thinned(PURPOSES, ["score", "detail"]))
@pytest.mark.parametrize(
    "name",
    thinned(
        [*(f"memory_{kind}_{layer}" for layer in range(3) for kind in ("key", "value")), "memory_value_3"],
        ["memory_key_1", "memory_value_3"],
    ),
)
def test_wrong_memory_is_found(name: str, purpose: str, band: ConvertedReformer) -> None:
    def drift(memory: Memory, outputs: Arrays, S: int) -> None:
        newest(memory, name)[1, 2] += 2e-3

    model = band.open()
    on_step(model, purpose, drift, number=1)
    report = check(band, model)
    assert not report.passed
    assert report.max_abs_memory_diff >= 1.9e-3


def test_wrong_older_row_is_found_at_the_end(band: ConvertedReformer) -> None:
    def drift(memory: Memory, outputs: Arrays, S: int) -> None:
        memory.array(entry_of(memory, "memory_value_3"))[0, :, (memory.offset - S - 1) % memory.capacity] += 2e-3

    model = band.open()
    on_step(model, "score", drift, number=7)
    assert check(band, model).first_segment_over_tolerance == 7


@pytest.mark.parametrize("purpose", thinned(PURPOSES, ["score"]))
def test_wrong_bucket_is_found(purpose: str, band: ConvertedReformer) -> None:
    def other(memory: Memory, outputs: Arrays, S: int) -> None:
        ids = memory.array(entry_of(memory, "memory_bucket_3"))[0, :, :, (memory.offset - 1) % memory.capacity]
        ids[:] = (ids + 1) % 8

    model = band.open()
    on_step(model, purpose, other, number=1)
    report = check(band, model)
    assert not report.passed
    assert report.bucket_flips == 4  # heads times rounds
    assert report.largest_flip_margin is not None and report.largest_flip_margin > 1e-4


@pytest.mark.parametrize("name", ["chunk", pytest.param("paper", marks=pytest.mark.full)])
def test_wrong_bucket_of_a_whole_document_is_found(name: str, request: pytest.FixtureRequest) -> None:
    def other(memory: Memory, outputs: Arrays, S: int) -> None:
        outputs["bucket_0"] = (outputs["bucket_0"] + (np.arange(S) == S - 1)).astype(np.int32) % 8

    converted: ConvertedReformer = request.getfixturevalue(name)
    model = converted.open()
    on_step(model, "score", other, number=0)
    report = check(converted, model)
    assert report.first_segment_over_tolerance == 0
    assert report.bucket_flips == 4


@pytest.mark.parametrize("purpose", thinned(PURPOSES, ["score"]))
def test_wrong_overflow_is_found(purpose: str, band: ConvertedReformer) -> None:
    def one_more(memory: Memory, outputs: Arrays, S: int) -> None:
        outputs["overflow"] = outputs["overflow"].copy()
        outputs["overflow"][0, 0, 1] += 1

    model = band.open()
    on_step(model, purpose, one_more, number=2)
    report = check(band, model)
    assert report.overflow_mismatches == 1
    assert report.first_segment_over_tolerance is not None
    assert report.max_abs_log_prob_diff <= 2e-5
    with pytest.raises(ParityError, match="overflow counts in 1 places"):
        report.require_passed()


@pytest.mark.parametrize("step", [1, 6])
@pytest.mark.parametrize("counter", ["position", "offset"])
def test_wrong_counter_is_found(counter: str, step: int, band: ConvertedReformer) -> None:
    def skip(memory: Memory, outputs: Arrays, S: int) -> None:
        setattr(memory, counter, getattr(memory, counter) + 1)

    model = band.open()
    on_step(model, "score", skip, number=step)
    assert check(band, model).first_segment_over_tolerance in (step, step + 1)


@pytest.mark.parametrize(
    ("name", "purpose", "output"),
    [
        *(("band", purpose, "log_prob") for purpose in ("score", "detail", "score_few")),
        *(("band", "detail", output) for output in ("rank", "entropy", "top_log_probs")),
        ("band", "generate", "logits"),
        *(("chunk", purpose, "log_prob") for purpose in ("score", "detail")),
        ("chunk", "generate", "logits"),
    ],
)
@pytest.mark.parametrize("bad", thinned([1.01, np.nan], [1.01]))
def test_each_figure_of_each_graph_is_compared(
    name: str, purpose: str, output: str, bad: float, request: pytest.FixtureRequest
) -> None:
    converted: ConvertedReformer = request.getfixturevalue(name)

    def spoil(memory: Memory, outputs: Arrays, S: int) -> None:
        spoiled = outputs[output].astype(np.float64)
        spoiled[0, -1] = spoiled[0, -1] * bad if output != "rank" else spoiled[0, -1] + 1
        outputs[output] = spoiled

    model = converted.open()
    on_step(model, purpose, spoil, number=1)
    assert not check(converted, model).passed


def test_wrong_overflow_of_a_whole_document_is_found(paper: ConvertedReformer) -> None:
    def one_more(memory: Memory, outputs: Arrays, S: int) -> None:
        outputs["overflow"] = outputs["overflow"] + (np.arange(S) == 7)[:, None].astype(np.int32)

    model = paper.open()
    on_step(model, "score", one_more, number=0)
    report = check(paper, model)
    assert (report.first_segment_over_tolerance, report.overflow_mismatches) == (0, 1)
