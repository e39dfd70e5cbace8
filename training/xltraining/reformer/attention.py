"""The attention blocks of a Reformer: shared query-key attention (LSH or full), and local attention.

Axes: B batch, S tokens of the segment, M rows of memory, K = M + S keys, D `d_model`, H heads, h `d_head`, R rounds.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.messages import renamed
from xltraining.reformer.angles import Angles
from xltraining.reformer.config import ReformerConfig
from xltraining.reformer.lsh import (
    Buckets,
    Dropout,
    band_attention,
    chunk_attention,
    draw_rotations,
    full_attention,
    hash_vectors,
    normalised_keys,
    paper_attention,
    shared_full_attention,
    unit_columns,
)

__all__ = [
    "Attended",
    "Context",
    "LocalAttention",
    "ReformerAttention",
    "SeparateAttention",
    "SharedAttention",
    "local_attention",
]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Attention": "ReformerAttention"})


@dataclass(frozen=True)
class Context:
    """The inputs of a layer's attention other than hidden states."""

    position: int
    """Tokens of the document before the segment."""
    rows: Tensor
    """(B,M,D): the attention's normalised input at the latest earlier tokens, oldest first."""
    buckets: Tensor | None = None
    """(B,H,R,M) int64: their bucket ids, in LSH layers."""
    rotations: Tensor | None = None
    """(H,R,h,columns): replace the layer's own; rows of memory are then hashed again."""


@dataclass(frozen=True)
class Attended:
    """The results of a layer's attention other than its output."""

    memory: tuple[Tensor, Tensor | None]
    """Rows and bucket ids for the next segment."""
    buckets: Tensor | None = None
    """(B,H,R,K) int64: the bucket ids that were used, memory's ids first."""
    hashed: Buckets | None = None
    """The segment's bucket ids, and the ids that the vectors alone would choose."""
    overflow: Tensor | None = None
    """(B,S) int64: pairs of head and round with keys to cover that the rule leaves out; see `lsh.py`."""


