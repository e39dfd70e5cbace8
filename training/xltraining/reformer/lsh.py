"""Locality-sensitive hashing attention (Kitaev et al. 2020, arXiv:2001.04451, section 2 and appendix A).

Axes: B batch, H heads, R rounds of hashing, S tokens of the segment, K keys (rows of memory, then the segment's, oldest
first), h `d_head`, W window or chunk length.

Queries and keys are shared: query i is q_i, key j is `normalised_keys(q)_j`, and the score of a pair is their product.
A hash round puts each row into the bucket `argmax [q Rot, -q Rot]`. Three rules say which keys a query then covers.

**band**: in each round, the latest W earlier keys of the query's own bucket that are at most `reach` tokens old. One
softmax covers the keys of all rounds, each counted once (the paper's 1/N_ij). A query without any such key attends to
itself. This rule is causal and does not depend on how a document is cut into segments. If no query has more than W
such keys in a round, it is the paper's formula over the last `reach` keys.

**paper**: the rule of the paper and of trax's first code. In each round, the rows are sorted by bucket and place and
cut into chunks of W. A query covers the earlier keys of its own bucket in its own chunk and in the one before. All else
is as in `band`. A query covers from W to 2W − 1 such keys, if there are as many, so never fewer than under `band`. How
many depends on where a chunk begins, and so on the buckets of later tokens: each call is a whole document.

**chunk**: the rule of Hugging Face's model, trax's later code and reformer-pytorch. Rows are sorted by bucket and cut
into chunks. A query sees the earlier rows of its own chunk and of the chunks before it, in any bucket, around the ends
and into the round before. A key counts once for each round. The covered keys also depend on later tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from xltraining.layers.seeds import generator_of

__all__ = [
    "Buckets",
    "Dropout",
    "band_attention",
    "chunk_attention",
    "draw_rotations",
    "full_attention",
    "hash_vectors",
    "normalised_keys",
    "paper_attention",
    "shared_full_attention",
    "unit_columns",
]

_HIDDEN = -1e9  # rule `chunk`: replaces the score of a later key, as in Hugging Face's model
_KEY_EPSILON = 1e-6

Dropout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Buckets:
    """Bucket ids of a segment's rows."""

    used: Tensor
    """(B,H,R,S) int64: the ids that attention uses."""
    own: Tensor
    """(B,H,R,S) int64: the ids that the vectors alone would choose."""
    margin: Tensor
    """(B,H,R,S): (best − value of the used bucket) / best, the largest of all factors; 0 if both agree."""
    lead: Tensor
    """(B,H,R,S): (best − next) / best, the smallest of all factors; infinite if no ids are forced."""


def draw_rotations(n_head: int, d_head: int, columns: int, n_hashes: int, seed: int, layer: int) -> Tensor:
    """Draw the rotations (H, R, h, columns) of a layer, float32, with columns of unit length.

    Each round has its own seed, so that the rotations for 8 rounds begin with those for 4. Columns of equal length give
    buckets of equal expected size: with plain Gaussian columns, the sizes follow the columns' lengths.
    """
    generators = (generator_of(seed, layer, index) for index in range(n_hashes))
    rounds = [torch.randn(n_head, d_head, columns, generator=each, device="cpu") for each in generators]
    return unit_columns(torch.stack(rounds, dim=1))


def unit_columns(rotations: Tensor) -> Tensor:
    """Scale the columns of rotations (H,R,h,columns) to length 1."""
    return rotations / rotations.norm(dim=2, keepdim=True)


def normalised_keys(query: Tensor) -> Tensor:
    """Return keys (…,h) from shared query-keys (…,h): of length 1, except for the epsilon of Hugging Face's model."""
    return query * torch.rsqrt(query.square().mean(dim=-1, keepdim=True) + _KEY_EPSILON) / math.sqrt(query.shape[-1])


