"""LSH attention against definitions written as loops over queries, rounds and keys."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from xltraining.reformer.lsh import (
    band_attention,
    draw_rotations,
    full_attention,
    hash_vectors,
    normalised_keys,
)

H_D = 6  # d_head


def keep(weights: Tensor) -> Tensor:
    return weights


def vectors(*shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers (…,d_head) in float64."""
    return torch.randn(*shape, H_D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_buckets(*shape: int, count: int, seed: int = 7) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed))


def covered_keys(buckets: Tensor, query: int, window: int, reach: int) -> tuple[set[int], int]:
    """Return the keys that a query covers in buckets (R,K), and the number of rounds with more than `window` keys."""
    union: set[int] = set()
    overflow = 0
    for row in buckets.tolist():
        mates = [j for j in range(query) if row[j] == row[query] and query - j <= reach]
        overflow += len(mates) > window
        union |= set(mates[-window:])
    return union, overflow


def naive_band(query: Tensor, value: Tensor, buckets: Tensor, window: int, reach: int) -> tuple[Tensor, Tensor]:
    """Compute rule `band` of one row and head: values (K,h) and overflow (K,), from (K,h), (K,h) and (R,K)."""
    key = normalised_keys(query)
    rows, overflow = [], []
    for i in range(len(query)):
        keys, over = covered_keys(buckets, i, window, reach)
        chosen = sorted(keys) or [i]
        weights = (key[chosen] @ query[i]).softmax(0)
        rows.append(weights @ value[chosen])
        overflow.append(over)
    return torch.stack(rows), torch.tensor(overflow)


def band_by_segments(
    query: Tensor, value: Tensor, buckets: Tensor, lengths: Sequence[int], window: int, reach: int
) -> tuple[Tensor, Tensor]:
    """Compute rule `band` of (B,H,T,h) with `band_attention` by segments, each with the rows that memory would hold."""
    parts, overflows, end = [], [], 0
    for length in lengths:
        start, end = max(0, end - reach), end + length
        part = query[:, :, start:end]
        mixed, overflow = band_attention(
            part,
            normalised_keys(part),
            value[:, :, start:end],
            buckets[..., start:end],
            segment=length,
            window=window,
            reach=reach,
            dropout=keep,
        )
        parts.append(mixed)
        overflows.append(overflow)
    return torch.cat(parts, dim=2), torch.cat(overflows, dim=1)


@pytest.mark.parametrize(
    ("rounds", "count", "window", "reach"),
    [(1, 2, 5, 200), (2, 4, 8, 40), (3, 3, 4, 23), (4, 40, 3, 96), (2, 1, 7, 5), (1, 6, 64, 96)],
    ids=str,
)
def test_band_equals_the_direct_definition(rounds: int, count: int, window: int, reach: int) -> None:
    B, H, T = 1, 2, 96
    query, value = vectors(B, H, T, seed=1) * 2, vectors(B, H, T, seed=2)
    buckets = random_buckets(B, H, rounds, T, count=count)
    expected, expected_overflow = torch.zeros_like(query), torch.zeros(B, T, dtype=torch.int64)
    for b in range(B):
        for n in range(H):
            expected[b, n], overflow = naive_band(query[b, n], value[b, n], buckets[b, n], window, reach)
            expected_overflow[b] += overflow
    assert expected_overflow.any() == (window < min(reach, 64))
    for lengths in ([1] * 96, [7] * 13 + [5], [32] * 3, [96], [50, 1, 45]):
        mixed, overflow = band_by_segments(query, value, buckets, lengths, window, reach)
        # Both are sums of at most 96 terms of size 1 in float64.
        torch.testing.assert_close(mixed, expected, atol=1e-12, rtol=0)
        assert torch.equal(overflow, expected_overflow)


