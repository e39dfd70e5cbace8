"""Cut a vocabulary into clusters by frequency, so that the expected work of the output layer is smallest."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_CLUSTERS", "best_cutoffs"]

MOST_CLUSTERS = 5
CANDIDATES = 80  # places for a cut, at rising distances


def best_cutoffs(counts: npt.NDArray[np.int64], clusters: int) -> tuple[int, ...]:
    """Return where clusters begin, after Grave et al. 2017 (arXiv:1609.04309), section 4.3.

    A token costs the logits that are computed for it: the shortlist and a slot for each tail, and if it is in a tail,
    the tail's own. Places are tried at equal ratios of ids. Dynamic programming finds the best of them.

    Args:
        counts: (V,) how often each token occurs; frequent ones should have low ids.
        clusters: number of clusters, the shortlist included.

    Returns:
        `clusters` - 1 rising ids; fewer if there are fewer places.
    """
    V = len(counts)
    below = np.concatenate([[0.0], np.cumsum(counts) / max(1, counts.sum())])  # share of tokens with a lower id
    places = sorted({int(place) for place in np.geomspace(2, V - 1, CANDIDATES)}) if V > 2 else []
    tails = min(clusters - 1, len(places))
    # cost[i]: of everything from places[i] on, cut into so many tails.
    cost = [float(1 - below[first]) * (V - first) for first in places]
    choice: list[list[int]] = []
    for _ in range(tails - 1):
        options = [
            [
                float(below[end] - below[first]) * (end - first) + after
                for end, after in zip(places[index + 1 :], cost[index + 1 :], strict=True)
            ]
            for index, first in enumerate(places)
        ]
        picked = [int(np.argmin(row)) if row else -1 for row in options]
        choice.append([index + 1 + pick if pick >= 0 else -1 for index, pick in enumerate(picked)])
        cost = [row[pick] if row else float("inf") for row, pick in zip(options, picked, strict=True)]
    if not tails:
        return ()
    at = int(np.argmin([first + after for first, after in zip(places, cost, strict=True)]))
    edges = itertools.accumulate(reversed(choice), lambda index, later: later[index], initial=at)
    return tuple(places[index] for index in edges)
