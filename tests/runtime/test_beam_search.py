"""Beam search against an exhaustive search over a tiny vocabulary."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from xlruntime import OptionError, SearchOptions
from xlruntime.translator import Beam, Hypothesis, length_penalty

END, WORDS, LONGEST = 0, (1, 2), 4
VOCABULARY = 1 + len(WORDS)


class Table:
    """A model of random log-probabilities, one distribution for each beginning."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        beginnings = [ids for n in range(LONGEST) for ids in itertools.product(WORDS, repeat=n)]
        logits = rng.normal(scale=2.0, size=(len(beginnings), VOCABULARY))
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        self.rows = dict(zip(beginnings, logits, strict=True))

    def search(self, options: SearchOptions, longest: int = LONGEST) -> Beam:
        beam = Beam(options, END, longest)
        rows = list(beam.ids)
        while rows:
            parents = beam.extend(np.stack([self.rows[ids] for ids in rows]))
            assert [beam.ids[at][:-1] for at in range(len(parents))] == [rows[parent] for parent in parents]
            rows = beam.ids if parents else []
        return beam

    def ended(self, exponent: float) -> list[Hypothesis]:
        """Return all targets that end."""
        found = []
        for ids in self.rows:
            log_prob = sum(self.rows[ids[:at]][token] for at, token in enumerate((*ids, END)))
            found.append(Hypothesis(ids, log_prob, log_prob / length_penalty(len(ids) + 1, exponent), True))
        return found


@pytest.mark.parametrize("exponent", [0.0, 0.6, 2.0])
def test_wide_beam_finds_the_best_of_all_targets(exponent: float) -> None:
    """Compare with all targets: a beam with room for every beginning leaves none out."""
    for seed in range(40):
        table = Table(seed)
        best = max(table.ended(exponent), key=lambda hypothesis: hypothesis.score)
        found = table.search(SearchOptions(beams=40, length_penalty=exponent)).best
        assert found.ids == best.ids and found.ended
        assert found.log_prob == pytest.approx(best.log_prob, abs=1e-12)
        assert found.score == pytest.approx(best.score, abs=1e-12)


def test_beam_of_one_is_greedy_search() -> None:
    longer = 0
    for seed in range(40):
        table = Table(seed)
        ids: tuple[int, ...] = ()
        while len(ids) < LONGEST and (token := int(table.rows[ids].argmax())) != END:
            ids = (*ids, token)
        for exponent in (0.0, 1.0):
            found = table.search(SearchOptions(length_penalty=exponent)).best
            assert found.ids == ids and found.ended == (len(ids) < LONGEST)
        longer += table.search(SearchOptions(beams=3)).best.log_prob > found.log_prob + 1e-12
    assert longer > 5  # a wider beam finds likelier targets


def test_equal_beginnings_are_ordered_by_their_ids() -> None:
    beam = Beam(SearchOptions(beams=3), END, LONGEST)
    equal: npt.NDArray[np.float64] = np.log(np.full((1, 4), 0.25))
    equal[0, END] = -np.inf
    assert beam.extend(equal) == [0, 0, 0] and beam.ids == [(1,), (2,), (3,)]
    assert beam.extend(np.repeat(equal, 3, axis=0)) == [0, 0, 0] and beam.ids == [(1, 1), (1, 2), (1, 3)]


def test_target_without_end_is_cut_off() -> None:
    table = Table(0)
    for row in table.rows.values():
        row[END] = -np.inf
    found = table.search(SearchOptions(beams=2), longest=3).best
    assert len(found.ids) == 3 and not found.ended


def test_penalty_is_that_of_wu_and_others() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(2**0.5)


def test_bad_options_are_listed() -> None:
    with pytest.raises(OptionError, match=r"beams is 0, .*; length_penalty is -1, .*; max_tokens is 0, "):
        SearchOptions(0, -1, 0)
    with pytest.raises(OptionError, match="length_penalty is nan"):
        SearchOptions(length_penalty=float("nan"))
