"""Read texts of bytes or prepared tokens as batches of parallel streams, in order or shuffled.

A batch depends only on its number. So a checkpoint saves only this number, and any division of the rows among
processes gives the same batches.
"""

import codecs
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from xltraining.data.token_shards import Split, TokenIds
from xltraining.errors import DataError

__all__ = ["ByteText", "OrderedStreams", "ShuffledStreams", "Text", "TokenStreams", "read_bytes"]


GZIP = b"\x1f\x8b"  # begins every file of gzip


class Text(Protocol):
    """A sequence of token ids, such as a `Split` of prepared data."""

    @property
    def name(self) -> str:
        """Name for messages."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    def read(self, start: int, count: int) -> TokenIds:
        """Return `count` token ids (count,) from index `start`; after the last token comes the first."""


class ByteText:
    """The bytes of a text, as token ids.

    Args:
        text: (N,) uint8.
    """

    name = "the training text"

    def __init__(self, text: Tensor) -> None:
        self._bytes = text.numpy()

    def __len__(self) -> int:
        return len(self._bytes)

    def read(self, start: int, count: int) -> TokenIds:
        """Return `count` token ids (count,) from index `start`; after the last byte comes the first."""
        if start + count <= len(self):  # without indices, which take eight times the memory of a whole text
            return self._bytes[start : start + count].astype(np.int64)
        return self._bytes.take(np.arange(start, start + count), mode="wrap").astype(np.int64)


def read_bytes(files: Sequence[Path]) -> Tensor:
    """Return the bytes of all files, unpacked from gzip, one after the other, as a uint8 tensor (N,).

    Raises:
        DataError: files are missing, unreadable or empty. The message lists all of them.
    """
    parts, problems = [], []
    for file in files:
        try:
            part = Path(file).read_bytes()
            if part.startswith(GZIP):
                part = gzip.decompress(part)
        except (OSError, EOFError, zlib.error) as error:
            problems.append(f"{file}: {getattr(error, 'strerror', None) or f'broken gzip data ({error})'}")
            continue
        part = part.removeprefix(codecs.BOM_UTF8)
        if not part:
            problems.append(f"{file}: the file is empty")
        parts.append(part)
    if problems:
        raise DataError(
            f"cannot read the text: {'; '.join(problems)}.", hint="Name readable text files that are not empty."
        )
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else torch.empty(0).byte()


class TokenStreams:
    """Batches whose rows walk a text in parallel, segment by segment, so that memory carries from batch to batch."""

    def __init__(self, text: Text, batch_size: int, segment_len: int, seed: int, n_token: int = 256) -> None:
        """Walk a text.

        Raises:
            DataError: it is too short to give each row a segment of its own.
        """
        needed = batch_size * (segment_len + 1)
        if len(text) < needed:
            unit = "bytes" if isinstance(text, ByteText) else "tokens"
            raise DataError(
                f"{text.name} is too short: {len(text):,} {unit}, and {batch_size} streams with segments of "
                f"{segment_len} need at least {needed:,}.",
                hint="Give more text, or a smaller batch size or segment length.",
            )
        self.text, self.segment_len, self.n_token, self.seed = text, segment_len, n_token, seed
        first, apart = self._first(), len(text) // batch_size
        self._starts = [first + row * apart for row in range(batch_size)]

    def _first(self) -> int:
        """Return where row 0 begins."""
        return 0

    def _read(self, start: int, count: int) -> TokenIds:
        """Return `count` token ids (count,) of the endless text that rows walk."""
        return self.text.read(start, count)

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64; targets are one later."""
        at = step * self.segment_len
        ids = np.stack([self._read(start + at, self.segment_len + 1) for start in self._starts[rows]])
        if int(ids.max()) >= self.n_token:
            raise DataError(
                f"the training data has the token {int(ids.max()):,}, but its manifest has {self.n_token:,} tokens.",
                hint="Prepare the data again.",
            )
        tokens = torch.from_numpy(ids)  # (rows,S+1)
        return tokens[:, :-1], tokens[:, 1:]


class OrderedStreams(TokenStreams):
    """Streams of a text in its order.

    The text is a ring, and the seed decides where it starts. Row b begins b/B of the way round, and never jumps. After
    the rows have covered the text together, each continues at its neighbour's start, mostly with other segment borders.
    """

    def _first(self) -> int:
        generator = torch.Generator().manual_seed(self.seed)
        return int(torch.randint(len(self.text), (1,), generator=generator))


class ShuffledStreams(TokenStreams):
    """Streams of an endless text: all documents in one random order, then all in another, and so on.

    Row b begins b/B of the way through the first order. The orders depend on the seed alone.
    """

    def __init__(self, text: Split, batch_size: int, segment_len: int, seed: int, n_token: int) -> None:
        super().__init__(text, batch_size, segment_len, seed, n_token)
        self._documents = text.document_starts()
        self._lengths = np.diff(self._documents, append=len(text))
        self._orders: dict[int, tuple[TokenIds, TokenIds]] = {}

    def _read(self, start: int, count: int) -> TokenIds:
        parts = []
        while count:
            lap, at = divmod(start, len(self.text))
            order, ends = self._order(lap)
            place = int(np.searchsorted(ends, at, side="right"))
            left = int(ends[place]) - at
            document = int(order[place])
            offset = int(self._lengths[document]) - left
            taken = min(left, count)
            parts.append(self.text.read(int(self._documents[document]) + offset, taken))
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