@torch.no_grad()
def hash_vectors(vectors: Tensor, rotations: Tensor, n_buckets: Sequence[int], forced: Tensor | None = None) -> Buckets:
    """Return the buckets of vectors (B,H,S,h) under rotations (H,R,h,columns).

    Each factor f of `n_buckets` takes the next f/2 columns; the first factor is the least significant digit of the
    bucket id.

    Args:
        forced: (B,H,R,S) int64: ids to use instead of the vectors' own choice.
    """
    with torch.autocast(vectors.device.type, enabled=False):  # coarser numbers would give ties
        rotated = torch.einsum("bhsd,hrdc->bhrsc", vectors.to(rotations.dtype), rotations)
    own = torch.zeros(rotated.shape[:-1], dtype=torch.int64, device=vectors.device)
    margin, lead = rotated.new_zeros(rotated.shape[:-1]), rotated.new_full(rotated.shape[:-1], math.inf)
    product = 1
    for factor, half in zip(n_buckets, rotated.split([count // 2 for count in n_buckets], dim=-1), strict=True):
        values = torch.cat([half, -half], dim=-1)  # (B,H,R,S,factor)
        digit = values.argmax(dim=-1)
        own += product * digit
        if forced is not None:
            best, following = values.topk(2, dim=-1).values.unbind(dim=-1)
            taken = values.gather(-1, (forced // product % factor)[..., None])[..., 0]
            unit = best.clamp(min=torch.finfo(best.dtype).tiny)
            margin, lead = margin.maximum((best - taken) / unit), lead.minimum((best - following) / unit)
        product *= factor
    return Buckets(own if forced is None else forced, own, margin, lead)


def band_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Tensor,
    *,
    segment: int,
    window: int,
    reach: int,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """Compute rule `band` for the last `segment` of K rows.

    Args:
        query, key, value: (B,H,K,h), oldest first.
        buckets: (B,H,R,K) int64.
        window: W, the largest number of keys that a query covers in a round.
        reach: M, the largest age of a key in tokens.
        dropout: applied to attention probabilities.

    Returns:
        The attended values of the segment's rows (B,H,S,h), and the number of pairs of head and round with more than W
        keys to cover (B,S) int64.
    """
    rank, first = _ranks(buckets, reach)
    low = first.maximum(rank - window)
    overflow = (low > first)[..., -segment:].sum(dim=(1, 2))
    return _attend_covered(query, key, value, rank, low, segment, window, dropout), overflow


def paper_attention(
    query: Tensor, key: Tensor, value: Tensor, buckets: Tensor, *, chunk: int, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """Compute rule `paper` for a whole document of T rows.

    Args:
        query, key, value: (B,H,T,h).
        buckets: (B,H,R,T) int64.
        chunk: W, the number of rows in a chunk.

    Returns:
        Attended values (B,H,T,h), and (B,T) int64: the number of pairs of head and round in which earlier keys of the
        query's bucket lie before its two chunks.
    """
    T = query.shape[2]
    rank, first = _ranks(buckets, T)
    low = first.maximum((rank.div(chunk, rounding_mode="floor") - 1) * chunk)
    overflow = (low > first).sum(dim=(1, 2))
    return _attend_covered(query, key, value, rank, low, T, chunk, dropout), overflow


def _attend_covered(
    query: Tensor, key: Tensor, value: Tensor, rank: Tensor, low: Tensor, segment: int, window: int, dropout: Dropout
) -> Tensor:
    """Return the attended values (B,H,S,h) of the last S rows under one softmax over all rounds, each key once.

    Args:
        rank: (B,H,R,K), the place of each row in its round's order.
        low: (B,H,R,K): a row covers the rows of ranks low … rank − 1, none of them before the chunk before its own.
        window: W, the rows of a chunk.
    """
    S, R = segment, rank.shape[2]
    alone = (low == rank)[..., -S:].all(dim=2)[..., None]  # (B,H,S,1)
    rounds = [_attend_round(query, key, value, rank, low, index, S, window, dropout) for index in range(R)]
    highest = torch.stack([top for top, _, _ in rounds]).amax(dim=0)
    shares = [(top - highest).exp() for top, _, _ in rounds]
    total = sum(share * mass for share, (_, mass, _) in zip(shares, rounds, strict=True))
    mixed = sum(share * part for share, (_, _, part) in zip(shares, rounds, strict=True))
    assert isinstance(total, Tensor) and isinstance(mixed, Tensor)
    return torch.where(alone, value[:, :, -S:], mixed / total.masked_fill(alone, 1.0))


@torch.no_grad()
def _ranks(buckets: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Return the place of each row in the order of (bucket, age), and of its oldest key in reach, both (B,H,R,K)."""
    K = buckets.shape[-1]
    rows = torch.arange(K, device=buckets.device)
    keys, order = (buckets * K + rows).sort(
        dim=-1
    )  # unique, so that the order does not depend on how a sort treats ties
    rank = torch.empty_like(order).scatter_(-1, order, rows.expand_as(order))
    return rank, torch.searchsorted(keys, buckets * K + (rows - reach).clamp(min=0))


def _attend_round(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rank: Tensor,
    low: Tensor,
    index: int,
    segment: int,
    window: int,
    dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return one round's highest score (constant) and sum of weights, (B,H,S,1), and weighted values (B,H,S,h).

    Sorted rows are cut into chunks of W. The W rows before a row are in its chunk and the chunk before. An earlier
    round's keys do not count again.
    """
    B, H, K, h = query.shape
    S, W = segment, window
    chunks = -(-K // W)
    place = rank[:, :, index]  # (B,H,K)
    with torch.no_grad():
        order = torch.empty_like(place).scatter_(-1, place, torch.arange(K, device=place.device).expand_as(place))
        # Copies of row 0 fill up the chunks; their ranks, below 0 or from K on, exclude them.
        of_query = F.pad(order, (0, chunks * W - K))
        of_key = F.pad(of_query, (W, 0))
        places = torch.arange(chunks * W, device=place.device).view(chunks, W, 1)
        key_places = torch.arange(-W, chunks * W, device=place.device).unfold(-1, 2 * W, W)[:, None]  # (chunks,1,2W)

        def at(row: Tensor) -> Tensor:
            return row.gather(-1, of_query).view(B, H, chunks, W, 1)

        covered = (key_places >= at(low[:, :, index])) & (key_places < places)  # (B,H,chunks,W,2W)
        for earlier in range(index):
            theirs = rank[:, :, earlier]
            other = theirs.gather(-1, of_key).unfold(-1, 2 * W, W)[..., None, :]  # (B,H,chunks,1,2W)
            covered &= (other < at(low[:, :, earlier])) | (other >= at(theirs))

    queries = _rows(query, of_query).view(B, H, chunks, W, h)
    keys = _rows(key, of_key).unfold(2, 2 * W, W)  # (B,H,chunks,h,2W)
    values = _rows(value, of_key).unfold(2, 2 * W, W).transpose(-1, -2)  # (B,H,chunks,2W,h)
    scores = (queries @ keys).masked_fill(~covered, -math.inf)
    # If a query covers no key, its highest score is a finite number, and every weight exp(−inf) = 0.
    top = scores.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - top).exp()
    mass, mixed = weights.sum(dim=-1, keepdim=True), dropout(weights) @ values
    unsorted = place[..., -S:]
    return tuple(_rows(part.flatten(2, 3), unsorted) for part in (top, mass, mixed))  # type: ignore[return-value]


def _rows(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows (B,H,M,h) at the places `index` (B,H,M) of rows (B,H,K,h)."""
    return rows.gather(2, index[..., None].expand(*index.shape, rows.shape[-1]))


def full_attention(
    query: Tensor, key: Tensor, value: Tensor, *, reach: int, dropout: Dropout, itself: bool = False, chunk: int = 0
) -> Tensor:
    """Attend from the last S of K rows to all earlier keys of age at most `reach`, or to itself if there is none.

    Args:
        query: (B,H,S,h).
        key, value: (B,H,K,h), oldest first.
        itself: whether a query always sees its own key, too.
        chunk: queries that are computed at a time; 0: all. The backward pass computes their scores again, so that no
            S × K matrix is kept.

    Returns:
        Attended values (B,H,S,h).
    """
    S, K = query.shape[2], key.shape[2]
    if not 0 < chunk < S:
        return _attend_to_reach(query, key, value, K - S, reach, itself, dropout)
    parts = []
    for start in range(0, S, chunk):
        end = min(start + chunk, S)
        oldest = max(0, K - S + start - reach)
        rows = slice(oldest, K - S + end)
        inputs = query[:, :, start:end], key[:, :, rows], value[:, :, rows], K - S + start - oldest
        if torch.is_grad_enabled():
            parts.append(checkpoint(_attend_to_reach, *inputs, reach, itself, dropout, use_reentrant=False))
        else:
            parts.append(_attend_to_reach(*inputs, reach, itself, dropout))
    return torch.cat(parts, dim=2)


def _attend_to_reach(
    query: Tensor, key: Tensor, value: Tensor, first: int, reach: int, itself: bool, dropout: Dropout
) -> Tensor:
    """Return attended values (B,H,S,h) of queries whose own keys begin at place `first` of K."""
    S, K = query.shape[2], key.shape[2]
    age = torch.arange(first, first + S, device=query.device)[:, None] - torch.arange(K, device=query.device)  # (S,K)
    hidden = (age < (0 if itself else 1)) | (age > reach)
    alone = hidden.all(dim=-1, keepdim=True)
    scores = (query @ key.transpose(-1, -2)).masked_fill(hidden & ~alone, -math.inf)
    mixed: Tensor = dropout(scores.softmax(dim=-1)) @ value
    return mixed if itself else torch.where(alone, value[:, :, first : first + S], mixed)


def chunk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Tensor,
    *,
    chunk: int,
    chunks_before: int,
    self_mask: float,
    dropout: Dropout,
) -> Tensor:
    """Compute rule `chunk` for T rows; T must be a multiple of `chunk`.

    Args:
        query, key, value: (B,H,T,h); padding rows are at the end.
        buckets: (B,H,R,T) int64; padding rows are in a bucket above all others.
        self_mask: replaces a row's score with itself.
        dropout: applied to attention probabilities.

    Returns:
        Attended values (B,H,T,h).
    """
    B, H, T, h = query.shape
    R = buckets.shape[2]
    rows = torch.arange(T, device=query.device)
    with torch.no_grad():
        order = (buckets * T + rows).argsort(dim=-1)  # (B,H,R,T)
        inverse = torch.empty_like(order).scatter_(-1, order, rows.expand_as(order))
        # Chunks follow one another through all the rounds.
        order = order.flatten(2)  # (B,H,R*T)
        unsorted = (inverse + T * torch.arange(R, device=query.device)[:, None]).flatten(2)  # (B,H,R*T)
        places = order.view(B, H, -1, chunk)
        places_seen = _with_chunks_before(places, chunks_before)

    def chunked(part: Tensor) -> Tensor:
        return _rows(part, order).view(B, H, -1, chunk, h)

    keys, values = (_with_chunks_before(chunked(part), chunks_before) for part in (key, value))
    scores = chunked(query) @ keys.transpose(-1, -2)  # (B,H,R*T/chunk,chunk,(before+1)*chunk)
    attended, mass = _attend_masked(scores, values, places, places_seen, self_mask, dropout)
    attended = _rows(attended.flatten(2, 3), unsorted).view(B, H, R, T, h)
    mass = _rows(mass.flatten(2, 3), unsorted).view(B, H, R, T, 1)
    return (attended * (mass - mass.logsumexp(dim=2, keepdim=True)).exp()).sum(dim=2)


def shared_full_attention(query: Tensor, key: Tensor, value: Tensor, *, self_mask: float, dropout: Dropout) -> Tensor:
    """Compute rule `chunk` without hashing: all rows (B,H,T,h) see earlier ones, and themselves with `self_mask`."""
    places = torch.arange(query.shape[2], device=query.device)
    return _attend_masked(query @ key.transpose(-1, -2), value, places, places, self_mask, dropout)[0]


def _with_chunks_before(chunks: Tensor, before: int) -> Tensor:
    """Prepend to each chunk (B,H,N,chunk,…) the ones before it, around the end: (B,H,N,(before+1)*chunk,…)."""
    seen = [torch.cat([chunks[:, :, -back:], chunks[:, :, :-back]], dim=2) for back in range(before, 0, -1)]
    return torch.cat([*seen, chunks], dim=3)


def _attend_masked(
    scores: Tensor, value: Tensor, places: Tensor, places_seen: Tensor, self_mask: float, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """Return attended values (…,h) and the log of the sum of weights (…,1), rounded as in Hugging Face's model.

    Its large mask values cause rounding errors in rows that see few other rows; these errors are part of the model.
    """
    scores = scores.masked_fill(places[..., :, None] < places_seen[..., None, :], _HIDDEN)
    scores = scores.masked_fill(places[..., :, None] == places_seen[..., None, :], self_mask)
    mass = scores.logsumexp(dim=-1, keepdim=True)
    return dropout((scores - mass).exp()) @ value, mass
