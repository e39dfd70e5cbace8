"""The choice of graphs: the variant for few tokens, graphs of a fixed length one after the other, rounds of hashing."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Close, Golden, RandomIds
from xlruntime import Model, OptionError, Sampling
from xlruntime.bundle import Choice
from xlruntime.load_options import LoadOptions
from xlruntime.session import GraphSession


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the file and the number of tokens of every step."""
    step, seen = GraphSession.step, []

    def spy(self: GraphSession, feeds: Any, memory: Any) -> Any:
        assert self.graph.fixed.get("batch") in (None, len(feeds["tokens"]))
        seen.append((self.graph.file.removesuffix(".onnx"), feeds["tokens"].shape[1]))
        return step(self, feeds, memory)

    monkeypatch.setattr(GraphSession, "step", spy)
    return seen


@pytest.fixture
def few_only(band_model: Model) -> Model:
    """Return a bundle whose graphs all take at most 16 tokens."""
    graphs = band_model.bundle.graphs
    graphs = {"score": graphs["score_few"], "generate": graphs["generate"]}
    steps = {purpose: (Choice(purpose, 16),) for purpose in graphs}
    bundle = dataclasses.replace(band_model.bundle, graphs=graphs, steps=steps)
    return Model(band_model.folder, bundle, LoadOptions(threads=1))


def fixed(model: Model, batch: int, *segments: int) -> Model:
    """Return a bundle whose graphs fix the size of a batch, and the length of a segment: each of these, in variants."""
    free = model.bundle.graphs
    graphs, steps = {"positions": free["positions"]}, {}
    for purpose in ("score", "generate"):
        names = {S: purpose if segments[0] == S else f"{purpose}_{S}" for S in segments}
        steps[purpose] = tuple(Choice(names[S]) for S in sorted(segments, reverse=True))
        for S, name in names.items():
            graphs[name] = dataclasses.replace(free[purpose], fixed={"batch": batch, "segment": S})
    return Model(model.folder, dataclasses.replace(model.bundle, graphs=graphs, steps=steps), LoadOptions(threads=1))


def test_few_tokens_run_in_the_graph_for_them(
    band_model: Model, random_ids: RandomIds, runs: list[tuple[str, int]], close: Close
) -> None:
    ids = random_ids(200, vocab_size=258)
    long = band_model.stream(segment_len=33).feed(ids)
    assert runs == [("score", 33)] * 6 + [("score_few", 1)]
    runs.clear()
    few = band_model.stream(segment_len=16).feed(ids)
    assert runs == [("score_few", 16)] * 12 + [("score_few", 7)]
    close(few.log_probs, long.log_probs)


def test_prompt_is_run_by_the_score_graph(
    band_model: Model, random_ids: RandomIds, runs: list[tuple[str, int]]
) -> None:
    prompt = random_ids(105, vocab_size=258)
    stream = band_model.stream(segment_len=50)
    drawn = list(stream.generate(prompt, max_tokens=3, sampling=Sampling(temperature=0)))
    assert runs == [("score", 50), ("score", 50), ("score_few", 4), *[("generate", 1)] * 3]
    assert drawn == list(band_model.generate(prompt, max_tokens=3, sampling=Sampling(temperature=0)))


def test_segment_is_no_longer_than_any_graph_takes(
    few_only: Model, band_model: Model, random_ids: RandomIds, runs: list[tuple[str, int]], close: Close
) -> None:
    ids = random_ids(150, vocab_size=258)
    found = few_only.stream(segment_len=100).feed(ids).log_probs
    assert runs == [("score_few", 16)] * 9 + [("score_few", 5)]
    close(found, band_model.stream().feed(ids).log_probs)
    runs.clear()
    (total,) = few_only.score([ids], segment_len=100)
    assert runs == [("score_few", 16)] * 9 + [("score_few", 5)]
    close(total.nats / 149, -found.mean(dtype=np.float64))
    assert len(list(few_only.generate(ids, max_tokens=2, segment_len=100))) == 2


