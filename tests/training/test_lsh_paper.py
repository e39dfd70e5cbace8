"""Rule `paper` of LSH attention against the formula of appendix A, written as loops over queries, rounds and keys."""

import pytest
import torch
from torch import Tensor

from tests.training.reformers import make, naive_forward, tokens_of
from tests.training.test_lsh import in_two_chunks, keep, random_buckets, united, vectors
from xltraining.errors import ConfigError
from xltraining.reformer import LSHTrace
from xltraining.reformer.lsh import normalised_keys, paper_attention


def attend(query: Tensor, value: Tensor, buckets: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    return paper_attention(query, normalised_keys(query), value, buckets, chunk=chunk, dropout=keep)


@pytest.mark.parametrize(
    ("rounds", "count", "chunk", "T"),
    [(1, 2, 5, 40), (2, 4, 8, 60), (3, 3, 4, 41), (4, 30, 3, 50), (2, 1, 7, 30), (1, 6, 64, 40), (2, 5, 1, 33)],
    ids=str,
)
def test_equals_the_direct_definition(rounds: int, count: int, chunk: int, T: int) -> None:
    query, value = vectors(1, 2, T, seed=1) * 2, vectors(1, 2, T, seed=2)
    buckets = random_buckets(1, 2, rounds, T, count=count)
    found, overflow = attend(query, value, buckets, chunk)
    total = torch.zeros(T, dtype=torch.int64)
    for head in range(2):
        covered, missed = in_two_chunks(buckets[0, head], chunk)
        total += torch.tensor(missed)
        expected = united(query[0, head], value[0, head], covered)
        # Both are sums of at most 60 terms of size 1 in float64.
        torch.testing.assert_close(found[0, head], expected, atol=1e-12, rtol=0)
    assert torch.equal(overflow[0], total)


@pytest.mark.full
def test_gradients() -> None:
    buckets = random_buckets(1, 2, 2, 14, count=3)
    query, value = vectors(1, 2, 14, seed=12).requires_grad_(), vectors(1, 2, 14, seed=13).requires_grad_()
    assert in_two_chunks(buckets[0, 0], 3)[1] != [0] * 14

    def by_chunks(query: Tensor, value: Tensor) -> Tensor:
        return attend(query, value, buckets, 3)[0]

    def by_loops(query: Tensor, value: Tensor) -> Tensor:
        covered = [in_two_chunks(buckets[0, head], 3)[0] for head in range(2)]
        return torch.stack([united(query[0, head], value[0, head], covered[head]) for head in range(2)])[None]

    assert torch.autograd.gradcheck(by_chunks, (query, value))
    weights = vectors(1, 2, 14, seed=14)
    found, expected = (
        torch.autograd.grad((way(query, value) * weights).sum(), (query, value)) for way in (by_chunks, by_loops)
    )
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


@torch.no_grad()
def test_a_model_equals_the_direct_definition() -> None:
    """Check all kinds of layers in one model: LSH layers by the formula, full layers over the whole document."""
    model, tokens = make(rule="paper", mem_len=3), tokens_of(1, 50)
    expected, expected_overflows = naive_forward(model, tokens[0])
    trace: list[LSHTrace] = []
    hidden, memory = model(tokens, trace=trace)
    torch.testing.assert_close(hidden[0], expected, atol=1e-10, rtol=0)
    assert torch.equal(torch.stack([entry.overflow[0] for entry in trace]), torch.stack(expected_overflows))
    assert any(overflow.any() for overflow in expected_overflows)
    assert memory.position == 0 and all(rows.shape[1] == 0 for rows, _ in memory.layers)


def test_documents_are_whole() -> None:
    model, tokens = make(rule="paper"), tokens_of(1, 20)
    carried = make()(tokens)[1]
    with pytest.raises(ConfigError, match="rule paper carries no memory between segments, found one of 20 tokens"):
        model(tokens, carried)
    assert model.memory_before(carried, 20) is None
    with pytest.raises(ConfigError, match="chunks_before must be 1 under rule paper, found 2"):
        make(rule="paper", chunks_before=2)