def united(query: Tensor, value: Tensor, covered: Sequence[Sequence[set[int]]]) -> Tensor:
    """Compute the last four equations of Appendix A: a softmax a round with m = log N_ij, combined by exp(z_r − z).

    Args:
        covered: for each query and round the earlier keys; a query without any attends to itself.
    """
    key, rows = normalised_keys(query), []
    for i, of_rounds in enumerate(covered):
        sets = [keys for keys in of_rounds if keys] or [{i}]  # m = 10^5 excludes the query if there is another key
        union = sorted(set().union(*sets))
        count = {j: sum(j in keys for keys in sets) for j in union}
        exponents = [torch.stack([query[i] @ key[j] - math.log(count[j]) for j in sorted(keys)]) for keys in sets]
        values = [value[sorted(keys)] for keys in sets]
        z_rounds = [terms.logsumexp(0) for terms in exponents]
        z = torch.stack([query[i] @ key[j] for j in union]).logsumexp(0)
        rounds = zip(exponents, values, z_rounds, strict=True)
        rows.append(sum((z_r - z).exp() * ((terms - z_r).exp() @ part) for terms, part, z_r in rounds))
    return torch.stack([torch.as_tensor(row) for row in rows])


def all_of_bucket(buckets: Tensor) -> list[list[set[int]]]:
    """Return all earlier keys of each query's bucket in each round of buckets (R,K)."""
    rounds = buckets.tolist()
    return [[{j for j in range(i) if row[j] == row[i]} for row in rounds] for i in range(buckets.shape[1])]


