"""Batches of prepared tokens: parallel streams of the text in its order, or of its documents in a shuffled order.

A batch depends only on its number. So a checkpoint saves only this number, and any division of the rows among
processes gives the same batches.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from xltraining.data.byte_streams import check_length
from xltraining.data.token_shards import Split, TokenIds
from xltraining.errors import DataError

__all__ = ["OrderedStreams", "ShuffledStreams", "TokenStreams"]


class TokenStreams(Protocol):
    """A source of batches."""

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""


class OrderedStreams:
    """Batches whose rows walk the text in parallel, as `xltraining.data.byte_streams.ByteStreams` do.

    The text is a ring, and the seed decides where it starts. Row b begins b/B of the way round, and never jumps.
    """

    def __init__(self, split: Split, batch_size: int, segment_len: int, seed: int, n_token: int) -> None:
        """Walk a split.

        Raises:
            DataError: it is too short to give each row a segment of its own.
        """
        check_length(f"{split.folder}: the training text", len(split), "tokens", batch_size, segment_len)
        self.split, self.segment_len, self.n_token = split, segment_len, n_token
        generator = torch.Generator().manual_seed(seed)
        start = int(torch.randint(len(split), (1,), generator=generator))
        self._starts = [start + row * (len(split) // batch_size) for row in range(batch_size)]

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        at = step * self.segment_len
        read = [self.split.read(start + at, self.segment_len + 1) for start in self._starts[rows]]
        return _pair(read, self.n_token)


class ShuffledStreams:
    """Batches whose rows walk an endless text: all documents in one random order, then all in another, and so on.

    Row b begins b/B of the way through the first order. The orders depend on the seed alone.
    """

    def __init__(self, split: Split, batch_size: int, segment_len: int, seed: int, n_token: int) -> None:
        """Walk a split.

        Raises:
            DataError: it is too short to give each row a segment of its own.
        """
        check_length(f"{split.folder}: the training text", len(split), "tokens", batch_size, segment_len)
        self.split, self.segment_len, self.n_token, self.seed = split, segment_len, n_token, seed
        self._documents = split.document_starts()
        self._lengths = np.diff(self._documents, append=len(split))
        self._starts = [row * (len(split) // batch_size) for row in range(batch_size)]
        self._orders: dict[int, tuple[TokenIds, TokenIds]] = {}

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        at = step * self.segment_len
        read = [self._read(start + at, self.segment_len + 1) for start in self._starts[rows]]
        return _pair(read, self.n_token)

    def _read(self, start: int, count: int) -> TokenIds:
        parts = []
        while count:
            lap, at = divmod(start, len(self.split))
            order, ends = self._order(lap)
            place = int(np.searchsorted(ends, at, side="right"))
            left = int(ends[place]) - at
            document = int(order[place])
            offset = int(self._lengths[document]) - left
            taken = min(left, count)
            parts.append(self.split.read(int(self._documents[document]) + offset, taken))
            start, count = start + taken, count - taken
        return np.concatenate(parts)

    def _order(self, lap: int) -> tuple[TokenIds, TokenIds]:
        """Return the documents of a lap in their order, and the index after the last token of each, both (documents,).

        Rows are in at most two laps at a time, so only two orders are kept.
        """
        if lap not in self._orders:
            order = np.random.default_rng([self.seed, lap]).permutation(len(self._documents))
            self._orders[lap] = order, np.cumsum(self._lengths[order])
            if len(self._orders) > 2:
                del self._orders[next(iter(self._orders))]  # the one that was made first
        return self._orders[lap]


def _pair(rows: Sequence[TokenIds], n_token: int) -> tuple[Tensor, Tensor]:
    ids = np.stack(rows)
    if int(ids.max()) >= n_token:
        raise DataError(
            f"the training data has the token {int(ids.max()):,}, but its manifest has {n_token:,} tokens.",
            hint="Prepare the data again.",
        )
    tokens = torch.from_numpy(ids)  # (rows,S+1)
    return tokens[:, :-1], tokens[:, 1:]
