"""Rule band of the step graphs against its definition as loops: both forms, all segmentations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.helpers.tiers import thinned
from tests.training.test_lsh import naive_band
from xlexport.families.reformer.attention import Reach
from xlexport.families.ring import RingStep

H, R, d = 2, 3, 8
FORMS = {"long": False, "few": True}


@dataclass(frozen=True)
class Document:
    """Vectors and bucket ids of T tokens: (B, H, T, d) and (B, H, R, T)."""

    query: Tensor
    value: Tensor
    buckets: Tensor
    n_buckets: int

    @property
    def key(self) -> Tensor:
        return self.query / self.query.norm(dim=-1, keepdim=True)

    def __len__(self) -> int:
        return self.query.shape[2]


def make_document(T: int, n_buckets: int, B: int = 2, seed: int = 0) -> Document:
    draw = torch.Generator().manual_seed(seed)
    query, value = 3 * torch.randn(B, H, T, d, generator=draw), torch.randn(B, H, T, d, generator=draw)
    return Document(query, value, torch.randint(0, n_buckets, (B, H, R, T), generator=draw), n_buckets)


def defined(document: Document, reach: int, W: int, rounds: int = R) -> tuple[Tensor, Tensor]:
    """Compute the rule by its definition, in float64; without overflow it is the paper's formula."""
    query, value = document.query.double(), document.value.double()
    out, overflow = torch.empty_like(value), torch.zeros(len(query), len(document), dtype=torch.int64)
    for b in range(len(query)):
        for h in range(H):
            out[b, h], missed = naive_band(query[b, h], value[b, h], document.buckets[b, h, :rounds], W, reach)
            overflow[b] += missed
    return out, overflow


def walk(
    document: Document, lengths: list[int], mem_len: int, W: int, *, few: bool, rounds: int = R, offset: int = 0
) -> tuple[Tensor, Tensor]:
    """Walk a document on one ring, in segments that cycle through `lengths`."""
    B, T = len(document.query), len(document)
    C = mem_len + max(lengths)
    key, value = torch.zeros(B, H, C, d), torch.zeros(B, H, C, d)
    buckets = torch.zeros(B, H, R, C, dtype=torch.int32)
    outs, overflows, start, index = [], [], 0, 0
    while start < T:
        S = min(lengths[index % len(lengths)], T - start)
        part = slice(start, start + S)
        ring = RingStep(S, C, torch.tensor([offset + start]))
        place = torch.full((B,), start)
        reach = Reach(place, torch.tensor([mem_len + 1]), torch.tensor([rounds]), ring, few)
        own = document.buckets[..., part].int()
        key = ring.write(key, document.key[:, :, part], 2)
        value = ring.write(value, document.value[:, :, part], 2)
        buckets = ring.write(buckets, own, 3)
        query, own_value = document.query[:, :, part], document.value[:, :, part]
        length = query.norm(dim=-1)
        out, overflow = reach.attend(key, value, buckets, length, own_value, W, document.n_buckets)
        outs.append(out)
        overflows.append(overflow)
        start, index = start + S, index + 1
    return torch.cat(outs, dim=2), torch.cat(overflows, dim=1)


@dataclass(frozen=True)
class Case:
    """A document, its segments, and the sizes of the rule."""

    lengths: tuple[int, ...]
    T: int = 150
    n_buckets: int = 4
    mem_len: int = 40
    W: int = 8
    rounds: int = R
    scale: float = 1.0  # of the queries
    tolerance: float = 1e-5  # float32 rounding of scores up to 25 gives about 2e-6


CASES = [
    *(Case(lengths) for lengths in ((1,), (7,), (32,), (96,), (150,), (5, 1, 17, 64))),
    *(Case((16,), T=60, rounds=rounds) for rounds in (1, 2)),
    # Queries of length 300 whose only keys may point the other way: scores of several thousand round by 1e-4.
    Case((16,), T=64, n_buckets=8, scale=100, tolerance=5e-3),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", thinned(CASES, CASES[1::2]), ids=str)
def test_against_the_definition(case: Case, form: str) -> None:
    drawn = make_document(case.T, case.n_buckets)
    document = replace(drawn, query=drawn.query * case.scale)
    wanted, overflow = defined(document, case.mem_len, case.W, case.rounds)
    attended, counted = walk(document, [*case.lengths], case.mem_len, case.W, few=FORMS[form], rounds=case.rounds)
    assert (attended - wanted).abs().max() < case.tolerance
    assert torch.equal(counted, overflow)
    assert case.T < 150 or overflow.sum() > 500


@pytest.mark.parametrize("form", FORMS)
def test_without_overflow_it_is_the_papers_formula_unscaled(form: str) -> None:
    """Choose a window that holds all tokens of a bucket within reach, so that none is omitted."""
    document = make_document(96, 16)
    wanted, missed = defined(document, 32, 16)
    attended, overflow = walk(document, [24], 32, 16, few=FORMS[form])
    assert overflow.sum() == missed.sum() == 0
    assert (attended - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_where_the_ring_begins_does_not_matter(form: str) -> None:
    document = make_document(80, 4)
    first, _ = walk(document, [16], 40, 8, few=FORMS[form])
    for offset in (-5, 13, 10**12):
        shifted, _ = walk(document, [16], 40, 8, few=FORMS[form], offset=offset)
        assert (first - shifted).abs().max() < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_batch_at_different_positions(form: str) -> None:
    """Check that a row that begins a document does not see the earlier content of its ring."""
    document, mem_len, W, S = make_document(48, 4), 40, 8, 16
    C = mem_len + S
    key, value = torch.randn(2, H, C, d), torch.randn(2, H, C, d)
    buckets = torch.randint(0, 4, (2, H, R, C), dtype=torch.int32)
    ring = RingStep(S, C, torch.tensor([1000]))
    part = slice(0, S)
    own = document.buckets[..., part].int()
    key, value = ring.write(key, document.key[:, :, part], 2), ring.write(value, document.value[:, :, part], 2)
    buckets = ring.write(buckets, own, 3)
    reach = Reach(torch.tensor([0, 25]), torch.tensor([mem_len + 1]), torch.tensor([R]), ring, FORMS[form])
    query, own_value = document.query[:, :, part], document.value[:, :, part]
    out, _ = reach.attend(key, value, buckets, query.norm(dim=-1), own_value, W, 4)
    first, _ = defined(Document(query, own_value, document.buckets[..., part], 4), mem_len, W)
    assert (out[0] - first[0]).abs().max() < 1e-5
    assert (out[1] - first[1]).abs().max() > 0.1  # the other row does see them