def in_two_chunks(buckets: Tensor, chunk: int) -> tuple[list[list[set[int]]], list[int]]:
    """Return the keys that each query covers in each round of buckets (R,T), and each query's overflow."""
    T = buckets.shape[1]
    places: list[list[int]] = []  # s_i of each round
    for row in buckets.tolist():
        order = sorted(range(T), key=lambda i: (row[i], i))
        places.append([order.index(i) for i in range(T)])
    covered, overflow = [], []
    for i, mates in enumerate(all_of_bucket(buckets)):
        of_rounds = [
            {j for j in keys if s[i] // chunk - 1 <= s[j] // chunk <= s[i] // chunk}
            for keys, s in zip(mates, places, strict=True)
        ]
        covered.append(of_rounds)
        overflow.append(sum(found != keys for found, keys in zip(of_rounds, mates, strict=True)))
    return covered, overflow


def test_band_in_float32_survives_large_scores() -> None:
    """Check that large masks cause no rounding errors with scores of ±1000 and rows without keys."""
    query, value = vectors(1, 2, 64, seed=10) * 1000, vectors(1, 2, 64, seed=11)
    buckets = random_buckets(1, 2, 3, 64, count=12)
    exact, _ = band_by_segments(query, value, buckets, [64], 3, 64)
    single, _ = band_by_segments(query.float(), value.float(), buckets, [64], 3, 64)
    # Scores of 1e3 are good to 1e-4 in float32, and so are weights of size 1.
    torch.testing.assert_close(single.double(), exact, atol=1e-3, rtol=0)


def test_dropout_acts_on_probabilities() -> None:
    """Check that dropout changes neither the sum of weights nor a row without keys."""
    query, value = vectors(1, 1, 12, seed=14), vectors(1, 1, 12, seed=15)
    key, buckets = normalised_keys(query), random_buckets(1, 1, 2, 12, count=3)
    plain, _ = band_by_segments(query, value, buckets, [12], 4, 12)
    doubled, _ = band_attention(
        query, key, value, buckets, segment=12, window=4, reach=12, dropout=lambda weights: 2 * weights
    )
    alone = torch.tensor([not covered_keys(buckets[0, 0], i, 4, 12)[0] for i in range(12)])
    assert 0 < alone.sum() < 12
    torch.testing.assert_close(doubled[0, 0], torch.where(alone[:, None], 1, 2) * plain[0, 0])


@pytest.mark.parametrize(("itself", "reach", "chunk"), [(False, 9, 7), (True, 50, 5), (False, 50, 1)])
def test_full_attention_by_chunks_equals_its_definition(itself: bool, reach: int, chunk: int) -> None:
    """Compare with loops over queries, gradients too; the scores of a chunk of queries are computed twice."""
    M, S = 6, 20
    query, key, value = (vectors(1, 1, M + S, seed=seed).requires_grad_() for seed in (1, 2, 3))
    rows = []
    for i in range(M, M + S):
        chosen = list(range(max(0, i - reach), i + itself)) or [i]
        rows.append((key[0, 0, chosen] @ query[0, 0, i]).softmax(0) @ value[0, 0, chosen])
    expected, weight = torch.stack(rows), vectors(S, seed=4)
    calls = []

    def counted(weights: Tensor) -> Tensor:
        calls.append(tuple(weights.shape[2:]))
        return weights

    found = full_attention(query[:, :, M:], key, value, reach=reach, dropout=counted, itself=itself, chunk=chunk)
    torch.testing.assert_close(found[0, 0], expected, atol=1e-12, rtol=0)
    first = len(calls)
    ours, theirs = (torch.autograd.grad((each * weight).sum(), [query, key, value]) for each in (found, expected))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, atol=1e-12, rtol=0)
    assert len(calls) == 2 * first == 2 * -(-S // chunk)
    assert max(queries for queries, _ in calls) == chunk
    assert max(keys for _, keys in calls) <= min(M + S, reach + chunk)


def test_rotations_have_unit_columns_and_are_nested() -> None:
    eight, four = (draw_rotations(2, 16, 6, rounds, seed=3, layer=1) for rounds in (8, 4))
    assert eight.shape == (2, 8, 16, 6) and eight.dtype == torch.float32
    assert torch.equal(eight[:, :4], four)
    torch.testing.assert_close(eight.norm(dim=2), torch.ones(2, 8, 6))


def test_rotations_differ_by_seed_layer_round_and_head() -> None:
    first = draw_rotations(2, 16, 6, 2, seed=3, layer=1)
    others = [draw_rotations(2, 16, 6, 2, seed=3, layer=2), draw_rotations(2, 16, 6, 2, seed=4, layer=1)]
    others += [draw_rotations(2, 16, 6, 2, seed=3 + 2**32, layer=1), first.flip(0), first.flip(1)]
    assert not any(torch.isclose(first, other).any() for other in others)
    assert torch.equal(draw_rotations(2, 16, 6, 2, seed=3, layer=1), first)  # of the seed alone


def naive_bucket(vector: Tensor, rotation: Tensor, factors: Sequence[int]) -> int:
    """Return the bucket of a vector (h,) under a rotation (h,columns)."""
    bucket, product, column = 0, 1, 0
    for factor in factors:
        values = (vector @ rotation[:, column : column + factor // 2]).tolist()
        values += [-number for number in values]
        bucket += product * values.index(max(values))
        product, column = product * factor, column + factor // 2
    return bucket


@pytest.mark.parametrize("factors", [(2,), (8,), (4, 6), (2, 4, 8)], ids=str)
def test_buckets_equal_the_direct_definition(factors: tuple[int, ...]) -> None:
    rotations = draw_rotations(2, H_D, sum(factors) // 2, 3, seed=0, layer=0).double()
    rows = vectors(2, 2, 11, seed=24)
    hashed = hash_vectors(rows, rotations, factors)
    expected = [
        [[[naive_bucket(rows[b, n, s], rotations[n, r], factors) for s in range(11)] for r in range(3)] for n in (0, 1)]
        for b in (0, 1)
    ]
    assert hashed.own.tolist() == expected and torch.equal(hashed.used, hashed.own)
    assert not hashed.margin.any()


def test_forced_buckets_are_used_and_judged() -> None:
    factors = (4, 6)
    rotations = draw_rotations(1, H_D, 5, 1, seed=0, layer=0).double()
    rows = vectors(1, 1, 40, seed=25)
    own = hash_vectors(rows, rotations, factors).own
    forced = own.clone()
    forced[..., 3] = (own[..., 3] + 1) % 4 + own[..., 3] // 4 * 4  # another digit of the first factor
    hashed = hash_vectors(rows, rotations, factors, forced)
    assert torch.equal(hashed.used, forced) and torch.equal(hashed.own, own)
    values = rows[0, 0, 3] @ rotations[0, 0, :, :2]
    both = torch.cat([values, -values])
    expected = (both.max() - both[forced[0, 0, 0, 3] % 4]) / both.max()
    torch.testing.assert_close(hashed.margin[0, 0, 0, 3], expected)
    assert expected > 0 and hashed.margin.count_nonzero() == 1


def test_keys_have_length_one() -> None:
    """Check the length 1, up to the epsilon, which is relative to the mean square."""
    rows = vectors(50, seed=26)
    expected = rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() / H_D**0.5
    torch.testing.assert_close(normalised_keys(rows), expected)
    torch.testing.assert_close(
        normalised_keys(rows).norm(dim=-1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0
    )
