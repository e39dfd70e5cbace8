"""Cut-offs by frequency against a search of all of them."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from xlexport.prepare.clusters import best_cutoffs


def work(counts: npt.NDArray[np.int64], cutoffs: tuple[int, ...]) -> float:
    """Return the mean number of logits of a token."""
    edges = (*cutoffs, len(counts))
    tails = sum(counts[first:end].sum() / counts.sum() * (end - first) for first, end in itertools.pairwise(edges))
    return edges[0] + (tails if cutoffs else 0)


@pytest.mark.parametrize("clusters", [2, 3, 4])
def test_no_other_cutoffs_are_less_work(clusters: int) -> None:
    counts = np.array([1000 // (rank + 1) for rank in range(30)])
    found = best_cutoffs(counts, clusters)
    assert len(found) == clusters - 1
    best = min(work(counts, cutoffs) for cutoffs in itertools.combinations(range(2, 30), clusters - 1))
    assert work(counts, found) == pytest.approx(best)


def test_few_tokens_and_one_cluster_need_no_cut() -> None:
    counts = np.ones(50_000, np.int64)
    assert best_cutoffs(counts, 1) == ()
    assert best_cutoffs(np.ones(2, np.int64), 4) == ()
    assert len(best_cutoffs(np.ones(4, np.int64), 4)) <= 2
    assert best_cutoffs(np.zeros(100, np.int64), 3)  # a text without any of them
