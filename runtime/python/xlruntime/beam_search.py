"""Beam search: keep the likeliest beginnings of a target, and extend all of them by one token at a time.

A beginning that ends leaves the search and takes its place in the beam with it, so a beam of one is greedy search.
The length penalty is that of Wu et al. 2016 (arXiv:1609.08144), section 7, without its coverage term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .errors import OptionError

__all__ = ["Beam", "Hypothesis", "SearchOptions", "length_penalty"]


@dataclass(frozen=True)
class SearchOptions:
    """The settings of a search.

    Attributes:
        beams: beginnings that are kept; 1 is greedy search.
        length_penalty: exponent of the penalty; 0 compares log-probabilities, and larger ones prefer longer targets.
        max_tokens: most tokens of a target, its end included; None: as many as the model reads.

    Raises:
        OptionError: values are out of range; lists all of them.
    """

    beams: int = 1
    length_penalty: float = 0.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.beams < 1:
            problems.append(f"beams is {self.beams}, at least 1 is needed")
        if not 0 <= self.length_penalty < math.inf:
            problems.append(f"length_penalty is {self.length_penalty}, expected a number of at least 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            problems.append(f"max_tokens is {self.max_tokens}, at least 1 is needed")
        if problems:
            raise OptionError("search: " + "; ".join(problems) + ".")


@dataclass(frozen=True)
class Hypothesis:
    """A target that a search has found.

    Attributes:
        ids: its tokens, without the end.
        log_prob: natural logarithm of its probability, with the end if it has ended.
        score: `log_prob` / length penalty, by which targets are compared.
        ended: whether the model ended it; if not, it reached the longest length.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


def length_penalty(tokens: int, exponent: float) -> float:
    """Return ((5 + tokens) / 6) ^ exponent, by which the log-probability of a target is divided."""
    return float(((5 + tokens) / 6) ** exponent)


@dataclass
class Beam:
    """The search for one source's target.

    Attributes:
        options: its settings.
        end: id that ends a target.
        longest: most tokens of a target, its end included.
        ids: the beginnings that are extended, the likeliest first.
        log_probs: (n,) their log-probabilities.
        ended: the targets that have ended.
    """

    options: SearchOptions
    end: int
    longest: int
    ids: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    log_probs: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    ended: list[Hypothesis] = field(default_factory=list)

    def extend(self, log_probs: npt.NDArray[np.float64]) -> list[int]:
        """Extend all beginnings by the likeliest tokens.

        Equal ones are ordered by their beginnings, then by the ids of tokens, so results do not depend on chance.

        Args:
            log_probs: (n, V) of each token after each beginning; minus infinity forbids one.

        Returns:
            For each new beginning the index of the one that it extends. None are left if the search has ended.
        """
        totals = self.log_probs[:, None] + log_probs  # (n, V)
        parents, sums, before = [], [], self.ids
        self.ids = []
        for place in _largest(totals.ravel(), self.options.beams - len(self.ended)):
            parent, token = divmod(int(place), totals.shape[1])
            total = float(totals[parent, token])
            if token == self.end:
                self.ended.append(self._hypothesis(before[parent], len(before[parent]) + 1, total, True))
            else:
                parents.append(parent)
                sums.append(total)
                self.ids.append((*before[parent], token))
        self.log_probs = np.array(sums)
        return [] if self._is_over() else parents

    @property
    def best(self) -> Hypothesis:
        """The best target that has ended; if none has, the likeliest beginning."""
        if self.ended:
            return max(self.ended, key=lambda hypothesis: hypothesis.score)  # the first of equal ones
        return self._hypothesis(self.ids[0], len(self.ids[0]), float(self.log_probs[0]), False)

    def _is_over(self) -> bool:
        """Return whether no beginning is left that can be extended to a better target than the best one."""
        if not self.ids or len(self.ids[0]) == self.longest:
            return True
        # Log-probabilities only fall, and no penalty is larger than that of the longest target.
        bound = float(self.log_probs[0]) / length_penalty(self.longest, self.options.length_penalty)
        return bool(self.ended) and self.best.score >= bound

    def _hypothesis(self, ids: tuple[int, ...], tokens: int, log_prob: float, ended: bool) -> Hypothesis:
        return Hypothesis(ids, log_prob, log_prob / length_penalty(tokens, self.options.length_penalty), ended)


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the places of the `count` largest values above minus infinity, largest first, equal ones in order."""
    count = min(count, len(values))
    places = np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
    places = places[np.argsort(-values[places], kind="stable")][:count]
    return places[values[places] > -math.inf]