def _rotate(vectors: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of neighbours in vectors (B,H,N,h) by the angles of its position (N,h/2)."""
    sin, cos = turn.sin().to(vectors.dtype), turn.cos().to(vectors.dtype)  # (N,h/2)
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, *, position: int, chunk: int, chunks_before: int, dropout: Dropout
) -> Tensor:
    """Attend from a segment's rows to keys at or before each, in its own chunk and in the chunks before it.

    Chunks are counted from the document's beginning, so the result does not depend on where segments begin.

    Args:
        query: (B,H,S,h), scaled.
        key, value: (B,H,K,h), oldest first; the last S belong to the segment.
        position: tokens of the document before the segment.

    Returns:
        Attended values (B,H,S,h).
    """
    B, H, S, h = query.shape
    K = key.shape[2]
    seen = (chunks_before + 1) * chunk
    left = position % chunk  # places in the first chunk that belong to earlier tokens
    chunks = -(-(left + S) // chunk)
    right = chunks * chunk - left - S
    missing = left + chunks_before * chunk - (K - S)  # keys before the first that would be seen; below 0: superfluous
    queries = F.pad(query, (0, 0, left, right)).view(B, H, chunks, chunk, h)
    keys, values = (F.pad(part, (0, 0, missing, right)).unfold(2, seen, chunk) for part in (key, value))

    places = torch.arange(chunks * chunk, device=query.device).view(chunks, chunk, 1)
    key_places = torch.arange(-chunks_before * chunk, chunks * chunk, device=query.device).unfold(0, seen, chunk)[
        :, None
    ]
    hidden = (key_places > places) | (key_places < missing - chunks_before * chunk)  # (chunks,chunk,seen)
    # A finite number, because padding rows of the first chunk do not see any key.
    scores = (queries @ keys).masked_fill(hidden, torch.finfo(query.dtype).min)
    mixed = dropout(scores.softmax(dim=-1)) @ values.transpose(-1, -2)
    return mixed.flatten(2, 3)[:, :, left : left + S]


class ReformerAttention(nn.Module):
    """Base of all kinds of attention: normalised input, values, output map, and rows for the next segment."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        D, heads = config.d_model, config.n_head * config.d_head
        self.config = config
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.value = nn.Linear(D, heads, bias=False)
        self.output = nn.Linear(heads, D, bias=config.attention_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.dropatt = nn.Dropout(config.dropatt)
        self.angles = Angles(config.d_head) if config.position == "rotary" else None

    def _heads(self, rows: Tensor) -> Tensor:
        """Split rows (B,N,H*h) into heads (B,H,N,h)."""
        B, N, _ = rows.shape
        return rows.view(B, N, self.config.n_head, self.config.d_head).transpose(1, 2)

    def _out(self, mixed: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from the heads' attended values (B,H,S,h)."""
        return self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))

    def _placed(self, vectors: Tensor, first: int) -> Tensor:
        """Return vectors (B,H,N,h) of positions from `first` on, turned by their positions if these are rotary."""
        if self.angles is None:
            return vectors
        return _rotate(vectors, self.angles(torch.arange(first, first + vectors.shape[2], device=vectors.device)))

    def _kept(self, rows: Tensor, dim: int, count: int) -> Tensor:
        """Return a copy of the last `count` rows for the next segment: a view would keep the rest in memory."""
        N = rows.shape[dim]
        keep = 0 if self.config.whole_document else min(N, count)
        return rows.detach().narrow(dim, N - keep, keep).clone()


class _OwnKeys(ReformerAttention, ABC):
    """Attention whose queries and keys have projections of their own."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        heads = config.n_head * config.d_head
        self.query = nn.Linear(config.d_model, heads, bias=False)
        self.key = nn.Linear(config.d_model, heads, bias=False)

    def forward(
        self, hidden: Tensor, context: Context, forced: Tensor | None = None, known: Tensor | None = None
    ) -> tuple[Tensor, Attended]:
        """Return the block's output (B,S,D) from hidden (B,S,D), without buckets."""
        normed = self.norm(hidden)
        rows = torch.cat([context.rows, normed], dim=1)
        query = self._placed(self._heads(self.query(normed)), context.position) / math.sqrt(self.config.d_head)
        key = self._placed(self._heads(self.key(rows)), context.position - context.rows.shape[1])
        mixed, count = self._attend(query, key, self._heads(self.value(rows)), context.position)
        return self._out(mixed), Attended((self._kept(rows, 1, count), None))

    @abstractmethod
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, position: int) -> tuple[Tensor, int]:
        """Return what queries (B,H,S,h) attend to in memory and segment (B,H,M+S,h), and the number of rows to keep."""


class LocalAttention(_OwnKeys):
    """Attention to the query's own chunk and the chunks before it, with separate queries and keys."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, position: int) -> tuple[Tensor, int]:
        chunk, before = self.config.local_chunk_length, self.config.local_chunks_before
        mixed = local_attention(
            query, key, value, position=position, chunk=chunk, chunks_before=before, dropout=self.dropatt
        )
        return mixed, self.config.local_rows


class SeparateAttention(_OwnKeys):
    """Full attention of a Transformer: queries and keys of their own, and a token also sees itself."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, position: int) -> tuple[Tensor, int]:
        config = self.config
        reach = query.shape[2] if config.whole_document else config.mem_len
        mixed = full_attention(
            query, key, value, reach=reach, dropout=self.dropatt, itself=True, chunk=config.full_chunk
        )
        return mixed, config.mem_len


