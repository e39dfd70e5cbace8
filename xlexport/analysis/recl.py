"""Relative effective context length (Dai et al. 2019, arXiv:1901.02860, section 4.3 and Appendix C).

For models i of a group, and tokens t of a text, let l_i(c, t) be the loss of t in nats with context length c.

    b(c, t)    = min_i l_i(c, t)                                      the group's best with the short context
    f_i(c, c') = mean over t in T of min(b(c, t), l_i(c', t))         T: the share r of tokens with the largest b(c, t)
    g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)     relative gain in perplexity

Begin with c = start and c' = c + step. If g_i(c, c') is below the threshold (0.01), c is the RECL of model i; otherwise
c' becomes the next c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlruntime.scores import perplexity

__all__ = ["THRESHOLD", "Recl", "RelativeGain", "find_recl", "hardest", "relative_gains"]

THRESHOLD = 0.01

Losses = npt.NDArray[np.floating]


@dataclass(frozen=True)
class RelativeGain:
    """The gain of a model with a longer context over the best of its group with a shorter context."""

    short: int
    """Context length c."""
    long: int
    """Context length c'."""
    baseline_nats: float
    """f(c, c), the same for every model of the group."""
    relative_nats: float
    """f_i(c, c')."""
    gain: float
    """g_i(c, c')."""
    perplexity_gain: float
    """exp f_i(c, c) - exp f_i(c, c'), as in the paper's Figure 3."""


@dataclass(frozen=True)
class Recl:
    """The relative effective context length of one model of a group, for one share of hard tokens."""

    hard: float
    """Share r of the tokens: the hardest ones with the shorter context."""
    recl: int | None
    """None if the gain was not below the threshold even at the longest context tried."""
    at_least: int
    """RECL, or the longest context tried if RECL is None."""
    gains: tuple[RelativeGain, ...]
    """Gains of every measured pair of lengths, including the pairs beyond the model's RECL."""


def hardest(baseline: Losses, share: float) -> npt.NDArray[np.int64]:
    """Return the places (n,) of the largest values in baseline (N,), where n is `share` of N, rounded, at least one.

    Earlier values come before equal later ones, so that the choice is deterministic.
    """
    count = max(1, round(share * len(baseline)))
    return np.argsort(-baseline, kind="stable")[:count]


def relative_gains(
    short: Sequence[Losses], long: Sequence[Losses], lengths: tuple[int, int], share: float
) -> list[RelativeGain]:
    """Return the gain of each model of a group.

    Args:
        short, long: for each model the losses (N,) of the same tokens in nats, with the shorter and the longer context.
        lengths: the lengths of the two contexts.
        share: the share of tokens that count: the hardest ones.
    """
    baseline = np.minimum.reduce([losses.astype(np.float64) for losses in short])
    places = hardest(baseline, share)
    best = baseline[places]
    before = float(best.mean())
    gains = []
    for losses in long:
        after = float(np.minimum(best, losses[places].astype(np.float64)).mean())
        # (e^before - e^after) / e^before, but without its rounding errors if both are nearly equal.
        gain = -math.expm1(after - before)
        gains.append(RelativeGain(*lengths, before, after, gain, gain * perplexity(before)))
    return gains


def find_recl(
    losses: Callable[[int], Sequence[Losses]],
    *,
    start: int,
    step: int,
    longest: int,
    shares: Sequence[float],
    threshold: float = THRESHOLD,
) -> list[list[Recl]]:
    """Try longer and longer contexts until no model gains more than the threshold.

    Args:
        losses: returns for a context length the losses (N,) of the same tokens in nats, for each model of the group.
            Called once for each length, in rising order; only the last two results are kept.
        start, step: the first length, and the increment.
        longest: the longest length to try.
        shares: the shares r of hard tokens.

    Returns:
        For each model, a result for each of `shares`.
    """
    short = losses(start)
    gains: list[list[list[RelativeGain]]] = [[[] for _ in shares] for _ in short]
    ends: list[list[int | None]] = [[None for _ in shares] for _ in short]
    at = start
    while at + step <= longest and any(end is None for row in ends for end in row):
        long = losses(at + step)
        for column, share in enumerate(shares):
            for row, gain in enumerate(relative_gains(short, long, (at, at + step), share)):
                gains[row][column].append(gain)
                if ends[row][column] is None and gain.gain < threshold:
                    ends[row][column] = at
        short, at = long, at + step
    return [
        [
            Recl(share, end, at if end is None else end, tuple(pairs))
            for share, end, pairs in zip(shares, row_ends, row_gains, strict=True)
        ]
        for row_ends, row_gains in zip(ends, gains, strict=True)
    ]