def test_step_too_long_for_every_graph_is_refused(band_model: Model, few_only: Model) -> None:
    tokens = np.zeros((1, 17), np.int64)
    for model, purpose in ((few_only, "score"), (few_only, "generate"), (band_model, "generate")):
        memory = model.new_memory(model.evaluation(segment_len=40))
        message = rf"a segment of 17 tokens does not fit: the graph for '{purpose}' takes 1 to 16\. Split it"
        with pytest.raises(OptionError, match=message):
            model.step(purpose, memory, tokens, tokens)
        assert memory.offset == 0
        model.step(purpose, memory, tokens[:, :16], tokens[:, :16])


def test_fewer_rounds_of_hashing_score_otherwise(band_model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(201, vocab_size=258)
    own = band_model.stream().feed(ids).log_probs
    for segment_len in (8, 64):  # one for each graph
        streams = [band_model.stream(n_hashes=rounds, segment_len=segment_len) for rounds in (1, 2, 3)]
        by_rounds = [stream.feed(ids).log_probs for stream in streams]
        assert np.abs(by_rounds[0] - by_rounds[1]).max() > 0.01
        assert np.abs(by_rounds[1] - by_rounds[2]).max() > 0.01
        close(by_rounds[2], own)
    totals = [next(band_model.score([ids], n_hashes=rounds)) for rounds in (1, 2)]
    assert [total.settings["n_hashes"] for total in totals] == [1, 2]
    assert totals[0].nats != totals[1].nats
    greedy = Sampling(temperature=0)
    drawn = [list(band_model.generate(ids[:50], max_tokens=60, sampling=greedy, n_hashes=n)) for n in (1, 3, None)]
    assert drawn[0] != drawn[1] == drawn[2]


def test_graphs_of_fixed_lengths_run_one_after_the_other(
    golden: Golden, random_ids: RandomIds, runs: list[tuple[str, int]], close: Close
) -> None:
    """Use a model whose scores depend on segments, to see whether each token sees as much as in one step."""
    model, ids = golden("pre_lnorm_empty"), random_ids(60, vocab_size=29)
    free, split = (each.stream(segment_len=4) for each in (model, fixed(model, 1, 1, 4)))
    assert model.evaluation().segmentation_matters
    with pytest.raises(OptionError, match="segment_len is 8, at most 4 is possible: the graphs have fixed shapes"):
        split.engine.evaluation(segment_len=8)
    for begin, end in itertools.pairwise((0, 1, 3, 10, 45, 60)):
        runs.clear()
        found = split.feed(ids[begin:end])
        n = end - max(begin, 1)
        assert [S for _, S in runs] == [4] * (n // 4) + [1] * (n % 4)
        expected = free.feed(ids[begin:end])
        close(found.log_probs, expected.log_probs)
        assert found.context.tolist() == expected.context.tolist()
        assert split.memory.memory_length == free.memory.memory_length
        close(split.score_continuation(ids[:3]).log_probs, free.score_continuation(ids[:3]).log_probs)
    greedy = Sampling(temperature=0)
    assert list(split.generate(max_tokens=9, sampling=greedy)) == list(free.generate(max_tokens=9, sampling=greedy))


def test_documents_fill_up_the_rows_of_a_fixed_batch(golden: Golden, random_ids: RandomIds, close: Close) -> None:
    model = golden("pre_lnorm_empty")
    rows, documents = fixed(model, 3, 4, 1), [random_ids(n, vocab_size=29) for n in (9, 30, 2, 17, 40)]
    for several in (documents, documents[:1]):
        expected = [score.nats for score in model.score(several, segment_len=4)]
        close([score.nats for score in rows.score(several, segment_len=4)], expected)
    with pytest.raises(OptionError, match=r"batch size is 1, expected 3: the graphs of this bundle have fixed shapes"):
        rows.stream(segment_len=4)


def test_step_that_no_fixed_length_fits_is_refused(golden: Golden) -> None:
    model, tokens = fixed(golden("pre_lnorm_empty"), 1, 4), np.zeros((1, 5), np.int64)
    with pytest.raises(OptionError, match="a segment of 1 tokens does not fit"):
        model.step("score", model.new_memory(model.evaluation(segment_len=4), capacity=20), tokens, tokens)