class SharedAttention(ReformerAttention):
    """Attention with shared queries and keys: by buckets, or (`full`) to all of the memory."""

    rotations: Tensor

    def __init__(self, config: ReformerConfig, layer: int) -> None:
        super().__init__(config)
        self.layer = layer
        self.hashes = config.attn_layers[layer] == "lsh"
        self.query_key = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        if self.hashes:
            self.register_buffer("rotations", self._first_rotations())

    def _first_rotations(self) -> Tensor:
        """Draw rotations (H,R,h,columns); on torch's device `meta`, return a tensor without data.

        So the shapes of an untrusted configuration take no memory before they are compared with its file.
        """
        config = self.config
        empty = torch.empty(config.n_head, config.n_hashes, config.d_head, config.rotation_columns, device="meta")
        return empty if torch.get_default_device().type == "meta" else self.drawn_rotations(config.n_hashes)

    def drawn_rotations(self, n_hashes: int) -> Tensor:
        """Draw rotations (H,R,h,columns) from the configuration's seed."""
        config = self.config
        columns, seed = config.rotation_columns, config.hash_seed
        return draw_rotations(config.n_head, config.d_head, columns, n_hashes, seed, self.layer)

    def fresh_rotations(self) -> Tensor | None:
        """Draw rotations (H,R,h,columns) from torch's generator for one training step; None without hashing."""
        return unit_columns(torch.randn_like(self.rotations)) if self.hashes else None

    def forward(
        self, hidden: Tensor, context: Context, forced: Tensor | None = None, known: Tensor | None = None
    ) -> tuple[Tensor, Attended]:
        """Return the block's output (B,S,D) from hidden (B,S,D).

        Args:
            forced: (B,H,R,S) bucket ids of the segment, instead of its vectors' own choice.
            known: (B,H,R,K) bucket ids of memory and segment from an earlier call, instead of hashing.
        """
        config = self.config
        S, M = hidden.shape[1], context.rows.shape[1]
        rows = torch.cat([context.rows, self.norm(hidden)], dim=1)
        query_key, value = self._heads(self.query_key(rows)), self._heads(self.value(rows))
        hashed = None
        query = self._placed(query_key, context.position - M)
        if self.hashes and known is None:
            hashed, known = self._hash(query if config.hash_turned else query_key, context, forced)
        key = normalised_keys(query)
        if config.scale_scores:
            query = query / math.sqrt(config.d_head)

        overflow = None
        if config.rule == "chunk":
            mixed = self._whole_pass(query, key, value, known)
            overflow = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        elif known is None:
            reach = S if config.whole_document else config.mem_len
            mixed = full_attention(
                query[:, :, M:], key, value, reach=reach, dropout=self.dropatt, chunk=config.full_chunk
            )
        elif config.rule == "paper":
            mixed, overflow = paper_attention(query, key, value, known, chunk=config.chunk_length, dropout=self.dropatt)
        else:
            mixed, overflow = band_attention(
                query,
                key,
                value,
                known,
                segment=S,
                window=config.chunk_length,
                reach=config.mem_len,
                dropout=self.dropatt,
            )
        kept_buckets = None if known is None else self._kept(known, 3, config.mem_len)
        memory = self._kept(rows, 1, config.mem_len), kept_buckets
        return self._out(mixed), Attended(memory, known, hashed, overflow)

    def _hash(self, query_key: Tensor, context: Context, forced: Tensor | None) -> tuple[Buckets, Tensor]:
        """Return the buckets of the segment's rows, and the bucket ids of all rows (B,H,R,K)."""
        M, factors = context.rows.shape[1], self.config.n_buckets
        rotations = self.rotations if context.rotations is None else context.rotations
        hashed = hash_vectors(query_key[:, :, M:], rotations, factors, forced)
        if context.rotations is not None:
            past = hash_vectors(query_key[:, :, :M], rotations, factors).used
        else:
            past = hashed.used[..., :0] if context.buckets is None else context.buckets
        return hashed, torch.cat([past, hashed.used], dim=-1)

    def _whole_pass(self, query: Tensor, key: Tensor, value: Tensor, buckets: Tensor | None) -> Tensor:
        """Compute rule `chunk`: pad as Hugging Face's model does, and attend fully if all rows fit into one chunk."""
        config, T = self.config, query.shape[2]
        chunk, fill = config.chunk_length, 0
        if buckets is not None:
            lengths = {"lsh": chunk, "local": config.local_chunk_length}
            shortest = min(length for kind, length in lengths.items() if kind in config.attn_layers)
            fill = -T % config.chunk_multiple if shortest < T else 0
        if buckets is None or T + fill <= chunk:
            return shared_full_attention(query, key, value, self_mask=config.self_mask, dropout=self.dropatt)
        query, key, value = (F.pad(part, (0, 0, 0, fill)) for part in (query, key, value))
        mixed = chunk_attention(
            query,
            key,
            value,
            F.pad(buckets, (0, fill), value=config.buckets),
            chunk=chunk,
            chunks_before=config.chunks_before,
            self_mask=config.self_mask,
            dropout=self.dropatt,
        )
        return mixed[:, :, :T]
