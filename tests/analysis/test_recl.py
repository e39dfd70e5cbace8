"""Relative effective context length: hand-computed arrays, and Appendix C of the Transformer-XL paper written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from xlexport.analysis.recl import find_recl, relative_gains

Losses = npt.NDArray[np.float64]


def array(*values: float) -> Losses:
    return np.array(values, np.float64)


def slow_gain(losses: dict[int, list[list[float]]], model: int, c: int, longer: int, r: float) -> float:
    """Compute g_i(c, c') by the paper's formulas, token by token."""
    tokens = range(len(losses[c][0]))
    b = [min(losses[c][i][t] for i in range(len(losses[c]))) for t in tokens]
    T = sorted(tokens, key=lambda t: (-b[t], t))[: max(1, round(r * len(b)))]

    def f(length: int) -> float:
        return sum(min(b[t], losses[length][model][t]) for t in T) / len(T)

    return (math.exp(f(c)) - math.exp(f(longer))) / math.exp(f(c))


def slow_recl(losses: dict[int, list[list[float]]], model: int, start: int, step: int, r: float) -> int | None:
    """Follow the paper's two steps; return None if losses for the next length are missing."""
    c = start
    while True:
        longer = c + step
        if longer not in losses:
            return None
        if slow_gain(losses, model, c, longer, r) < 0.01:
            return c
        c = longer


def test_gain_of_hand_computed_losses() -> None:
    first, second = array(1.0, 4.0, 2.0, 3.0), array(2.0, 3.0, 2.5, 1.0)
    # b = (1, 3, 2, 1). With all tokens f(c, c) = 7/4.
    longer = [array(0.5, 5.0, 1.0, 1.0), array(3.0, 3.0, 2.5, 0.0)]
    # min(b, l) = (0.5, 3, 1, 1) and (1, 3, 2, 0): only losses below the group's best count.
    found = relative_gains([first, second], longer, (10, 20), 1.0)
    assert [(gain.short, gain.long) for gain in found] == [(10, 20)] * 2
    assert [gain.baseline_nats for gain in found] == [1.75, 1.75]
    assert [gain.relative_nats for gain in found] == [5.5 / 4, 6 / 4]
    assert found[0].gain == pytest.approx(1 - math.exp(5.5 / 4 - 1.75), rel=1e-14)
    assert found[1].perplexity_gain == pytest.approx(math.exp(1.75) - math.exp(1.5), rel=1e-14)
    # The hardest half are tokens 1 and 2, whose baseline is 3 and 2: min(b, l) is (3, 1), then (3, 2).
    half = relative_gains([first, second], longer, (10, 20), 0.5)
    assert [(gain.baseline_nats, gain.relative_nats) for gain in half] == [(2.5, 2.0), (2.5, 2.5)]
    assert half[1].gain == 0.0


def test_walk_of_hand_computed_losses() -> None:
    """Use one token, so that a gain is one minus the ratio of probabilities: 4%, then 2%, then 0.5%."""
    nats = {100: 1.0, 110: 1.0 + math.log(0.96), 120: 1.0 + math.log(0.96 * 0.98)}
    nats[130] = nats[120] + math.log(0.995)
    asked = []

    def losses(length: int) -> list[Losses]:
        asked.append(length)
        return [array(nats[length])]

    ((found,),) = find_recl(losses, start=100, step=10, longest=1000, shares=[1.0])
    assert (found.recl, found.at_least) == (120, 120)
    assert asked == [100, 110, 120, 130]
    assert [gain.gain for gain in found.gains] == pytest.approx([0.04, 0.02, 0.005], rel=1e-12)
    ((cut,),) = find_recl(losses, start=100, step=10, longest=125, shares=[1.0])
    assert (cut.recl, cut.at_least) == (None, 120)
    ((early,),) = find_recl(losses, start=100, step=10, longest=1000, shares=[1.0], threshold=0.03)
    assert early.recl == 110


def test_the_threshold_itself_is_a_gain() -> None:
    """Check the limit: the paper returns c if the gain is below 0.01, and continues if it is 0.01 or more."""
    gain = -math.expm1(-0.5)
    steps = {1: array(1.0), 2: array(0.5), 3: array(0.5)}
    ((found,),) = find_recl(lambda c: [steps[c]], start=1, step=1, longest=3, shares=[1.0], threshold=gain)
    assert found.recl == 2


@pytest.mark.parametrize("seed", range(20))
def test_against_the_paper_written_out(seed: int) -> None:
    """Compare for three models with noisy losses, and shares that do not divide the number of tokens."""
    rng = np.random.default_rng(seed)
    tokens, start, step, lengths = 57, 5, 3, 30
    hard = rng.exponential(2.0, tokens)
    paces = rng.uniform(0.02, 0.3, 3)

    def at(c: int) -> list[Losses]:
        noise = np.random.default_rng([seed, c])
        return [hard * (1 + np.exp(-pace * c)) + noise.normal(0, 0.02, tokens) for pace in paces]

    losses = {c: [model.tolist() for model in at(c)] for c in range(start, start + step * lengths, step)}
    shares: Sequence[float] = (0.1, 0.5, 1.0)
    found = find_recl(at, start=start, step=step, longest=max(losses), shares=shares)
    ends = set()
    for model, results in enumerate(found):
        for share, result in zip(shares, results, strict=True):
            assert result.recl == slow_recl(losses, model, start, step, share)
            ends.add(result.recl)
            for gain in result.gains:
                slow = slow_gain(losses, model, gain.short, gain.long, share)
                assert gain.gain == pytest.approx(slow, abs=1e-12)  # float64's rounding of numbers about one
    assert len(ends) > 1
